"""The states of sequences: their places, and how long they are kept."""

from __future__ import annotations

import weakref

import numpy as np
from tests.puppets import HandClock

from stoker.runtimes.sequence_states import SequenceKey, SequenceStates
from stoker.sequence_steps import SEQUENCE_END, SEQUENCE_START

FIRST, SECOND, THIRD = (1, 10), (3, 10), (5, 10)
IDLE_MS = 100


def states(clock: HandClock | None = None, most: int = 2) -> SequenceStates:
    """Return the states of one number each."""
    return SequenceStates([np.zeros(1, np.float32)], most, IDLE_MS * 1_000_000, clock or HandClock())


def run(kept: SequenceStates, *rows: tuple[SequenceKey, int], added: float = 1) -> list[float]:
    """Run a batch of rows that add to their states; return the states before."""
    words = np.array([[*key, flags] for key, flags in rows])
    loaded = kept.load(words, len(rows))
    kept.store(loaded, [loaded.arrays[0] + added])
    for key, _ in rows:
        kept.release(key)
    return [float(number) for number in loaded.arrays[0][:, 0]]


def step(kept: SequenceStates, key: SequenceKey, flags: int = 0) -> float | str:
    """Admit one row and run it."""
    refusal = kept.admit(key, start=bool(flags & SEQUENCE_START))
    return refusal or run(kept, (key, flags))[0]


def test_each_row_continues_from_the_state_of_its_sequence() -> None:
    """Rows of different sequences run as one batch."""
    kept = states()
    assert (step(kept, FIRST, SEQUENCE_START), step(kept, SECOND, SEQUENCE_START)) == (0, 0)
    assert step(kept, SECOND) == 1
    assert run(kept, (FIRST, 0), (SECOND, 0)) == [1, 2]
    assert run(kept, (SECOND, SEQUENCE_START), (FIRST, 0)) == [0, 2]
    assert run(kept, (SECOND, 0)) == [1]


def test_rows_without_a_sequence_store_no_state() -> None:
    """They fill batches, or warm a model up, and begin with the initial state."""
    kept = states()
    step(kept, FIRST, SEQUENCE_START)
    assert run(kept, ((0, 0), 0), (FIRST, 0), ((0, 0), 0), added=5) == [0, 1, 0]
    kept.store(kept.load(None, 3), [np.ones((3, 1), np.float32)])
    assert run(kept, ((0, 0), 0), (FIRST, 0)) == [0, 6]
    assert kept.counts == (1, 1, 0, 0)


def test_sequence_that_was_not_started_or_has_ended_is_unknown() -> None:
    """A row without the start flag begins no sequence, neither a new one nor an ended one."""
    kept = states()
    assert step(kept, FIRST) == "unknown"
    step(kept, FIRST, SEQUENCE_START)
    assert step(kept, FIRST, SEQUENCE_END) == 1
    assert step(kept, FIRST) == "unknown"
    assert step(kept, FIRST, SEQUENCE_START | SEQUENCE_END) == 0
    assert step(kept, FIRST) == "unknown"
    assert kept.counts == (0, 2, 2, 0)


def test_released_sequence_without_a_run_frees_its_place() -> None:
    """A sequence that ran before keeps its state."""
    kept = states(most=1)
    assert kept.admit(FIRST, start=True) is None
    assert kept.admit(SECOND, start=True) == "full"
    kept.release(FIRST)
    assert step(kept, SECOND, SEQUENCE_START) == 0
    assert kept.admit(SECOND, start=True) is None
    kept.release(SECOND)
    assert step(kept, SECOND) == 1


def test_idle_sequences_expire() -> None:
    """A sequence with a row in the queue stays, and so does one that was used later."""
    clock = HandClock()
    kept = states(clock)
    assert kept.first_expiry_ns is None
    step(kept, FIRST, SEQUENCE_START)
    clock.advance_ms(IDLE_MS / 2)
    step(kept, SECOND, SEQUENCE_START)
    assert kept.first_expiry_ns == clock() + IDLE_MS * 500_000
    clock.advance_ms(IDLE_MS / 2)
    kept.expire({FIRST})
    assert kept.counts.live == 2
    clock.advance_ms(IDLE_MS / 2)
    kept.expire(())
    assert (step(kept, FIRST), step(kept, SECOND)) == (1, "unknown")
    assert kept.counts == (1, 2, 0, 1)


def test_batch_stores_nothing_for_a_sequence_that_was_discarded_meanwhile() -> None:
    """A new sequence of the same name does not get the state either."""
    kept = states(most=1)
    step(kept, FIRST, SEQUENCE_START)
    loaded = kept.load(np.array([[*FIRST, 0]]), 1)
    kept.discard(FIRST)
    kept.store(loaded, [np.full((1, 1), 7, np.float32)])
    assert step(kept, FIRST) == "unknown"
    step(kept, FIRST, SEQUENCE_START)
    kept.store(loaded, [np.full((1, 1), 7, np.float32)])
    assert step(kept, FIRST) == 1


def test_object_is_freed_with_its_sequence() -> None:
    """It does not live until another sequence takes the place."""
    states = SequenceStates([np.array(None, object)], 1, IDLE_MS * 1_000_000, HandClock())
    state = State()
    alive = weakref.ref(state)
    assert states.admit(FIRST, start=True) is None
    array = np.empty(1, object)
    array[0] = state
    states.store(states.load(np.array([[*FIRST, SEQUENCE_START]]), 1), [array])
    del state, array
    assert states.load(np.array([[*FIRST, 0]]), 1).arrays[0][0] is alive()
    states.discard(FIRST)
    assert alive() is None


def test_sequence_begins_with_the_initial_state() -> None:
    """A sequence that starts again does too."""
    states = SequenceStates([np.array([5.0])], 2, IDLE_MS * 1_000_000, HandClock())
    assert states.admit(FIRST, start=True) is None
    words = np.array([[*FIRST, SEQUENCE_START]])
    for _ in range(2):
        loaded = states.load(words, 1)
        assert loaded.arrays[0].tolist() == [[5]]
        states.store(loaded, [np.array([[6.0]])])
    assert states.load(np.array([[*FIRST, 0]]), 1).arrays[0].tolist() == [[6]]


class State:
    """A state of a script."""
