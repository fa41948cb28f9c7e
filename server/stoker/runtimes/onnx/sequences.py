"""Sessions of ONNX models with state, as sessions whose tensors all have their rows in the first axis.

An export may have the batch in another axis of the state, take constants as inputs, leave sizes free that a
deployment knows, or have batches of one row alone. The settings of the sequence say how it does.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import onnxruntime

from stoker.deployment import Declaration, DeclaredTensor, Deployment
from stoker.errors import LoadFailed
from stoker.runtimes.base import Runtime
from stoker.runtimes.onnx.sessions import DTYPES
from stoker.runtimes.sequence_runtime import SequenceRuntime
from stoker.sequence_steps import ID_BYTES, TEXT_IDS, Control, sequence_id_of
from stoker.settings.sequence import ControlInput, SequenceSettings, StateTensor
from stoker.system.resources import require_memory
from stoker.tensors import TensorInfo

logger = logging.getLogger(__name__)

_ROWS: Final = "rows"
_PACKED_TEXT: Final = "tensor(uint8)"
"""The type of ids that the model takes as texts: packed bytes."""
_FLAG_DTYPES: Final = ("int32", "float32", "bool")
_ID_DTYPES: Final = ("uint64", "int64", "uint32", "int32", TEXT_IDS)
"""The types of flags and ids in Triton."""


class _Value(NamedTuple):
    """An input or output, as ONNX Runtime describes them."""

    name: str
    type: str
    shape: list[int | str | None]


class SequenceSession:
    """A session whose inputs and outputs have the rows of a batch in their first axis.

    If the batch axis of the model has the size 1, the rows of a batch run one after the other.

    Attributes:
        controls: The inputs that the server fills in.
        hidden: The names of the tensors that callers neither send nor get.
    """

    def __init__(
        self, session: onnxruntime.InferenceSession, deployment: Deployment, settings: SequenceSettings
    ) -> None:
        """Check the session against the settings, and describe its rows.

        Raises:
            LoadFailed: The session lacks a tensor of the settings, or the settings do not fix one of its free sizes.
        """
        self._session = session
        self._model = deployment.name
        declaration = deployment.declaration or Declaration("")
        self._one_by_one = declaration.batched is False
        inputs = {value.name: value for value in session.get_inputs()}
        outputs = {value.name: value for value in session.get_outputs()}
        self._check_names(settings, inputs, outputs)
        self._constants = {
            name: _constant(self._model, inputs[name], number) for name, number in settings.constants.items()
        }
        self._axes: dict[str, int] = {}
        shapes: dict[str, list[int | str | None]] = {}
        for state in settings.state:
            axis, dims = self._describe_state(state, inputs[state.input_name])
            self._axes[state.input_name] = self._axes[state.output_name] = axis
            shapes[state.input_name] = [_ROWS, *dims]
        self.controls = tuple(
            self._describe_control(control, inputs[control.input_name]) for control in settings.controls
        )
        self._texts = {one.name for one in self.controls if one.dtype == TEXT_IDS}
        types = {name: _PACKED_TEXT if name in self._texts else value.type for name, value in inputs.items()}
        for control in self.controls:
            sizes = [ID_BYTES] if control.name in self._texts else [1] * (len(inputs[control.name].shape) - 1)
            shapes[control.name] = [_ROWS, *sizes]
        self._text_shapes = {name: [1] * (len(inputs[name].shape) - 1) for name in self._texts}
        for name, value in inputs.items():
            if name not in shapes and name not in self._constants:
                shapes[name] = [_ROWS, *self._row_sizes(value, settings.dims.get(name))]
        self._inputs = [_Value(name, types[name], shape) for name, shape in shapes.items()]
        declared = {
            one.name: one.shape if one.model_shape is None else one.model_shape for one in declaration.outputs
        }
        self._outputs = [
            _Value(value.name, value.type, self._output_shape(value, declared)) for value in outputs.values()
        ]
        controls = {control.name for control in self.controls}
        self.hidden = frozenset(self._axes) | frozenset(self._constants) | controls
        if self._one_by_one:
            logger.info("%s runs one row at a time: its batch axis has the size 1", self._model)

    def _output_shape(self, value: Any, declared: Mapping[str, Sequence[int]]) -> list[int | str | None]:
        """Return the shape of an output from the file or, if the file has none, from the declaration."""
        if value.name in self._axes:
            return [_ROWS, None]
        shape = list(value.shape or declared.get(value.name) or (-1, -1))
        return [_ROWS, *(size if isinstance(size, int) and size >= 0 else None for size in shape[1:])]

    def _check_names(
        self, settings: SequenceSettings, inputs: Mapping[str, Any], outputs: Mapping[str, Any]
    ) -> None:
        filled = [state.input_name for state in settings.state]
        filled += [control.input_name for control in settings.controls]
        for side, names, known in (
            ("input", [*filled, *settings.dims, *settings.constants], inputs),
            ("output", [one.output_name for one in settings.state], outputs),
        ):
            for name in names:
                if name not in known:
                    raise LoadFailed(
                        f"{self._model} has no {side} {name!r}, which its sequence names; "
                        f"it has {', '.join(known)}"
                    )

    def _describe_state(self, state: StateTensor, value: Any) -> tuple[int, Sequence[int]]:
        """Return the batch axis of a state, and its other sizes."""
        if state.dtype and DTYPES.get(value.type) != state.dtype:
            raise LoadFailed(
                f"the state {value.name!r} of {self._model} holds {DTYPES.get(value.type, value.type)}, not "
                f"{state.dtype}: correct its configuration"
            )
        shape = list(value.shape or ())
        free = [axis for axis, size in enumerate(shape) if not isinstance(size, int)]
        free = free or [axis for axis, size in enumerate(shape) if size == 1]
        axis = state.batch_axis
        if axis is None:
            axis = free[0] if len(free) == 1 else 0
        if not self._is_batch_axis(shape, axis):
            raise LoadFailed(
                f"the state {value.name!r} of {self._model} has the sizes {shape}, of which axis {axis} is neither "
                "free nor 1, and so no batch axis: name another with batch_axis, or export the model with one"
            )
        return axis, self._sizes(value, [*shape[:axis], *shape[axis + 1 :]], state.dims, "dims of its state")

    def _is_batch_axis(self, shape: Sequence[Any], axis: int) -> bool:
        """Whether an axis can have the rows of a batch; an axis of the size 1 has a single row."""
        if axis >= len(shape) or (isinstance(shape[axis], int) and shape[axis] != 1):
            return False
        self._one_by_one |= isinstance(shape[axis], int)
        return True

    def _describe_control(self, control: ControlInput, value: Any) -> Control:
        """Return a control input of the model, with its dtype."""
        dtype, shape = DTYPES.get(value.type, value.type), list(value.shape or ())
        name = f"the input {value.name!r} of {self._model}, its control {control.kind!r},"
        allowed = _ID_DTYPES if control.kind == "id" else _FLAG_DTYPES
        if dtype not in allowed or (control.dtype and dtype != control.dtype):
            raise LoadFailed(f"{name} holds {dtype}, not {control.dtype or ' or '.join(allowed)}")
        if not self._is_batch_axis(shape, 0) or any(size not in (1, None) for size in shape[1:]):
            raise LoadFailed(f"{name} has the sizes {shape}: it has to have one element a row, as [-1, 1]")
        if control.kind != "id" and not all(_fits(number, dtype) for number in (control.off, control.on)):
            raise LoadFailed(f"{name} holds {dtype}, which {control.off:g} and {control.on:g} do not fit")
        return Control(value.name, control.kind, dtype, control.off, control.on)

    def _row_sizes(self, value: Any, dims: Sequence[int] | None) -> Sequence[int]:
        shape = list(value.shape or ())
        if not self._is_batch_axis(shape, 0):
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
                f"a row of {value.name!r} of {self._model} has the sizes {shown}: set them with {key}"
                if dims is None
                else f"a row of {value.name!r} of {self._model} has the sizes {shown}, not {list(dims)}"
            )
        return sizes

    def get_inputs(self) -> list[_Value]:
        """Return the inputs, including the state."""
        return self._inputs

    def get_outputs(self) -> list[_Value]:
        """Return the outputs; running the model shows the sizes of their rows."""
        return self._outputs

    def run(
        self,
        names: Sequence[str],
        feeds: Mapping[str, np.ndarray],
        options: onnxruntime.RunOptions | None = None,
    ) -> list[np.ndarray]:
        """Run one batch; see `onnxruntime.InferenceSession.run`."""
        rows = len(next(iter(feeds.values()), ()))
        if not self._one_by_one or rows == 1:
            return self._run(names, feeds, options)
        answers = [
            self._run(names, {name: array[row : row + 1] for name, array in feeds.items()}, options)
            for row in range(rows)
        ]
        return [np.concatenate(arrays) for arrays in zip(*answers, strict=True)]

    def _run(
        self, names: Sequence[str], feeds: Mapping[str, np.ndarray], options: onnxruntime.RunOptions | None
    ) -> list[np.ndarray]:
        inputs = {
            name: self._as_texts(name, array)
            if name in self._texts
            else np.ascontiguousarray(np.moveaxis(array, 0, self._axes[name]))
            if name in self._axes
            else array
            for name, array in feeds.items()
        }
        outputs = self._session.run(names, {**inputs, **self._constants}, options)
        return [
            np.moveaxis(array, self._axes[name], 0) if name in self._axes else array
            for name, array in zip(names, outputs, strict=True)
        ]

    def _as_texts(self, name: str, packed: np.ndarray) -> np.ndarray:
        """Return packed ids as texts."""
        texts = np.empty(len(packed), object)
        texts[:] = [sequence_id_of(row.tobytes()) for row in packed]
        return texts.reshape(len(packed), *self._text_shapes[name])


def declared_rows(
    declaration: Declaration | None,
    rows: SequenceSession,
    inputs: Iterable[TensorInfo],
    outputs: Iterable[TensorInfo],
) -> Declaration | None:
    """Return the declaration of a model with state, with the shapes of rows and with its hidden tensors.

    Raises:
        LoadFailed: A request without a batch axis is declared to have more than one row.
    """
    if declaration is None:
        return None

    def complete(
        declared: Sequence[DeclaredTensor], infos: Iterable[TensorInfo]
    ) -> tuple[DeclaredTensor, ...]:
        if not declared:
            return ()
        ranks = {info.name: len(info.shape) for info in infos}
        visible = [
            one if declaration.batched else _as_row(declaration, one, ranks.get(one.name, 0))
            for one in declared
            if one.name not in rows.hidden
        ]
        hidden = (info for info in infos if info.name in rows.hidden)
        return (*visible, *(DeclaredTensor(info.name, info.dtype, info.shape) for info in hidden))

    return Declaration(
        declaration.source,
        complete(declaration.inputs, inputs),
        complete(declaration.outputs, outputs),
        batched=True,
    )


def _as_row(declaration: Declaration, declared: DeclaredTensor, rank: int) -> DeclaredTensor:
    """Return the tensor of a single row as one of a batch. Without `max_batch_size` it may lack the first axis."""
    source = declaration.source
    shapes = [declared.shape, declared.shape if declared.model_shape is None else declared.model_shape]
    if declaration.batched is None and len(shapes[1]) < rank:
        shapes = [(-1, *shape) for shape in shapes]
    if not all(shape[:1] in ((1,), (-1,)) for shape in shapes):
        raise LoadFailed(
            f"{source}: max_batch_size is 0, so the dims of {declared.name} have to begin with 1, because a "
            f"request of a sequence has one row; they are {list(declared.shape)}"
        )
    shape, model_shape = ((-1, *shape[1:]) for shape in shapes)
    return msgspec.structs.replace(
        declared, shape=shape, model_shape=None if model_shape == shape else model_shape
    )


def check_batched(deployment: Deployment, runtime: Runtime) -> None:
    """Raise LoadFailed if the rows of a model with state do not run as batches."""
    if isinstance(runtime, SequenceRuntime):
        return
    isolation = runtime.signature.isolation
    reason = (
        "not all outputs are rows of fixed sizes"
        if isolation is None or isolation.batched
        else str(isolation.reason)
    )
    raise LoadFailed(
        f"{deployment.name} keeps state for sequences, whose rows have to share batches, and these cannot: {reason}"
    )


def _fits(number: float, dtype: str) -> bool:
    """Whether a dtype holds a number; types of floats may round it."""
    with np.errstate(over="ignore", invalid="ignore"):
        converted = np.asarray(number).astype(dtype)
    return bool(np.isfinite(converted)) if converted.dtype.kind == "f" else converted == number


def _constant(model: str, value: Any, number: float) -> np.ndarray:
    sizes = [size if isinstance(size, int) else 1 for size in value.shape or ()]
    require_memory(8 * math.prod(sizes), f"the constant for the input {value.name!r} of {model}")
    try:
        array = np.full(sizes, number, DTYPES.get(value.type, value.type))
    except (TypeError, ValueError, OverflowError):
        array = None
    if array is None or (array.dtype.kind != "f" and not np.all(array == number)):
        raise LoadFailed(
            f"the constant {number!r} does not fit the input {value.name!r} of {model}: {value.type}"
        )
    return array
