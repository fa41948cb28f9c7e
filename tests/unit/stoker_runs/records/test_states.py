"""The states of a run: every way that observations can lead, by chance and by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker_runs.records.states import (
    TERMINAL,
    CancelRequested,
    Collected,
    FailureCode,
    Granted,
    Lost,
    Observation,
    Prepared,
    Provisioned,
    Refused,
    RunFailure,
    RunState,
    ScriptEnded,
    Seen,
    Status,
    TimeLimitExceeded,
    Unseen,
    Waits,
    next_state,
    resumed,
)

FAILURE = RunFailure(FailureCode.SCRIPT_FAILED, "ValueError: no data")
GONE = RunFailure(FailureCode.INTERRUPTED, "the machine was restarted")
OBSERVATIONS = st.one_of(
    st.builds(Waits, st.sampled_from(["waits for 1 GPU", "waits for 2 cores"])),
    st.builds(Granted),
    st.builds(Prepared),
    st.builds(Provisioned),
    st.builds(Seen, st.none() | st.integers(1, 9)),
    st.builds(Unseen, st.just("the disk is full")),
    st.builds(ScriptEnded, st.integers(-9, 3), st.sampled_from([None, FAILURE])),
    st.builds(Lost, st.just(GONE)),
    st.builds(Refused, st.just(FAILURE)),
    st.builds(CancelRequested, st.just("by its user")),
    st.builds(TimeLimitExceeded, st.just(60.0)),
    st.builds(Collected),
)
# Of states without a node, each may only be followed by a later one; the two at one rank turn into each other.
RANKS = {
    status: rank
    for rank, statuses in enumerate(
        [
            [Status.NOT_STARTED],
            [Status.QUEUED],
            [Status.PREPARING],
            [Status.PROVISIONING],
            [Status.STARTING],
            [Status.RUNNING, Status.NOT_RESPONDING],
            [Status.CANCEL_REQUESTED],
            [Status.FINALIZING],
            [*TERMINAL],
        ]
    )
    for status in statuses
}


def after(*observations: Observation, attempts: int = 1) -> RunState:
    state = RunState(attempts=attempts)
    for now_ms, observation in enumerate(observations, 1):
        state = next_state(state, observation, now_ms)
    return state


few = settings(max_examples=60, deadline=None)
STARTED = (Granted(), Prepared(), Provisioned(), Seen())


@few
@given(st.lists(OBSERVATIONS, max_size=30), st.integers(1, 3))
def test_a_run_goes_forward_until_it_ends_and_then_stays(
    observations: list[Observation], attempts: int
) -> None:
    """Within an attempt no state comes back; a new attempt begins in Queued; the end is for good."""
    state = RunState(attempts=attempts)
    for now_ms, observation in enumerate(observations, 1):
        following = next_state(state, observation, now_ms)
        if state.is_terminal:
            assert following is state
        elif following.attempt == state.attempt:
            assert RANKS[following.status] >= RANKS[state.status]
        else:
            assert (following.attempt, following.status) == (state.attempt + 1, Status.QUEUED)
            assert isinstance(observation, Lost)
        assert following.attempt <= attempts
        # A time only where something began, and an end only at the end.
        assert following.since_ms == (now_ms if following.status is not state.status else state.since_ms)
        assert (following.ended_ms is not None) == following.is_terminal
        assert (following.outcome is not None) == (following.status is Status.FINALIZING)
        state = following


@few
@given(st.lists(OBSERVATIONS, max_size=30), st.integers(1, 3))
def test_how_a_run_ends_follows_from_its_process(observations: list[Observation], attempts: int) -> None:
    """Failed alone has an error; Completed needs an exit without a failure, Canceled a request."""
    state = after(*observations, attempts=attempts)
    if state.status is Status.FAILED:
        assert state.error is not None
    if state.status is Status.COMPLETED:
        assert any(isinstance(one, ScriptEnded) and one.failure is None for one in observations)
        assert (state.error, state.ending) == (None, "")
    if state.status is Status.CANCELED:
        assert any(isinstance(one, CancelRequested) for one in observations)
        assert state.error is None


@few
@given(st.lists(OBSERVATIONS, max_size=30), st.integers(1, 3))
def test_every_run_can_be_brought_to_its_end(observations: list[Observation], attempts: int) -> None:
    """Wherever it is, a cancel, then news that nothing of it runs, then its files, end it."""
    state = after(*observations, attempts=attempts)
    for observation in (CancelRequested(), Lost(GONE), Collected()):
        state = next_state(state, observation, 99)
    assert state.is_terminal


@few
@given(st.lists(OBSERVATIONS, max_size=30), st.integers(1, 3))
def test_a_state_survives_its_file(observations: list[Observation], attempts: int) -> None:
    """The state that is read is the one that was written."""
    state = after(*observations, attempts=attempts)
    assert RunState.from_json(state.to_json()) == state


def test_the_plain_way_is_that_of_the_contract() -> None:
    """A run that waits, starts and completes passes through all of Azure's states in order."""
    state, seen = RunState(), [Status.NOT_STARTED]
    for observation in (Waits("waits for 1 core"), *STARTED, ScriptEnded(0), Collected()):
        state = next_state(state, observation, 5)
        seen.append(state.status)
    assert seen == [
        Status.NOT_STARTED,
        Status.QUEUED,
        Status.PREPARING,
        Status.PROVISIONING,
        Status.STARTING,
        Status.RUNNING,
        Status.FINALIZING,
        Status.COMPLETED,
    ]


def test_a_silent_script_may_be_heard_of_again() -> None:
    """Running and NotResponding turn into each other, with the reason, and the start stays the same."""
    silent = after(*STARTED, Unseen("no word from the node for 30 s"))
    assert (silent.status, silent.reason) == (Status.NOT_RESPONDING, "no word from the node for 30 s")
    back = next_state(silent, Seen(7), 50)
    assert (back.status, back.reason, back.started_ms) == (Status.RUNNING, "", 4)


@pytest.mark.parametrize("before", [(), (Waits("x"),), (Granted(),)])
def test_a_cancel_before_the_start_needs_no_process(before: tuple[Observation, ...]) -> None:
    """A run that has not begun is cancelled at once."""
    assert after(*before, CancelRequested("by its user"), Collected()).status is Status.CANCELED


def test_a_cancelled_script_that_ends_well_is_cancelled_all_the_same() -> None:
    """Its user requested the end, so its status does not count."""
    state = after(*STARTED, CancelRequested(), ScriptEnded(0), Collected())
    assert (state.status, state.exit_status) == (Status.CANCELED, 0)


def test_too_long_is_a_failure_that_says_so() -> None:
    """It is Failed with TimedOut, though the script was stopped like a cancelled one."""
    state = after(*STARTED, TimeLimitExceeded(60), ScriptEnded(-15), CancelRequested(), Collected())
    assert state.status is Status.FAILED
    assert state.error is not None
    assert state.error.code == FailureCode.TIMED_OUT


def test_a_lost_node_costs_an_attempt() -> None:
    """While attempts are left the run begins again; the last one that is lost fails it."""
    second = after(*STARTED, Lost(GONE), attempts=2)
    assert (second.status, second.attempt, second.started_ms) == (Status.QUEUED, 2, None)
    assert GONE.message in second.reason
    for observation in (*STARTED, Lost(GONE), Collected()):
        second = next_state(second, observation, 9)
    assert (second.status, second.error) == (Status.FAILED, GONE)


def test_a_failing_script_is_not_tried_again() -> None:
    """Attempts are for lost nodes: a script that fails would fail again."""
    assert after(*STARTED, ScriptEnded(1, FAILURE), attempts=3).outcome is Status.FAILED


def test_an_end_before_the_start_is_of_another_attempt() -> None:
    """Remains of an earlier attempt cannot end a run that is only being prepared."""
    assert after(Granted(), ScriptEnded(0)).status is Status.PREPARING


def test_only_a_failed_or_cancelled_run_is_resumed() -> None:
    """A further attempt begins in Queued with nothing of the old one's end; others refuse."""
    failed = after(*STARTED, ScriptEnded(1, FAILURE), Collected())
    again = resumed(failed, 50)
    assert (again.status, again.attempt, again.attempts) == (Status.QUEUED, 2, 2)
    assert (again.error, again.exit_status, again.ended_ms) == (None, None, None)
    with pytest.raises(ValueError, match="Completed cannot be resumed"):
        resumed(after(*STARTED, ScriptEnded(0), Collected()), 50)


@pytest.mark.parametrize("content", [{}, {"status": "Running"}, {**RunState().to_json(), "status": "Odd"}])
def test_a_damaged_state_is_no_state(content: dict[str, object]) -> None:
    """A state that lacks a part, or has an unknown status, is refused."""
    with pytest.raises(ValueError, match=r"Odd|it lacks"):
        RunState.from_json(content)


def test_states_are_values() -> None:
    """Nobody changes one: each step makes a new one."""
    with pytest.raises(AttributeError):
        RunState().attempt = 2  # type: ignore[misc]
