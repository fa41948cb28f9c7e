"""Inputs and outputs of models: tensor specifications and signatures, per row.

The batch axis is never part of a shape here: a row is one element of it, and the unit of scheduling.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Literal

import msgspec
import numpy as np

from stoker.errors import LoadFailed
from stoker.row_isolation import RowIsolation
from stoker.script_form import ScriptForm
from stoker.sequence_steps import ID_BYTES, SEQUENCE_WORDS, TEXT_IDS, Control
from stoker.system.extras import how_to_install

DEFAULT_SIGNATURE: Final = "serving_default"
"""TensorFlow's name of the signature that is used if a request names none."""

Method = Literal["predict", "classify", "regress"]
"""The kinds of signatures in TensorFlow."""

_MOST_AXES: Final = 32

NUMERIC_DTYPES = frozenset(
    [
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "bfloat16",
        "float32",
        "float64",
    ]
)


def number_kind(dtype: np.dtype[Any]) -> str:
    """Return numpy's letter for what a dtype holds; `f` also for `bfloat16`, which numpy calls `V`."""
    return "f" if dtype.kind == "V" else dtype.kind


def import_dtype(name: str) -> None:
    """Let numpy know a dtype by its name: `bfloat16` is not its own. Every tensor does this for its dtype.

    Raises:
        LoadFailed: The package that has `bfloat16` is not installed.
    """
    if name == "bfloat16":
        try:
            import ml_dtypes  # noqa: F401  # processes without such tensors are spared the import
        except ImportError as error:
            raise LoadFailed(
                f"bfloat16 needs ml_dtypes, which is not installed; {how_to_install('bfloat16')}"
            ) from error


@dataclass(frozen=True)
class TensorSpec:
    """One input or output, as stored per row.

    Attributes:
        dtype: Name of the numpy dtype; `uint8` if `variable`.
        shape: Shape of one row, without the batch axis.
        variable: The row holds up to `shape[0]` bytes, and its length is stored beside it. Used for whole request
            bodies and for answers that are JSON text.
        labels: Names of the columns of an output, such as the classes of scores; empty if unknown.
        as_objects: Whether JSON has objects with these labels as keys instead of the innermost lists.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    variable: bool = False
    labels: tuple[str, ...] = ()
    as_objects: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in NUMERIC_DTYPES:
            raise ValueError(f"tensor {self.name!r}: dtype {self.dtype!r} is not one of the numeric dtypes")
        if any(size < 0 for size in self.shape):
            raise ValueError(f"tensor {self.name!r}: row shape {self.shape} has a negative size")
        import_dtype(self.dtype)
        if self.variable and (self.dtype != "uint8" or len(self.shape) != 1):
            raise ValueError(f"tensor {self.name!r}: a variable row is a vector of uint8")

    @cached_property
    def kind(self) -> str:
        """See `number_kind`."""
        return number_kind(self.numpy_dtype)

    @cached_property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype itself: comparing it takes a hundredth of the time of comparing names."""
        return np.dtype(self.dtype)

    @cached_property
    def elements(self) -> int:
        """Number of elements in one row."""
        return math.prod(self.shape)

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of one row, without padding."""
        return self.elements * np.dtype(self.dtype).itemsize

    def describe_row(self) -> str:
        """Describe one row for error messages: `784 numbers`, `28 × 28 numbers`."""
        kind = {"b": "booleans", "i": "integers", "u": "non-negative integers"}.get(self.kind)
        if not self.shape:
            return f"one {(kind or 'numbers')[:-1]}"
        return f"{' × '.join(map(str, self.shape))} {kind or 'numbers'}"


_SEQUENCE: Final = TensorSpec("sequence", "int64", (SEQUENCE_WORDS,))


@dataclass(frozen=True)
class TensorInfo:
    """One tensor as a model declares it, with its batch axis.

    Attributes:
        dtype: Name of the numpy dtype, or `string`.
        shape: Its shape; -1 for sizes that may change from request to request.
        any_rank: Whether it may have any number of axes; then `shape` is empty, or that of most requests.
        nullable: Whether it is of a table, in which null stands for a missing value: NaN among numbers, and
            `wire.packed.MISSING` among strings.
        example: The JSON of an element that the model answers; empty where it does not say.
        optional: Whether a request of the Open Inference Protocol may leave this input out.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    any_rank: bool = False
    labels: tuple[str, ...] = ()
    as_objects: bool = False
    nullable: bool = False
    example: str = ""
    optional: bool = False

    def __post_init__(self) -> None:
        import_dtype(self.dtype)

    @cached_property
    def kind(self) -> str:
        """See `number_kind`; `O` for strings."""
        return "O" if self.dtype == "string" else number_kind(np.dtype(self.dtype))

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether an array of this shape fits."""
        if self.any_rank:
            return len(shape) <= _MOST_AXES
        return len(shape) == len(self.shape) and all(
            size in (-1, given) for size, given in zip(self.shape, shape, strict=True)
        )

    def completed(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return a shape with the last axes of size 1 that it lacks (a scalar lacks all); None if it cannot fit."""
        whole = shape + (1,) * (0 if self.any_rank else len(self.shape) - len(shape))
        left_out = self.shape[max(1, len(shape)) :]
        return whole if self.fits(whole) and all(size == 1 for size in left_out) else None

    def __str__(self) -> str:
        if self.any_rank:
            return f"{self.name} {self.dtype}[...]"
        sizes = ",".join("?" if size < 0 else str(size) for size in self.shape)
        return f"{self.name} {self.dtype}[{sizes}]"


@dataclass(frozen=True)
class ModelTensors:
    """The inputs and outputs of a model, as it declares them.

    Attributes:
        outputs: The outputs; -1 for sizes that the model does not declare.
        batched: Whether the first axis of all of them is the batch axis, so that requests may be concatenated.
        sequences: Whether requests continue from the state of a sequence, which is not an input.
        estimator: Whether they are those of an estimator of scikit-learn: a request is for one output, which is a
            method and the first if none is named, and inputs may come as what converts without loss.
        table: The columns of the table that it was fitted on, where each is an input or is not looked at; else empty.
        takes_facts: Whether the model gets what a request says beside its tensors: a packed request of the Open
            Inference Protocol then holds `wire.packed.FACTS`.
    """

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    batched: bool
    sequences: bool = False
    estimator: bool = False
    table: tuple[str, ...] = ()
    takes_facts: bool = False


@dataclass(frozen=True)
class NamedSignature:
    """One of the signatures of a SavedModel.

    Attributes:
        method: Its kind: `classify` and `regress` take serialized `tf.train.Example`.
    """

    name: str
    tensors: ModelTensors
    method: Method = "predict"


@dataclass(frozen=True)
class Signature:
    """The inputs and outputs of a deployment, per row.

    Attributes:
        inputs: Specifications of the inputs, in the model's order.
        outputs: Specifications of the outputs, in the model's order.
        takes: `rows` when requests are decoded into tensors, `body` when the deployment gets the request body
            as it came (an undecorated `run(raw_data)`); then there is one variable input and one output, and
            their rows hold `wire.script_requests.ScriptRequest` and `ScriptAnswer`; `tensors` when a row is one
            request with all its tensors, whatever their shapes (`wire.packed`).
        script: How the entry script is called, where `takes` is `body`.
        tensors: What the model takes and gives, where `takes` is `tensors`.
        isolation: How it is known whether its rows may share a batch with those of others; None before it is found.
        signatures: The signatures of a SavedModel that are served, first the one that is meant where none is named;
            empty for other models. Where there are several, `takes` is `tensors`, and a row says which one it is for.
        sequences: Whether a row goes on from the state of its sequence; then `takes` is `rows` or `body`.
        controls: Inputs that the server fills with what it knows of a row's sequence; they are not in `inputs`.
        method: The signature that Azure's JSON means where its `method` names none, for models of scikit-learn, whose
            answers are by the name of the method; empty for all others.
        callers: The tensors as callers see them, where frontends make other rows of theirs: of texts, tokens.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    takes: Literal["rows", "body", "tensors"] = "rows"
    script: ScriptForm | None = None
    tensors: ModelTensors | None = None
    # Excluded from comparison: replicas of one model may have been tested with different numbers of batches.
    isolation: RowIsolation | None = field(default=None, compare=False)
    signatures: tuple[NamedSignature, ...] = ()
    sequences: bool = False
    controls: tuple[Control, ...] = ()
    method: str = ""
    callers: ModelTensors | None = None

    @property
    def keeps_state(self) -> bool:
        """Whether requests change the model, so that each runs once, and none but those of callers."""
        return self.isolation is not None and self.isolation.keeps_state

    @property
    def id_dtype(self) -> str:
        """The dtype of sequence ids as the model gets them: a numpy dtype, or `string`; empty if it does not."""
        return next((control.dtype for control in self.controls if control.kind == "id"), "")

    @property
    def stored_inputs(self) -> tuple[TensorSpec, ...]:
        """The arrays of an arena's row: its inputs, followed by the words for its sequence.

        If the model gets the id, it is stored before these words.
        """
        if not self.sequences:
            return self.inputs
        return (*self.inputs, *map(_id_spec, filter(None, [self.id_dtype])), _SEQUENCE)

    @cached_property
    def named(self) -> tuple[NamedSignature, ...]:
        """The signatures, also for models other than SavedModels; empty for scripts that take whole bodies."""
        if self.signatures or self.model_tensors is None:
            return self.signatures
        return (NamedSignature(DEFAULT_SIGNATURE, self.model_tensors),)

    @cached_property
    def model_tensors(self) -> ModelTensors | None:
        """The tensors as declared by the model; None for scripts that take whole bodies."""
        if self.callers is not None:
            return self.callers
        if self.takes != "rows":
            return self.tensors
        inputs, outputs = (
            tuple(
                TensorInfo(spec.name, "string", (-1,))
                if spec.variable
                else TensorInfo(
                    spec.name, spec.dtype, (-1, *spec.shape), labels=spec.labels, as_objects=spec.as_objects
                )
                for spec in specs
            )
            for specs in (self.inputs, self.outputs)
        )
        return ModelTensors(inputs, outputs, batched=True, sequences=self.sequences)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row over all inputs and outputs."""
        return sum(spec.row_bytes for spec in (*self.inputs, *self.outputs))

    def with_answers(self, size_bytes: int) -> Signature:
        """A copy with room for answers of at least this many bytes; `takes` has to be `tensors`."""
        (answer,) = self.outputs
        return replace(self, outputs=(replace(answer, shape=(max(size_bytes, *answer.shape),)),))

    def reads_as(self, other: Signature) -> bool:
        """Whether requests decoded for the other signature may run here: the room for answers may differ."""
        return self == other or (self.takes == "tensors" and self == replace(other, outputs=self.outputs))

    def to_json(self) -> dict[str, Any]:
        """Return the signature in JSON types."""
        content: dict[str, Any] = msgspec.to_builtins(self)
        return content

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Signature:
        """Inverse of `to_json`; also reads what earlier versions have written.

        Raises:
            msgspec.ValidationError: It is no signature.
        """
        if "verdict" in value:
            value = {**value, "isolation": value["verdict"]}
        tensors = [value.get("tensors"), *(named["tensors"] for named in value.get("signatures", ()))]
        if any(each and not _names_fields(each) for each in tensors):
            value = _with_named_fields(value)
        return msgspec.convert(value, cls)

    def __str__(self) -> str:
        if self.takes == "body":
            return _SCRIPTS[self.script.kind if self.script is not None else "string"]
        if (shown := self.callers or self.tensors) is not None:
            sides = (shown.inputs, shown.outputs)
            return " -> ".join(", ".join(map(str, side)) for side in sides)
        return f"{_side(self.inputs)} -> {_side(self.outputs)}"


_EARLIER_INFO: Final = ("name", "dtype", "shape", "any_rank", "labels", "as_objects", "nullable", "example")
"""The order in which earlier versions have written a `TensorInfo`, as a list; the last ones may be missing."""


def _names_fields(tensors: Mapping[str, Any]) -> bool:
    return all(isinstance(info, Mapping) for side in ("inputs", "outputs") for info in tensors[side])


def _with_named_fields(value: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON of a signature with an object for each tensor, where earlier versions have written a list."""

    def renewed(tensors: Mapping[str, Any]) -> dict[str, Any]:
        sides = {
            side: [dict(zip(_EARLIER_INFO, info, strict=False)) for info in tensors[side]]
            for side in ("inputs", "outputs")
        }
        return {**tensors, **sides}

    tensors = value.get("tensors")
    signatures = [{**named, "tensors": renewed(named["tensors"])} for named in value.get("signatures", ())]
    return {**value, "tensors": tensors and renewed(tensors), "signatures": signatures}


def _id_spec(dtype: str) -> TensorSpec:
    return (
        TensorSpec("sequence_id", "uint8", (ID_BYTES,))
        if dtype == TEXT_IDS
        else TensorSpec("sequence_id", dtype, ())
    )


_SCRIPTS: Final = {
    "string": "run(raw_data): the request body as text",
    "schema": "run(...): the parts of the request body that its decorators name",
    "raw": "run(request): the whole request",
}


def _side(specs: tuple[TensorSpec, ...]) -> str:
    return ", ".join(
        f"{spec.name} JSON"
        if spec.variable
        else f"{spec.name} {spec.dtype}[{','.join(['n', *map(str, spec.shape)])}]"
        for spec in specs
    )


def check_batch(spec: TensorSpec, batch: np.ndarray, rows: int) -> np.ndarray:
    """Return `batch` as `rows` rows of `spec`.

    Raises:
        ValueError: It has another shape.
        TypeError: Its dtype cannot be cast to the specification's without loss of kind.
    """
    if batch.shape != (rows, *spec.shape):
        raise ValueError(
            f"output {spec.name!r} has shape {list(batch.shape)} for a batch of {rows}, "
            f"expected {[rows, *spec.shape]}"
        )
    if batch.dtype != spec.numpy_dtype:
        return batch.astype(spec.numpy_dtype, casting="same_kind")
    return batch


_SMALL_SIZE: Final = 8192
"""For up to this many numbers the dot product with themselves is the fastest check, and numpy starts no threads."""


def all_finite(array: np.ndarray) -> bool:
    """Whether an array has neither NaN nor infinities; integers and strings are always finite."""
    if number_kind(array.dtype) != "f":
        return True
    # The dot product of very large numbers overflows although they are finite; then each number is checked.
    if array.size <= _SMALL_SIZE and array.itemsize > 2 and math.isfinite(np.vdot(array, array)):
        return True
    return bool(np.isfinite(array).all())


def finite_rows(arrays: Iterable[np.ndarray], rows: int) -> np.ndarray | None:
    """Return a mask of the rows that are finite in all arrays `[rows, ...]`, `bool[rows]`; None if all are."""
    finite = None
    for array in arrays:
        if not all_finite(array):
            mine = np.isfinite(array).reshape(rows, -1).all(axis=1)
            finite = mine if finite is None else finite & mine
    return finite
