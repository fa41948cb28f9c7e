"""The states of sequences on a device, and the runtime that puts them into batches and takes them out again.

See decision 42.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol

import numpy as np

from stoker.errors import LoadFailed
from stoker.runtimes.base import ForkingRuntime, Runtime
from stoker.samples.sample_files import load_array
from stoker.sequence_steps import SEQUENCE_END, SEQUENCE_START, Control
from stoker.settings.files import read_sample_file
from stoker.settings.sequence import SequenceSettings
from stoker.tensors import TensorSpec, check_batch

SequenceKey = tuple[int, int]
"""The words that name a sequence: the first two of its rows."""

_INITIAL: Final = 0
"""The place in each pool that is never written: what a sequence begins with."""


class _Entry:
    """A sequence: its place in the pools, when it was last used, and whether a row of it has been run."""

    __slots__ = ("begun", "place", "used_ns")

    def __init__(self, place: int, used_ns: int) -> None:
        self.place, self.used_ns, self.begun = place, used_ns, False


class BatchStates(NamedTuple):
    """The states from which the rows of a batch continue.

    Attributes:
        arrays: Per state tensor an array `[rows, *state_shape]`.
        entries: Whose the rows are; None for those of no sequence, which leave nothing.
        flags: What each row says.
    """

    arrays: list[np.ndarray]
    entries: list[tuple[SequenceKey, _Entry] | None]
    flags: list[int]


class SequenceCounts(NamedTuple):
    """How many sequences there are, have been started, ended by their callers, and were idle for too long."""

    live: int
    started: int
    ended: int
    expired: int


class SequenceStates:
    """States by sequence. Threads of several instances may take and leave them at the same time.

    Args:
        initial: Per state tensor what a sequence begins with; one of dtype object is a state that is no tensor.
        most: How many sequences there are at most.
        idle_ns: How long one is kept after its last row.
    """

    def __init__(
        self, initial: Sequence[np.ndarray], most: int, idle_ns: int, clock_ns: Callable[[], int]
    ) -> None:
        # Memory that is not written is none.
        self._pools = [np.zeros((most + 1, *array.shape), array.dtype) for array in initial]
        for pool, array in zip(self._pools, initial, strict=True):
            # A slice: an array of one object would be stored as what it is.
            pool[_INITIAL : _INITIAL + 1] = array
        self._objects = [pool for pool in self._pools if pool.dtype == object]
        self._free = list(range(most, _INITIAL, -1))
        self._idle_ns, self._clock_ns = idle_ns, clock_ns
        self._entries: OrderedDict[SequenceKey, _Entry] = OrderedDict()
        """The least recently used sequences come first."""
        self._lock = threading.Lock()
        self._started = self._ended = self._expired = 0

    @property
    def counts(self) -> SequenceCounts:
        """The counts of sequences."""
        return SequenceCounts(len(self._entries), self._started, self._ended, self._expired)

    @property
    def first_expiry_ns(self) -> int | None:
        """When the next sequence has been idle for too long; None if there is none."""
        with self._lock:
            first = next(iter(self._entries.values()), None)
        return None if first is None else first.used_ns + self._idle_ns

    def admit(self, key: SequenceKey, *, start: bool) -> Literal["unknown", "full"] | None:
        """Say whether the next row of a sequence may run: None if so, and then `release` is to follow.

        Args:
            start: Whether the row begins it.
        """
        with self._lock:
            entry = self._entries.get(key)
            if not start:
                return None if entry is not None and entry.begun else "unknown"
            if entry is None:
                if not self._free:
                    return "full"
                self._entries[key] = _Entry(self._free.pop(), self._clock_ns())
            return None

    def release(self, key: SequenceKey) -> None:
        """Release an admitted row; a sequence of which no row has run has not begun."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None and not entry.begun:
                self._remove(key, entry)

    def discard(self, key: SequenceKey) -> None:
        """Remove a sequence whose progress is unknown."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._remove(key, entry)

    def load(self, words: np.ndarray | None, rows: int) -> BatchStates:
        """Return the states from which the rows of a batch continue.

        Args:
            words: What its rows say of their sequences, `int64[rows, 3]`; None if all are of none.
        """
        said = [[0, 0, 0]] * rows if words is None else words.tolist()
        with self._lock:
            entries: list[tuple[SequenceKey, _Entry] | None] = []
            for first, second, _ in said:
                entry = self._entries.get((first, second)) if first else None
                entries.append(None if entry is None else ((first, second), entry))
            places = [
                _INITIAL if one is None or flags & SEQUENCE_START else one[1].place
                for one, (_, _, flags) in zip(entries, said, strict=True)
            ]
            arrays = [pool[places] for pool in self._pools]
        return BatchStates(arrays, entries, [flags for _, _, flags in said])

    def store(self, taken: BatchStates, arrays: Sequence[np.ndarray]) -> None:
        """Store the states after a batch.

        Args:
            arrays: Per state tensor an array `[rows, *state_shape]`.
        """
        with self._lock:
            now_ns = self._clock_ns()
            rows: list[int] = []
            places: list[int] = []
            for row, (one, flags) in enumerate(zip(taken.entries, taken.flags, strict=True)):
                # One that was forgotten meanwhile may have begun anew.
                if one is None or self._entries.get(one[0]) is not one[1]:
                    continue
                key, entry = one
                self._started += bool(flags & SEQUENCE_START)
                if flags & SEQUENCE_END:
                    self._ended += 1
                    self._remove(key, entry)
                    continue
                entry.begun, entry.used_ns = True, now_ns
                self._entries.move_to_end(key)
                rows.append(row)
                places.append(entry.place)
            if rows:
                for pool, array in zip(self._pools, arrays, strict=True):
                    pool[places] = array[rows]

    def expire(self, busy: Container[SequenceKey]) -> None:
        """Remove sequences that were idle for too long, except those with rows in `busy`."""
        with self._lock:
            now_ns = self._clock_ns()
            while self._entries:
                key, entry = next(iter(self._entries.items()))
                if entry.used_ns + self._idle_ns > now_ns:
                    return
                if key in busy:
                    entry.used_ns = now_ns
                    self._entries.move_to_end(key)
                else:
                    self._expired += 1
                    self._remove(key, entry)

    def _remove(self, key: SequenceKey, entry: _Entry) -> None:
        del self._entries[key]
        for pool in self._objects:
            # What an object holds is not to wait for the next sequence that takes its place.
            pool[entry.place] = None
        self._free.append(entry.place)


class StatefulRuntime(Runtime, Protocol):
    """A runtime whose rows go on from the states of their sequences.

    Behind the inputs of its signature it is given what the rows say of their sequences, `int64[rows, 3]`. Where that
    is missing, or zeros, rows begin with the initial state and leave none: so do those that warm a model up, or fill
    a batch.

    Attributes:
        states: The states, of all instances.
    """

    states: SequenceStates


# A model with state as a runtime of rows: the states of their sequences are put in, and taken out, here.


class SequenceRuntime:
    """Runs rows, each from the state of its sequence; see `StatefulRuntime`.

    A model that is told ids gets them before what the rows say of their sequences.

    Attributes:
        signature: What it takes and gives, without the state and what the server tells the model.
        states: The states, of all instances.
    """

    def __init__(
        self,
        inner: ForkingRuntime,
        names: dict[str, str],
        states: SequenceStates,
        controls: Sequence[Control] = (),
    ) -> None:
        """Wrap a runtime.

        Args:
            names: Of the state tensors, outputs by inputs.
            controls: What the model is told of sequences.
        """
        self._inner, self._names, self.states = inner, names, states
        self._controls = {control.name: control for control in controls}
        full = inner.signature
        self.signature = dataclasses.replace(
            full,
            inputs=tuple(
                spec for spec in full.inputs if spec.name not in names and spec.name not in self._controls
            ),
            outputs=tuple(spec for spec in full.outputs if spec.name not in names.values()),
            sequences=True,
            controls=tuple(controls),
        )
        self._given = len(self.signature.inputs)

    def run(self, inputs: Sequence[Any]) -> Sequence[np.ndarray]:
        """Run one batch; the states change only if all of it has been run, with outputs as they should be."""
        rows = len(inputs[0])
        *ids, words = inputs[self._given :] or (None,)
        taken = self.states.load(words, rows)
        given, states = iter(inputs), iter(taken.arrays)
        full = self._inner.signature
        outputs: Sequence[Any] = self._inner.run(
            [
                _control_values(self._controls[spec.name], spec, words, ids, rows)
                if spec.name in self._controls
                else next(states if spec.name in self._names else given)
                for spec in full.inputs
            ]
        )
        named = {
            spec.name: check_batch(spec, array, rows)
            for spec, array in zip(full.outputs, outputs, strict=True)
        }
        kept = [named[self._names[spec.name]] for spec in full.inputs if spec.name in self._names]
        self.states.store(taken, kept)
        return [named[spec.name] for spec in self.signature.outputs]

    def fork(self) -> SequenceRuntime:
        """Return another runtime with the same states."""
        inner = self._inner.fork()
        assert isinstance(inner, ForkingRuntime), "a fork is as what it was made of"
        return SequenceRuntime(inner, self._names, self.states, self.signature.controls)


def sequence_runtime(
    name: str,
    inner: ForkingRuntime,
    settings: SequenceSettings,
    controls: Sequence[Control] = (),
    folder: Path = Path(),
) -> SequenceRuntime:
    """Keep the states of a model.

    Args:
        controls: What it is told of sequences.
        folder: Where the files are that its state begins with.

    Raises:
        LoadFailed: A state that it gives is not one that it takes, the file with which one begins is not right, or
            nothing is left for callers.
    """
    names = {one.input_name: one.output_name for one in settings.state}
    outputs = {spec.name: spec for spec in inner.signature.outputs}
    specs = [spec for spec in inner.signature.inputs if spec.name in names]
    for spec in specs:
        given = outputs[names[spec.name]]
        if (given.dtype, given.shape) != (spec.dtype, spec.shape):
            raise LoadFailed(
                f"{name} takes {_shown(spec)} as state and gives {_shown(given)}: both have to be alike"
            )
    files = {one.input_name: one.initial for one in settings.state}
    initial = [_initial(name, spec, folder, files[spec.name]) for spec in specs]
    states = SequenceStates(
        initial, settings.max_sequences, round(settings.max_idle_s * 1e9), time.monotonic_ns
    )
    runtime = SequenceRuntime(inner, names, states, controls)
    if not runtime.signature.inputs or not runtime.signature.outputs:
        raise LoadFailed(f"{name} has only state: callers would have nothing to send, or to get")
    return runtime


def _control_values(
    control: Control, spec: TensorSpec, words: np.ndarray | None, ids: Sequence[np.ndarray], rows: int
) -> np.ndarray:
    """Return the values of a control input; rows without a sequence get the off values."""
    if control.kind == "id":
        told = ids[0] if ids else np.zeros((rows, spec.elements), spec.dtype)
    elif words is None:
        told = np.full(rows, control.off)
    else:
        flags = words[:, 2]
        said = {"start": flags & SEQUENCE_START, "end": flags & SEQUENCE_END, "ready": words[:, 0]}[
            control.kind
        ]
        told = np.where(said != 0, control.on, control.off)
    return np.asarray(told, spec.dtype).reshape(rows, *spec.shape)


def _initial(model: str, spec: TensorSpec, folder: Path, name: Path | None) -> np.ndarray:
    """Return the initial state: zeros, or the numbers in a file."""
    if name is None:
        return np.zeros(spec.shape, spec.dtype)
    file = folder / name
    try:
        array = _array(file) if file.suffix == ".npy" else _numbers(file, spec)
    except (OSError, ValueError) as error:
        raise LoadFailed(f"the state {_shown(spec)} of {model} cannot begin with {file}: {error}") from error
    if (array.dtype, array.shape) != (np.dtype(spec.dtype), spec.shape):
        raise LoadFailed(
            f"the state {_shown(spec)} of {model} cannot begin with {file}: that holds "
            f"{array.dtype}{list(array.shape)}"
        )
    return array


def _array(file: Path) -> np.ndarray:
    """Read an array that numpy has saved. `np.load` would also take other files, such as archives."""
    return load_array(read_sample_file(file))


def _numbers(file: Path, spec: TensorSpec) -> np.ndarray:
    """The numbers in a file without a head, little-endian and in C order, as Triton has them."""
    content = read_sample_file(file)
    if len(content) != spec.row_bytes:
        raise ValueError(f"it has {len(content)} bytes, not {spec.row_bytes}")
    return np.frombuffer(content, np.dtype(spec.dtype).newbyteorder("<")).reshape(spec.shape)


def _shown(spec: TensorSpec) -> str:
    return f"{spec.name} {spec.dtype}{list(spec.shape)}"
