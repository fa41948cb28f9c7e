"""A model with state as a runtime of rows: the states of their sequences are put in, and taken out, here."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stoker.errors import LoadFailed
from stoker.runtimes.base import ForkingRuntime
from stoker.runtimes.sequence_states import SequenceStates
from stoker.sequences import END, START, Control
from stoker.settings.sequence import SequenceSettings
from stoker.tensors import TensorSpec, check_batch

__all__ = ["SequenceRuntime", "sequence_runtime"]


class SequenceRuntime:
    """Runs rows, each from the state of its sequence; see `KeepsStates`.

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
            inner: What runs rows with their state.
            names: Of the state tensors, outputs by inputs.
            states: Where the states are.
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
        taken = self.states.take(words, rows)
        given, states = iter(inputs), iter(taken.arrays)
        full = self._inner.signature
        outputs: Sequence[Any] = self._inner.run(
            [
                _told(self._controls[spec.name], spec, words, ids, rows)
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
        self.states.leave(taken, kept)
        return [named[spec.name] for spec in self.signature.outputs]

    def fork(self) -> SequenceRuntime:
        """A further one, with the same states."""
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
        name: Its name, for messages.
        inner: What runs rows with their state.
        settings: What its state is.
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


def _told(
    control: Control, spec: TensorSpec, words: np.ndarray | None, ids: Sequence[np.ndarray], rows: int
) -> np.ndarray:
    """What a model is told of its rows; those of no sequence begin none, end none, and are none."""
    if control.kind == "id":
        told = ids[0] if ids else np.zeros((rows, spec.elements), spec.dtype)
    elif words is None:
        told = np.full(rows, control.off)
    else:
        flags = words[:, 2]
        said = {"start": flags & START, "end": flags & END, "ready": words[:, 0]}[control.kind]
        told = np.where(said != 0, control.on, control.off)
    return np.asarray(told, spec.dtype).reshape(rows, *spec.shape)


def _initial(model: str, spec: TensorSpec, folder: Path, name: Path | None) -> np.ndarray:
    """What a state begins with: zeros, or the numbers in a file."""
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
    """What numpy has saved. Not by `np.load`, which takes more for files of its own, such as archives."""
    with file.open("rb") as saved:
        array: np.ndarray = np.lib.format.read_array(saved, allow_pickle=False)
    return array


def _numbers(file: Path, spec: TensorSpec) -> np.ndarray:
    """The numbers in a file without a head, little-endian and in C order, as Triton has them."""
    content = file.read_bytes()
    if len(content) != spec.row_bytes:
        raise ValueError(f"it has {len(content)} bytes, not {spec.row_bytes}")
    return np.frombuffer(content, np.dtype(spec.dtype).newbyteorder("<")).reshape(spec.shape)


def _shown(spec: TensorSpec) -> str:
    return f"{spec.name} {spec.dtype}{list(spec.shape)}"
