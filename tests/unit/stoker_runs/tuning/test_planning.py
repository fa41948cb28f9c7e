"""The next step of a sweep, and its end: a pure function of its terms and its children."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stoker_runs.records.states import RunFailure, Status
from stoker_runs.tuning.definition import SweepDefinition, define_sweep, expression, sampler
from stoker_runs.tuning.planning import Child, Ending, ending_of, next_step
from stoker_runs.tuning.policies import Bandit, Curve, Policy

SPACE = {"--n": expression("randint", 9)}
RUNNING, DONE, CUT, FAILED = Status.RUNNING, Status.COMPLETED, Status.CANCELED, Status.FAILED


def terms_of(runs: int, at_once: int, policy: Policy | None = None) -> SweepDefinition:
    return define_sweep(sampler("random", SPACE), "acc", "maximize", runs, at_once, policy)


def test_children_begin_in_their_order_as_there_is_room() -> None:
    """The number of running children is bounded; an ended one makes room, and no child begins twice."""
    assert list(next_step(terms_of(4, 2), {}).starts) == [0, 1]
    children = {0: Child(RUNNING), 1: Child(DONE)}
    assert list(next_step(terms_of(4, 2), children).starts) == [2]
    assert list(next_step(terms_of(4, 2), {**children, 2: Child(Status.QUEUED)}).starts) == []


def test_missing_child_begins_at_any_place() -> None:
    """A sweep that was killed between two starts, or whose user has deleted a run, fills the gap."""
    assert list(next_step(terms_of(4, 4), {0: Child(DONE), 3: Child(RUNNING)}).starts) == [1, 2]


def test_a_poor_child_is_ended_and_looked_at_once() -> None:
    """Its reason names the policy; each child is judged once at an interval."""
    poor = Child(RUNNING, Curve([0.1]))
    children = {0: Child(DONE, Curve([0.9], is_over=True)), 1: poor}
    step = next_step(terms_of(2, 2, Bandit(slack_factor=0.5)), children)
    assert step.ends[1].startswith("Bandit(slack_factor=0.5")
    assert (dict(step.evaluated), step.is_over) == ({1: 1}, False)
    for after in (replace(poor, evaluated=1), replace(poor, is_cancel_requested=True)):
        assert next_step(terms_of(2, 2, Bandit(slack_factor=0.5)), {**children, 1: after}).ends == {}


def test_earlier_sweeps_are_compared_with() -> None:
    """A warm start ends children that are worse than known runs."""
    step = next_step(
        terms_of(1, 1, Bandit(slack_factor=0.5)), {0: Child(RUNNING, Curve([0.1]))}, [Curve([0.9])]
    )
    assert list(step.ends) == [0]


def test_an_ending_sweep_begins_nothing() -> None:
    """Each child is stopped once, and the sweep is over when the last one has ended."""
    children = {0: Child(RUNNING), 1: Child(RUNNING, is_cancel_requested=True), 2: Child(DONE)}
    step = next_step(terms_of(9, 9), children, ending="by its user")
    assert (list(step.starts), dict(step.ends), step.is_over) == ([], {0: "by its user"}, False)
    assert next_step(terms_of(9, 9), {0: Child(CUT)}, ending="by its user").is_over
    assert next_step(terms_of(9, 9), {}, ending="by its user").is_over


@given(st.integers(1, 12), st.integers(1, 4), st.randoms(use_true_random=False))
def test_every_sweep_comes_to_its_end(runs: int, at_once: int, chance: object) -> None:
    """With ends in any order there are never too many at once, and each child begins exactly once."""
    one, children, begun = terms_of(runs, at_once), {}, []
    for _ in range(4 * runs + 4):
        step = next_step(one, children)
        if step.is_over:
            break
        begun += step.starts
        children |= {number: Child(RUNNING) for number in step.starts}
        running = [number for number, child in children.items() if child.status is RUNNING]
        assert len(running) <= at_once
        ended = chance.choice(running)  # type: ignore[attr-defined]
        children[ended] = Child(chance.choice([DONE, CUT, FAILED]))  # type: ignore[attr-defined]
    assert step.is_over
    assert sorted(begun) == list(range(runs))


CURVE = Curve([0.5])
FAILURE = RunFailure("ScriptFailed", "ValueError: no")


@pytest.mark.parametrize(
    ("children", "reason"),
    [
        ({0: Child(DONE, CURVE), 1: Child(CUT, CURVE)}, ""),
        ({0: Child(DONE, CURVE), 1: Child(FAILED, failure=FAILURE)}, "1 of 2 runs failed"),
        (
            {0: Child(DONE, logged=["loss"]), 1: Child(DONE, logged=["accuracy", "loss"])},
            "no run has logged the metric acc, so that none is the best; they have logged accuracy, loss",
        ),
        (
            {0: Child(DONE)},
            "no run has logged the metric acc, so that none is the best; they have logged no numbers at all",
        ),
        (
            {0: Child(DONE, Curve([float("nan")]))},
            "no run has logged a finite value of acc, so that none is the best",
        ),
    ],
)
def test_a_completed_sweep_without_a_best_run_says_why(children: dict[int, Child], reason: str) -> None:
    """A metric that nobody has logged is named with those that were."""
    assert ending_of(terms_of(2, 2), children) == Ending(reason=reason)


def test_a_sweep_fails_where_all_have_failed() -> None:
    """With the words of the first one."""
    failure = ending_of(terms_of(2, 2), {0: Child(FAILED, failure=FAILURE), 1: Child(FAILED)}).failure
    assert failure is not None
    assert failure.message == ("all 2 runs of the sweep failed, the first one: ScriptFailed: ValueError: no")


def test_a_sweep_that_took_too_long_says_how_far_it_came() -> None:
    """It is Completed, with the results so far."""
    found = ending_of(terms_of(8, 2), {0: Child(DONE, CURVE)}, "took longer than 60 s")
    assert found.reason == "took longer than 60 s; 1 of 8 runs had begun"
