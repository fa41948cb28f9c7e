"""The gate of sequences: one row of each runs at a time."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.puppets import STEADY, HandClock

from stoker.device.sequence_gate import Decision, SequenceGate, SequenceRow
from stoker.runtimes.sequence_states import SequenceStates
from stoker.sequence_steps import SEQUENCE_START

LANES = ("a", "b")
MOST = 3


class Device:
    """A gate with a device behind it, which keeps what was run of each sequence."""

    def __init__(self) -> None:
        self.states = SequenceStates([], MOST, 1 << 40, HandClock())
        self.gate: SequenceGate[str] = SequenceGate(self.states)
        self.queued: list[SequenceRow[str]] = []
        self.refused: list[SequenceRow[str]] = []
        self.run: list[int] = []
        self.gone: set[str] = set()
        self.numbers = 0

    def decide(self, decisions: list[Decision[str]]) -> None:
        """Carry decisions out as the worker does."""
        for row, refusal in decisions:
            (self.queued if refusal is None else self.refused).append(row)

    def arrive(self, lane: str, name: int, *, start: bool) -> None:
        """A row comes; its number is its place in the order of all."""
        self.numbers += 1
        self.decide(self.gate.arrive(SequenceRow(lane, self.numbers, (name, name), start)))

    def run_batch(self, rows: int, *, fails: bool) -> None:
        """The first rows run as a batch, or fail; then they are handed back."""
        batch, self.queued = self.queued[:rows], self.queued[rows:]
        assert len({row.key for row in batch}) == len(batch)
        if batch and not fails:
            words = np.array([[*row.key, row.start * SEQUENCE_START] for row in batch])
            self.states.store(self.states.load(words, len(batch)), [])
            self.run += [row.number for row in batch]
        for row in batch:
            self.decide(self.gate.hand_back(row.lane, row.number))

    def drop(self, lane: str) -> None:
        """A frontend goes."""
        self.queued = [row for row in self.queued if row.lane != lane]
        self.decide(self.gate.drop_lane(lane))


ACTIONS = st.one_of(
    st.tuples(st.just("arrive"), st.sampled_from(LANES), st.integers(1, 4), st.booleans()),
    st.tuples(st.just("run"), st.integers(1, 4), st.booleans()),
    st.tuples(st.just("drop"), st.sampled_from(LANES)),
)


@STEADY
@given(st.lists(ACTIONS, max_size=60))
def test_rows_of_a_sequence_run_in_their_order_one_at_a_time(actions: list[tuple]) -> None:  # type: ignore[type-arg]
    """Each row is decided once, in its order, and none of a dead frontend after its end.

    At most one row of a sequence is with the device at any time, there are never more sequences than may be, and when
    all is done the gate is empty.
    """
    device = Device()
    names: dict[int, int] = {}
    for kind, *details in actions:
        if kind == "arrive":
            names[device.numbers + 1] = details[1]
            device.arrive(details[0], details[1], start=details[2])
        elif kind == "run":
            device.run_batch(details[0], fails=details[1])
        else:
            device.drop(details[0])
        keys = [row.key for row in device.queued]
        assert len(set(keys)) == len(keys)
        assert device.states.counts.live <= MOST
    while device.queued:
        device.run_batch(4, fails=False)
    assert not device.gate.busy
    decided = [*device.run, *(row.number for row in device.refused)]
    assert len(set(decided)) == len(decided)
    for name in set(names.values()):
        ran = [number for number in device.run if names[number] == name]
        assert ran == sorted(ran)


def test_a_row_waits_for_the_one_in_front_of_it() -> None:
    """It is queued when that is handed back, and rows of other sequences are not held up."""
    device = Device()
    for name in (1, 1, 2):
        device.arrive("a", name, start=True)
    assert [row.number for row in device.queued] == [1, 3]
    device.run_batch(1, fails=False)
    assert [row.number for row in device.queued] == [3, 2]


def test_rows_behind_one_that_was_to_begin_and_failed_are_refused() -> None:
    """They were sent for a sequence that has not begun; one that begins it is taken."""
    device = Device()
    for start in (True, False, True):
        device.arrive("a", 1, start=start)
    device.run_batch(1, fails=True)
    assert [row.number for row in device.refused] == [2]
    assert [row.number for row in device.queued] == [3]


def test_a_lost_frontend_ends_sequences_with_queued_rows() -> None:
    """It is not known whether these rows ran; sequences with no queued row of that frontend go on."""
    device = Device()
    for name in (1, 2):
        device.arrive("a", name, start=True)
    device.run_batch(2, fails=False)
    device.arrive("a", 1, start=False)
    device.arrive("b", 1, start=False)
    device.arrive("b", 2, start=False)
    device.arrive("a", 2, start=False)
    device.drop("a")
    assert [row.number for row in device.refused] == [4]
    device.run_batch(1, fails=False)
    assert device.run == [1, 2, 5]
