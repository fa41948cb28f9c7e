"""The states of sequences: who has which, and for how long."""

from __future__ import annotations

import io
import os
import weakref
from pathlib import Path

import numpy as np
import pytest
from tests.puppets import HandClock

from stoker.errors import LoadFailed
from stoker.runtimes import sequences
from stoker.runtimes.sequences import SequenceKey, SequenceStates
from stoker.sequence_steps import SEQUENCE_END, SEQUENCE_START
from stoker.tensors import TensorSpec

FIRST, SECOND, THIRD = (1, 10), (3, 10), (5, 10)
IDLE_MS = 100


def states(clock: HandClock | None = None, most: int = 2) -> SequenceStates:
    """Of one number each."""
    return SequenceStates([np.zeros(1, np.float32)], most, IDLE_MS * 1_000_000, clock or HandClock())


def run(kept: SequenceStates, *rows: tuple[SequenceKey, int], more: float = 1) -> list[float]:
    """Run a batch of rows that add to their states; returns what they went on from."""
    words = np.array([[*key, flags] for key, flags in rows])
    taken = kept.load(words, len(rows))
    kept.store(taken, [taken.arrays[0] + more])
    for key, _ in rows:
        kept.release(key)
    return [float(number) for number in taken.arrays[0][:, 0]]


def step(kept: SequenceStates, key: SequenceKey, flags: int = 0) -> float | str:
    """Admit one row and run it."""
    refusal = kept.admit(key, start=bool(flags & SEQUENCE_START))
    return refusal or run(kept, (key, flags))[0]


def test_each_goes_on_from_its_own_state() -> None:
    """Rows of different sequences run as one batch, and each finds what its sequence has left."""
    kept = states()
    assert [step(kept, FIRST, SEQUENCE_START), step(kept, SECOND, SEQUENCE_START), step(kept, SECOND)] == [
        0,
        0,
        1,
    ]
    assert run(kept, (FIRST, 0), (SECOND, 0)) == [1, 2]
    assert run(kept, (SECOND, SEQUENCE_START), (FIRST, 0)) == [0, 2]
    assert run(kept, (SECOND, 0)) == [1]


def test_rows_of_no_sequence_begin_anew_and_leave_nothing() -> None:
    """Those that fill a batch up, and whole batches of a warm-up."""
    kept = states()
    step(kept, FIRST, SEQUENCE_START)
    assert run(kept, ((0, 0), 0), (FIRST, 0), ((0, 0), 0), more=5) == [0, 1, 0]
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


def test_one_of_which_no_row_was_run_has_not_begun() -> None:
    """Its place is free again; one that was begun before goes on from where it was."""
    kept = states(most=1)
    assert kept.admit(FIRST, start=True) is None
    assert kept.admit(SECOND, start=True) == "full"
    kept.release(FIRST)
    assert step(kept, SECOND, SEQUENCE_START) == 0
    assert kept.admit(SECOND, start=True) is None
    kept.release(SECOND)
    assert step(kept, SECOND) == 1


def test_idle_ones_end() -> None:
    """After their last row, but not while one is here; those that were used later are kept."""
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


def test_a_batch_leaves_nothing_to_a_sequence_that_was_forgotten_meanwhile() -> None:
    """Nor to another one that has begun under the same name since."""
    kept = states(most=1)
    step(kept, FIRST, SEQUENCE_START)
    taken = kept.load(np.array([[*FIRST, 0]]), 1)
    kept.discard(FIRST)
    kept.store(taken, [np.full((1, 1), 7, np.float32)])
    assert step(kept, FIRST) == "unknown"
    step(kept, FIRST, SEQUENCE_START)
    kept.store(taken, [np.full((1, 1), 7, np.float32)])
    assert step(kept, FIRST) == 1


def test_objects_are_let_go_with_their_sequence() -> None:
    """What a script has kept does not wait for the next sequence that takes its place."""
    states = SequenceStates([np.array(None, object)], 1, IDLE_MS * 1_000_000, HandClock())
    kept = Kept()
    alive = weakref.ref(kept)
    assert states.admit(FIRST, start=True) is None
    array = np.empty(1, object)
    array[0] = kept
    states.store(states.load(np.array([[*FIRST, SEQUENCE_START]]), 1), [array])
    del kept, array
    assert states.load(np.array([[*FIRST, 0]]), 1).arrays[0][0] is alive()
    states.discard(FIRST)
    assert alive() is None


def test_a_sequence_begins_with_what_was_said() -> None:
    """And anew with the same."""
    states = SequenceStates([np.array([5.0])], 2, IDLE_MS * 1_000_000, HandClock())
    assert states.admit(FIRST, start=True) is None
    words = np.array([[*FIRST, SEQUENCE_START]])
    for _ in range(2):
        taken = states.load(words, 1)
        assert taken.arrays[0].tolist() == [[5]]
        states.store(taken, [np.array([[6.0]])])
    assert states.load(np.array([[*FIRST, 0]]), 1).arrays[0].tolist() == [[6]]


class Kept:
    """What a script keeps."""


@pytest.mark.parametrize("name", ["state.npy", "state"])
def test_initial_state_in_a_fifo_is_refused_at_once(tmp_path: Path, name: str) -> None:
    """The process of the model does not wait for it."""
    os.mkfifo(tmp_path / name)
    with pytest.raises(LoadFailed, match="it is no regular file"):
        sequences._initial("net", TensorSpec("h", "float32", (2,)), tmp_path, Path(name))


def test_initial_state_that_announces_more_numbers_than_it_has_is_refused(tmp_path: Path) -> None:
    """No memory is reserved for numbers that are not there."""
    announced = b"(2, 999999999999), }"
    with io.BytesIO() as file:
        np.save(file, np.zeros((2, 2), np.float32))
        content = file.getvalue()
    (tmp_path / "state.npy").write_bytes(content.replace(b"(2, 2), }".ljust(len(announced)), announced))
    with pytest.raises(LoadFailed, match="an array is cut short"):
        sequences._initial("net", TensorSpec("h", "float32", (2, 2)), tmp_path, Path("state.npy"))
