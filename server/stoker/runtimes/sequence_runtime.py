"""A model with state as a runtime of rows: each row gets the state of its sequence, and the new state is stored.

See decision 42.
"""

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
from stoker.samples.sample_files import load_array
from stoker.sequence_steps import SEQUENCE_END, SEQUENCE_START, Control
from stoker.settings.files import read_sample_file
from stoker.settings.sequence import SequenceSettings
from stoker.tensors import TensorSpec, check_batch


class SequenceRuntime:
    """Runs rows, each from the state of its sequence; see `StatefulRuntime`.

    If the model takes ids, they precede the words of the rows.

    Attributes:
        signature: The inputs and outputs without the state and without control inputs.
        states: The states of all instances.
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
            names: The output for each input of the state.
            controls: The inputs that the server fills in.
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
        self._callers_inputs = len(self.signature.inputs)

    def run(self, inputs: Sequence[Any]) -> Sequence[np.ndarray]:
        """Run one batch. The states change only if the whole batch has run and its outputs fit the signature."""
        rows = len(inputs[0])
        *ids, words = inputs[self._callers_inputs :] or (None,)
        loaded = self.states.load(words, rows)
        callers, states = iter(inputs), iter(loaded.arrays)
        full = self._inner.signature
        outputs: Sequence[Any] = self._inner.run(
            [
                _control_values(self._controls[spec.name], spec, words, ids, rows)
                if spec.name in self._controls
                else next(states if spec.name in self._names else callers)
                for spec in full.inputs
            ]
        )
        named = {
            spec.name: check_batch(spec, array, rows)
            for spec, array in zip(full.outputs, outputs, strict=True)
        }
        stored = [named[self._names[spec.name]] for spec in full.inputs if spec.name in self._names]
        self.states.store(loaded, stored)
        return [named[spec.name] for spec in self.signature.outputs]

    def fork(self) -> SequenceRuntime:
        """Return another runtime with the same states."""
        inner = self._inner.fork()
        assert isinstance(inner, ForkingRuntime), "a fork has the class of its origin"
        return SequenceRuntime(inner, self._names, self.states, self.signature.controls)


def keep_state(
    name: str,
    inner: ForkingRuntime,
    settings: SequenceSettings,
    controls: Sequence[Control] = (),
    folder: Path = Path(),
) -> SequenceRuntime:
    """Wrap a model with state in a runtime that keeps the states of its sequences.

    Args:
        controls: The inputs that the server fills in.
        folder: The folder of the files with initial states.

    Raises:
        LoadFailed: A state differs between input and output, its initial file does not fit, or no input or output is
            left for callers.
    """
    names = {one.input_name: one.output_name for one in settings.state}
    outputs = {spec.name: spec for spec in inner.signature.outputs}
    specs = [spec for spec in inner.signature.inputs if spec.name in names]
    for spec in specs:
        output = outputs[names[spec.name]]
        if (output.dtype, output.shape) != (spec.dtype, spec.shape):
            raise LoadFailed(
                f"{name} takes {_describe(spec)} as state and gives {_describe(output)}: both have to be alike"
            )
    files = {one.input_name: one.initial for one in settings.state}
    initial = [_initial_state(name, spec, folder, files[spec.name]) for spec in specs]
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
        values = ids[0] if ids else np.zeros((rows, spec.elements), spec.dtype)
    elif words is None:
        values = np.full(rows, control.off)
    else:
        flags = words[:, 2]
        is_on = {"start": flags & SEQUENCE_START, "end": flags & SEQUENCE_END, "ready": words[:, 0]}
        values = np.where(is_on[control.kind] != 0, control.on, control.off)
    return np.asarray(values, spec.dtype).reshape(rows, *spec.shape)


def _initial_state(model: str, spec: TensorSpec, folder: Path, name: Path | None) -> np.ndarray:
    """Return the initial state: zeros, or the numbers in a file."""
    if name is None:
        return np.zeros(spec.shape, spec.dtype)
    file = folder / name
    try:
        array = load_array(read_sample_file(file)) if file.suffix == ".npy" else _read_numbers(file, spec)
    except (OSError, ValueError) as error:
        raise LoadFailed(
            f"the state {_describe(spec)} of {model} cannot begin with {file}: {error}"
        ) from error
    if (array.dtype, array.shape) != (np.dtype(spec.dtype), spec.shape):
        raise LoadFailed(
            f"the state {_describe(spec)} of {model} cannot begin with {file}: that holds "
            f"{array.dtype}{list(array.shape)}"
        )
    return array


def _read_numbers(file: Path, spec: TensorSpec) -> np.ndarray:
    """Read a file of numbers without a head, little-endian and in C order, as in Triton."""
    content = read_sample_file(file)
    if len(content) != spec.row_bytes:
        raise ValueError(f"it has {len(content)} bytes, not {spec.row_bytes}")
    return np.frombuffer(content, np.dtype(spec.dtype).newbyteorder("<")).reshape(spec.shape)


def _describe(spec: TensorSpec) -> str:
    return f"{spec.name} {spec.dtype}{list(spec.shape)}"
