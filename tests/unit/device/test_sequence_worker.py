"""Sequences from the frontends to the device and back: real doorbells and arenas, a model that adds up."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.puppets import FAR_NS, STEADY, Joined, PuppetRuntime, PuppetTicket

from stoker.device.batch_decisions import BatchPolicy
from stoker.device.batch_sizes import BatchSizes
from stoker.errors import (
    DeadlineExceeded,
    DeviceLost,
    InvalidInput,
    ModelFailed,
    NotReady,
    Overloaded,
    SequenceRequired,
    TooManySequences,
    UnknownSequence,
)
from stoker.gateway.rows.sequences import SequenceReplicas
from stoker.gateway.rows.urgency import Urgency
from stoker.keys.callers import CallerTerms
from stoker.metrics import table
from stoker.runtimes.sequence_runtime import SequenceRuntime
from stoker.runtimes.sequence_states import SequenceStates
from stoker.sequence_steps import Control, SequenceStep
from stoker.tensors import Signature, TensorSpec

X, SUM, NEXT_SUM, Y = (TensorSpec(name, "float32", (1,)) for name in ("x", "sum", "next_sum", "y"))
IDLE_S = 60


def add(inputs: Sequence[Any]) -> list[np.ndarray]:
    """The sum so far, as answer and as state."""
    now = inputs[0] + inputs[1]
    return [now, now]


class Adding(PuppetRuntime):
    """A puppet that other instances can be forked from: all of them do as the first is set."""

    def __init__(self) -> None:
        super().__init__(Signature((X, SUM), (Y, NEXT_SUM)), add)

    def fork(self) -> Adding:
        """The same."""
        return self


class Sums(Joined):
    """Frontends of a model whose answer is the sum of a sequence so far.

    Attributes:
        adding: The model.
    """

    def __init__(self, *, most: int = 4, several: bool = False, **options: Any) -> None:
        self.adding = Adding()
        self.runtimes = [
            SequenceRuntime(
                self.adding,
                {"sum": "next_sum"},
                SequenceStates(
                    [np.zeros(SUM.shape, SUM.dtype)], most, IDLE_S * 10**9, lambda: self.clock.now_ns
                ),
            )
        ]
        self.runtimes += [self.runtimes[0].fork()] * several
        for runtime in self.runtimes:
            runtime.batches = self.adding.batches  # type: ignore[attr-defined]  # what `Joined` looks at
        super().__init__(self.runtimes[0], further=self.runtimes[1:], **options)  # type: ignore[arg-type]

    def ask(
        self,
        name: int | str,
        number: float,
        *,
        start: bool = False,
        end: bool = False,
        frontend: int = 0,
        caller: str = "",
        deadline_ns: int = FAR_NS,
    ) -> PuppetTicket:
        """Submit a request of a sequence."""
        ticket = PuppetTicket(deadline_ns)
        ticket.sequence = SequenceStep(name, start, end)
        if caller:
            ticket.urgency = Urgency(caller=CallerTerms(caller, 3))
        self.exchanges[frontend].submit(ticket, [np.array([[number]])])
        return ticket


class _Again(PuppetTicket):
    """A request whose device process has died once."""

    was_rerun = True


def outcomes(*tickets: PuppetTicket) -> list[object]:
    """Per ticket its sum or the class of its error; each must have completed once."""
    assert [ticket.completions for ticket in tickets] == [1] * len(tickets)
    return [ticket.failure() or float(ticket.answer[0][0, 0]) for ticket in tickets]  # type: ignore[index]


def test_rows_sent_ahead_run_one_after_the_other() -> None:
    """Through one frontend or two: each sum is that of all before, and no batch has two rows of a sequence."""
    with Sums(frontends=2) as sums:
        tickets = [sums.ask(1, number, start=number == 1) for number in (1, 2, 4)]
        sums.settle()
        tickets += [sums.ask(1, 8, frontend=1), sums.ask(1, 16, frontend=1, end=True)]
        sums.settle()
        assert outcomes(*tickets) == [1, 3, 7, 15, 31]
        assert [len(batch) for batch in sums.adding.batches] == [1] * 5


def test_different_sequences_share_batches() -> None:
    """Three callers who are in step need as many batches as one."""
    with Sums() as sums:
        tickets = [sums.ask(name, name, start=first) for first in (True, False) for name in (1, 2, 3)]
        sums.settle()
        assert outcomes(*tickets) == [1, 2, 3, 2, 4, 6]
        assert [len(batch) for batch in sums.adding.batches] == [3, 3]


def test_several_instances_keep_the_order() -> None:
    """The states are those of all instances, and what another one hands back lets the next row pass."""
    with Sums(several=True, policy=BatchPolicy(1)) as sums:
        tickets = [sums.ask(name, 1, start=place == 0) for place in range(3) for name in (1, 2)]
        sums.turn_frontends()
        for turn in range(20):
            sums.turn_device(turn % 2)
            sums.turn_frontends()
        assert outcomes(*tickets) == [1, 1, 2, 2, 3, 3]


def test_a_number_that_is_used_again_at_once_is_another_row() -> None:
    """A row of another sequence may come under it before anybody has looked at what was handed back."""
    with Sums(capacity=2) as sums:
        sums.adding.fails_for = {13}
        tickets = [sums.ask(1, 13, start=True), sums.ask(2, 1, start=True)]

        def use_again() -> None:
            # The batch of both has failed, and so has the first row alone.
            if sums.adding.batches[-1] == [[1]]:
                sums.turn_frontends()
                tickets.append(sums.ask(3, 5, start=True))
                sums.turn_frontends()
                sums.worker._receive(*next(iter(sums.worker.doorbells.lanes.items())))

        sums.adding.during = use_again
        sums.settle()
        sums.adding.during = lambda: None
        tickets += [sums.ask(3, 6), sums.ask(1, 7, start=True)]
        sums.settle()
        assert outcomes(*tickets) == [ModelFailed, 1, 5, 11, 7]
        assert table.SEQUENCES.counts(sums.totals().words) == [3]


ASKED = st.tuples(
    st.integers(1, 3),
    st.sampled_from([1, 2, 4, 13]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0, 0, 30]),
)
TURNS = st.sampled_from(["frontends", "first", "second", "late"])


@STEADY
@given(st.lists(ASKED | TURNS, max_size=30), st.lists(st.lists(ASKED | TURNS, max_size=4), max_size=6))
def test_each_answer_goes_on_from_the_one_before(steps: list[Any], amid_runs: list[list[Any]]) -> None:
    """A row that fails or is late has changed nothing, whichever instance leads while a batch runs."""
    submitted: list[tuple[int, int, bool, bool, PuppetTicket]] = []
    with Sums(capacity=4, several=True, policy=BatchPolicy(2)) as sums:
        sums.adding.fails_for = {13}

        def take(step: Any) -> None:
            if step == "frontends":
                sums.turn_frontends()
            elif step == "late":
                sums.clock.advance_ms(20)
                sums.sweep()
            elif isinstance(step, str):
                sums.turn_device(step == "second")
            else:
                name, number, start, end, wait_ms = step
                deadline_ns = sums.clock() + wait_ms * 10**6 if wait_ms else FAR_NS
                with contextlib.suppress(Overloaded):
                    ticket = sums.ask(name, number, start=start, end=end, deadline_ns=deadline_ns)
                    submitted.append((name, number, start, end, ticket))

        def amid_a_run() -> None:
            for step in amid_runs.pop() if amid_runs else ():
                take(step)

        sums.adding.during = amid_a_run
        for step in steps:
            take(step)
        sums.settle()
        totals: dict[int, float] = {}
        for name, number, start, end, ticket in submitted:
            (outcome,) = outcomes(ticket)
            if outcome in (ModelFailed, DeadlineExceeded):
                assert outcome is not ModelFailed or number == 13
                continue
            if not start and name not in totals:
                assert outcome is UnknownSequence
                continue
            assert outcome == number + (0 if start else totals[name])
            totals[name] = number + (0 if start else totals[name])
            if end:
                del totals[name]
        assert table.SEQUENCES.counts(sums.totals().words) == [len(totals)]
        assert not sums.worker.gate.busy  # type: ignore[attr-defined]  # of a model with state


def test_rows_that_fill_a_bucket_leave_nothing() -> None:
    """A batch of three of a size of four: what fills it up goes on from no state, and is none's."""
    with Sums(sizes=BatchSizes((4,))) as sums:
        tickets = [sums.ask(name, name, start=True) for name in (1, 2, 3)]
        sums.settle()
        tickets += [sums.ask(3, 1)]
        sums.settle()
        assert outcomes(*tickets) == [1, 2, 3, 4]
        assert [len(batch) for batch in sums.adding.batches] == [4, 4]
        assert table.SEQUENCES.counts(sums.totals().words) == [3]


def test_callers_have_sequences_of_their_own() -> None:
    """A caller neither goes on from the sequence of another caller nor ends it; 7 and the text "7" differ."""
    with Sums() as sums:
        tickets = [sums.ask(7, 1, start=True), sums.ask(7, 2, caller="ads"), sums.ask("7", 2)]
        sums.settle()
        tickets += [sums.ask(7, 4, caller="ads", start=True, end=True), sums.ask(7, 8)]
        sums.settle()
        assert outcomes(*tickets) == [1, UnknownSequence, UnknownSequence, 4, 9]


def test_refused_sequence_request_changes_no_state() -> None:
    """Requests without a sequence, of an unknown one, of two rows, or of one too many change nothing."""
    with Sums(most=1) as sums:
        for rows, step, error in (
            (1, None, SequenceRequired),
            (2, SequenceStep(1, start=True), InvalidInput),
        ):
            ticket = PuppetTicket()
            if step is not None:
                ticket.sequence = step
            with pytest.raises(error):
                sums.exchange.submit(ticket, [np.ones((rows, 1))])
        tickets = [sums.ask(1, 1), sums.ask(2, 1, start=True), sums.ask(3, 1, start=True)]
        sums.settle()
        tickets += [sums.ask(2, 1, end=True), sums.ask(3, 1, start=True)]
        sums.settle()
        tickets += [sums.ask(3, 5, start=True)]
        sums.settle()
        assert outcomes(*tickets) == [UnknownSequence, 1, TooManySequences, 2, TooManySequences, 5]
        assert sums.exchange.leased_rows == 0


def test_a_row_that_fails_leaves_its_sequence_as_it_was() -> None:
    """Those of its batch are run again without it, and none of them has run twice."""
    with Sums() as sums:
        tickets = [sums.ask(name, 1, start=True) for name in (1, 2, 3)]
        sums.settle()
        sums.adding.fails_for = {13}
        tickets += [sums.ask(1, 1), sums.ask(2, 13), sums.ask(3, 1)]
        sums.settle()
        tickets += [sums.ask(name, 1) for name in (1, 2, 3)]
        sums.settle()
        assert outcomes(*tickets) == [1, 1, 1, 2, ModelFailed, 2, 3, 2, 3]


def test_a_row_that_is_late_was_not_run_or_has_its_answer() -> None:
    """One that waits behind another is told that it changed nothing; the one that had begun is answered after all."""
    with Sums() as sums:
        first = sums.ask(1, 1, start=True)
        sums.settle()

        def late() -> None:
            sums.clock.advance_ms(20)
            sums.sweep()

        sums.adding.during = late
        soon_ns = sums.clock() + 10_000_000
        begun, waiting = sums.ask(1, 2, deadline_ns=soon_ns), sums.ask(1, 4, deadline_ns=soon_ns)
        sums.settle()
        sums.adding.during = lambda: None
        last = sums.ask(1, 8)
        sums.settle()
        assert outcomes(first, begun, waiting, last) == [1, 3, DeadlineExceeded, 11]
        assert "its sequence is as it was" in str(sums.exchange.missed(0, 1))


def test_a_row_of_a_lost_caller_is_not_run() -> None:
    """It has not begun; the next row goes on from the state before it."""
    with Sums() as sums:
        tickets = [sums.ask(1, 1, start=True), sums.ask(1, 2), sums.ask(1, 4)]
        tickets[1].cancel()
        sums.settle()
        assert outcomes(tickets[0], tickets[2]) == [1, 5]


def test_idle_sequences_end_without_anybody_asking() -> None:
    """The device looks when it is time; what is counted says so."""
    with Sums() as sums:
        sums.ask(1, 1, start=True)
        sums.settle()
        assert sums.worker.wait_s(None) == IDLE_S
        sums.clock.advance_ms(IDLE_S * 1000)
        sums.turn_device()
        late = sums.ask(1, 1)
        sums.settle()
        assert outcomes(late) == [UnknownSequence]
        words = sums.totals().words
        assert (table.SEQUENCES.counts(words), table.SEQUENCES_STARTED.counts(words)) == ([0], [1])
        assert words[table.SEQUENCES_ENDED.word("idle")] == 1
        assert words[table.SEQUENCES_ENDED.word("end")] == 0


def test_a_dead_frontend_ends_sequences_with_queued_rows() -> None:
    """Its sequences with a row in the queue; rows of others behind it are told, and can begin anew."""
    with Sums(frontends=2) as sums:
        tickets = [sums.ask(name, 1, start=True) for name in (1, 2)]
        sums.settle()
        sums.ask(1, 2)
        sums.turn_frontends()
        sums.worker._receive(*next(iter(sums.worker.doorbells.lanes.items())))
        sums.kill_frontend(0)
        tickets += [sums.ask(1, 4, frontend=1), sums.ask(2, 4, frontend=1)]
        sums.settle()
        assert outcomes(*tickets) == [1, 1, UnknownSequence, 5]


def test_a_request_that_was_with_a_device_that_died_is_not_run_again() -> None:
    """It is told; a ticket that was run again for that reason is told too, by the replica that would run it."""
    with Sums() as sums:
        lost = sums.ask(1, 1, start=True)
        sums.kill_device()
        sums.turn_frontends()
        assert outcomes(lost) == [DeviceLost]
    with Sums() as sums:
        again = _Again()
        again.sequence = lost.sequence
        with pytest.raises(DeviceLost):
            sums.exchange.submit(again, [np.ones((1, 1)), np.zeros((1, 3))])
        assert sums.exchange.leased_rows == 0


@pytest.mark.parametrize(
    ("dtype", "accepted", "refused"),
    [("uint32", [5, (1 << 32) - 1], [1 << 32, "5"]), ("int64", [(1 << 63) - 1], [1 << 63])],
)
def test_a_model_gets_the_id_of_the_sequence(
    dtype: str, accepted: list[int], refused: list[int | str]
) -> None:
    """One that its input does not hold is refused, and has taken nothing."""
    names = TensorSpec("x", "float32", (1,)), TensorSpec("CORRID", dtype, (1,))
    runtime = SequenceRuntime(
        ForkingPuppet(Signature(names, (TensorSpec("y", dtype, (1,)),)), lambda inputs: [inputs[1]]),
        {},
        SequenceStates([], 4, IDLE_S * 10**9, lambda: 0),
        [Control("CORRID", "id", dtype)],
    )
    runtime.batches = []  # type: ignore[attr-defined]  # what `Joined` looks at
    with Joined(runtime) as joined:  # type: ignore[arg-type]
        for name in refused:
            with pytest.raises(InvalidInput, match="a number from 1 to"):
                joined.exchange.submit(_step(name), [np.ones((1, 1))])
        assert joined.exchange.leased_rows == 0
        tickets = [_step(name) for name in accepted]
        for ticket in tickets:
            joined.exchange.submit(ticket, [np.ones((1, 1))])
        joined.settle()
        assert [int(ticket.answer[0][0, 0]) for ticket in tickets] == accepted


def _step(name: int | str) -> PuppetTicket:
    """The first request of a sequence."""
    ticket = PuppetTicket()
    ticket.sequence = SequenceStep(name, start=True)
    return ticket


class ForkingPuppet(PuppetRuntime):
    """A puppet that can be forked."""

    def fork(self) -> ForkingPuppet:
        """The same."""
        return self


def test_a_sequence_has_the_replica_that_its_name_says() -> None:
    """Whether it is there or not: no other one may have its sequences, which it would know from long ago."""
    with Sums(frontends=2) as sums:
        replicas = SequenceReplicas(2)
        replicas.join(1, sums.exchanges[1])  # type: ignore[arg-type]
        found = {}
        for name in range(8):
            words = SequenceStep(name).words("default")
            try:
                found[name] = replicas.find(words) is sums.exchanges[1]
            except NotReady:
                found[name] = False
            assert SequenceStep(name, start=True).words("default")[:2] == words[:2]
        assert set(found.values()) == {True, False}
        sums.exchanges[1].lost = True
        with pytest.raises(NotReady):
            replicas.find(SequenceStep(next(name for name in found if found[name])).words("default"))
        sums.exchanges[1].lost = False
