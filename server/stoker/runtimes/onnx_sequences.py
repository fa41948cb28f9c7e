"""Sessions of ONNX models with state, seen as if all that they take and give were rows.

Exports keep the batch in another axis of the state than the first, take what is the same in all requests as inputs,
and leave sizes free that a deployment knows. What a session looks like from here is settled by the settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import onnxruntime

from stoker.errors import LoadFailed
from stoker.runtimes.base import Runtime
from stoker.runtimes.onnx_sessions import DTYPES
from stoker.runtimes.sequences import SequenceRuntime
from stoker.sequences import ID_BYTES, TEXT_IDS, Control, text_of
from stoker.servable import Servable
from stoker.settings.sequence import ControlInput, SequenceSettings, StateTensor

__all__ = ["SequenceSession", "check_batched"]

_ROWS: Final = "rows"
_PACKED_TEXT: Final = "tensor(uint8)"
"""As what ids come that the model takes as texts."""
_TOLD: Final = {
    "start": "that a row begins its sequence",
    "end": "that a row ends its sequence",
    "ready": "that a row is one",
    "id": "of which sequence a row is",
}
_FLAG_DTYPES: Final = ("int32", "float32", "bool")
_ID_DTYPES: Final = ("uint64", "int64", "uint32", "int32", TEXT_IDS)
"""The types that Triton has for them."""


class _Value(NamedTuple):
    """An input or output, as ONNX Runtime describes them."""

    name: str
    type: str
    shape: list[int | str | None]


class SequenceSession:
    """A session whose inputs and outputs have the rows of a batch in their first axis.

    Attributes:
        controls: What the model is told of sequences.
    """

    def __init__(
        self, session: onnxruntime.InferenceSession, servable: Servable, settings: SequenceSettings
    ) -> None:
        """See a session so.

        Raises:
            LoadFailed: It has not what the settings name, or a size is free of which they say nothing.
        """
        self._session = session
        self._model = servable.name
        inputs = {value.name: value for value in session.get_inputs()}
        outputs = {value.name: value for value in session.get_outputs()}
        self._check_names(settings, inputs, outputs)
        self._constants = {
            name: _constant(self._model, inputs[name], number) for name, number in settings.constants.items()
        }
        self._axes: dict[str, int] = {}
        shapes: dict[str, list[int | str | None]] = {}
        for state in settings.state:
            axis, dims = self._state(state, inputs[state.input_name])
            self._axes[state.input_name] = self._axes[state.output_name] = axis
            shapes[state.input_name] = [_ROWS, *dims]
        self.controls = tuple(self._control(one, inputs[one.input_name]) for one in settings.controls)
        self._texts = {one.name for one in self.controls if one.dtype == TEXT_IDS}
        types = {name: _PACKED_TEXT if name in self._texts else value.type for name, value in inputs.items()}
        for control in self.controls:
            sizes = [ID_BYTES] if control.name in self._texts else [1] * (len(inputs[control.name].shape) - 1)
            shapes[control.name] = [_ROWS, *sizes]
        self._text_shapes = {name: [1] * (len(inputs[name].shape) - 1) for name in self._texts}
        for name, value in inputs.items():
            if name not in shapes and name not in self._constants:
                shapes[name] = [_ROWS, *self._row(value, settings.dims.get(name))]
        self._inputs = [_Value(name, types[name], shape) for name, shape in shapes.items()]
        self._outputs = [_Value(value.name, value.type, [_ROWS, None]) for value in outputs.values()]

    def _check_names(
        self, settings: SequenceSettings, inputs: Mapping[str, Any], outputs: Mapping[str, Any]
    ) -> None:
        asked = [one.input_name for one in settings.state] + [one.input_name for one in settings.controls]
        for side, names, known in (
            ("input", [*asked, *settings.dims, *settings.constants], inputs),
            ("output", [one.output_name for one in settings.state], outputs),
        ):
            for name in names:
                if name not in known:
                    raise LoadFailed(
                        f"{self._model} has no {side} {name!r}, which its sequence names; "
                        f"it has {', '.join(known)}"
                    )

    def _state(self, state: StateTensor, value: Any) -> tuple[int, Sequence[int]]:
        """The batch axis of a state, and its other sizes."""
        shape = list(value.shape or ())
        free = [axis for axis, size in enumerate(shape) if not isinstance(size, int)]
        axis = state.batch_axis
        if axis is None:
            axis = free[0] if len(free) == 1 else 0
        if axis >= len(shape) or isinstance(shape[axis], int):
            raise LoadFailed(
                f"the state {value.name!r} of {self._model} has the sizes {shape}, of which axis {axis} is no free "
                "batch axis: name another with batch_axis, or export the model with one"
            )
        return axis, self._sizes(value, [*shape[:axis], *shape[axis + 1 :]], state.dims, "dims of its state")

    def _control(self, control: ControlInput, value: Any) -> Control:
        """What is told by an input, and as what."""
        dtype, shape = DTYPES.get(value.type, value.type), list(value.shape or ())
        name = f"the input {value.name!r} of {self._model}, by which it is to be told {_TOLD[control.kind]},"
        allowed = _ID_DTYPES if control.kind == "id" else _FLAG_DTYPES
        if dtype not in allowed or (control.dtype and dtype != control.dtype):
            raise LoadFailed(f"{name} holds {dtype}, not {control.dtype or ' or '.join(allowed)}")
        if not shape or isinstance(shape[0], int) or any(size not in (1, None) for size in shape[1:]):
            raise LoadFailed(f"{name} has the sizes {shape}: it has to have one element a row, as [-1, 1]")
        if control.kind != "id" and not all(_fits(number, dtype) for number in (control.off, control.on)):
            raise LoadFailed(f"{name} holds {dtype}, which {control.off:g} and {control.on:g} do not fit")
        return Control(value.name, control.kind, dtype, control.off, control.on)

    def _row(self, value: Any, dims: Sequence[int] | None) -> Sequence[int]:
        shape = list(value.shape or ())
        if not shape or isinstance(shape[0], int):
            raise LoadFailed(
                f"the input {value.name!r} of {self._model} has no batch axis: give its value with constants, or "
                "export the model with one"
            )
        return self._sizes(value, shape[1:], dims, "dims")

    def _sizes(self, value: Any, shape: Sequence[Any], dims: Sequence[int] | None, key: str) -> Sequence[int]:
        sizes = list(shape if dims is None else dims)
        fits = len(sizes) == len(shape) and all(
            not isinstance(known, int) or known == size for known, size in zip(shape, sizes, strict=True)
        )
        if not fits or not all(isinstance(size, int) for size in sizes):
            shown = [size if isinstance(size, int) else "?" for size in shape]
            raise LoadFailed(
                f"a row of {value.name!r} of {self._model} has the sizes {shown}: say what they are with {key}"
                if dims is None
                else f"a row of {value.name!r} of {self._model} has the sizes {shown}, not {list(dims)}"
            )
        return sizes

    def get_inputs(self) -> list[_Value]:
        """What it takes, the state among it."""
        return self._inputs

    def get_outputs(self) -> list[_Value]:
        """What it gives; sizes of rows are found out by running it."""
        return self._outputs

    def run(
        self,
        names: Sequence[str],
        feeds: Mapping[str, np.ndarray],
        options: onnxruntime.RunOptions | None = None,
    ) -> list[np.ndarray]:
        """Run one batch; see `onnxruntime.InferenceSession.run`."""
        given = {
            name: self._as_texts(name, array)
            if name in self._texts
            else np.ascontiguousarray(np.moveaxis(array, 0, self._axes[name]))
            if name in self._axes
            else array
            for name, array in feeds.items()
        }
        outputs = self._session.run(names, {**given, **self._constants}, options)
        return [
            np.moveaxis(array, self._axes[name], 0) if name in self._axes else array
            for name, array in zip(names, outputs, strict=True)
        ]

    def _as_texts(self, name: str, packed: np.ndarray) -> np.ndarray:
        """Ids as the texts that the model takes."""
        texts = np.empty(len(packed), object)
        texts[:] = [text_of(row.tobytes()) for row in packed]
        return texts.reshape(len(packed), *self._text_shapes[name])


def check_batched(servable: Servable, runtime: Runtime) -> None:
    """Raise LoadFailed where the rows of a model with state do not run as batches."""
    if isinstance(runtime, SequenceRuntime):
        return
    verdict = runtime.signature.verdict
    reason = (
        "not all outputs are rows of fixed sizes"
        if verdict is None or verdict.batched
        else str(verdict.reason)
    )
    raise LoadFailed(
        f"{servable.name} keeps state for sequences, whose rows have to share batches, and these cannot: {reason}"
    )


def _fits(number: float, dtype: str) -> bool:
    """Whether an input holds a number: fractions are rounded, where there are any."""
    with np.errstate(over="ignore", invalid="ignore"):
        held = np.asarray(number).astype(dtype)
    return bool(np.isfinite(held)) if held.dtype.kind == "f" else held == number


def _constant(model: str, value: Any, number: float) -> np.ndarray:
    sizes = [size if isinstance(size, int) else 1 for size in value.shape or ()]
    try:
        array = np.full(sizes, number, DTYPES.get(value.type, value.type))
    except (TypeError, ValueError, OverflowError):
        array = None
    if array is None or (array.dtype.kind != "f" and not np.all(array == number)):
        raise LoadFailed(
            f"the constant {number!r} does not fit the input {value.name!r} of {model}: {value.type}"
        )
    return array
