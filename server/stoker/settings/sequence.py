"""How a model keeps state between the requests of a sequence, in the terms of Triton's `sequence_batching`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast, get_args

from stoker.settings.choices import ControlKind
from stoker.settings.readers import check_keys, read_path

_MAX_IDLE_S: Final = 60.0
_MAX_SEQUENCES: Final = 1000
_MOST_SEQUENCES: Final = 1 << 20
_MOST_IDLE_S: Final = 86_400.0
_MOST_ELEMENTS: Final = (1 << 31) - 1
_MOST_AXES: Final = 8
_KEYS: Final = ("state", "dims", "constants", "controls", "max_idle_s", "max_sequences")
_STATE_KEYS: Final = ("input_name", "output_name", "dims", "batch_axis", "initial", "dtype")
_CONTROL_KEYS: Final = ("is", "values", "dtype")
_KINDS: Final = get_args(ControlKind)


@dataclass(frozen=True, slots=True)
class StateTensor:
    """An output that is an input of the next request.

    Attributes:
        dims: Sizes of the state of one sequence, without the batch axis; None for those in the model file.
        batch_axis: Which axis of both has the sequences of a batch; None for the only one whose size the file leaves
            free, else the first.
        initial: A file beside the model with the state at the beginning, an `.npy` or the numbers one behind the
            other; None for zeros.
        dtype: The numpy dtype that the model file must have; empty for any.
    """

    input_name: str
    output_name: str
    dims: tuple[int, ...] | None = None
    batch_axis: int | None = None
    initial: Path | None = None
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class ControlInput:
    """An input that the server fills with facts about the sequence of a row.

    Attributes:
        off: The value for false; unused for an id.
        dtype: The numpy dtype that the model file must have, or `string`; empty for any.
    """

    input_name: str
    kind: ControlKind
    off: float = 0
    on: float = 1
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class SequenceSettings:
    """The settings of a model with state.

    Attributes:
        state: The state of a model; none for an entry script, which is given its own.
        dims: By input, the sizes of one row that the model file leaves free.
        constants: By input its only value, for inputs that are the same in all requests.
    """

    state: tuple[StateTensor, ...] = ()
    dims: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    constants: Mapping[str, float] = field(default_factory=dict)
    max_idle_s: float = _MAX_IDLE_S
    max_sequences: int = _MAX_SEQUENCES
    controls: tuple[ControlInput, ...] = ()


def read_sequence(value: Any) -> SequenceSettings:
    """Read the settings of sequences from a mapping."""
    if not isinstance(value, Mapping):
        raise ValueError(
            "must be a mapping, such as state: [{input_name: h, output_name: hn}], or {} for a script"
        )
    check_keys(value, _KEYS)
    listed = value.get("state", [])
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise ValueError("has a state that is no list such as [{input_name: h, output_name: hn}]")
    state = tuple(map(_state, listed))
    controls = tuple(_control(name, content) for name, content in _named(value, "controls"))
    for kind in _KINDS:
        if sum(control.kind == kind for control in controls) > 1:
            raise ValueError(f"has several controls for {kind}")
    constants = {
        name: _number(number, f"the constant {name!r}") for name, number in _named(value, "constants")
    }
    inputs = [*(one.input_name for one in state), *(one.input_name for one in controls), *constants]
    for side in (inputs, [one.output_name for one in state]):
        twice = next((name for name in side if side.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"has {twice!r} twice among its state, controls and constants")
    sequences = value.get("max_sequences", _MAX_SEQUENCES)
    if type(sequences) is not int or not 1 <= sequences <= _MOST_SEQUENCES:
        raise ValueError(f"has max_sequences that is no whole number between 1 and {_MOST_SEQUENCES}")
    return SequenceSettings(
        state,
        {name: _sizes(sizes, f"dims of {name!r}") for name, sizes in _named(value, "dims")},
        constants,
        _idle_s(value.get("max_idle_s", _MAX_IDLE_S)),
        sequences,
        controls,
    )


def _state(value: Any) -> StateTensor:
    if not isinstance(value, Mapping):
        raise ValueError("has a state that is no mapping such as {input_name: h, output_name: hn}")
    check_keys(value, _STATE_KEYS, "a state with ")
    names = [value.get(key) for key in _STATE_KEYS[:2]]
    if not all(isinstance(name, str) and name for name in names):
        raise ValueError("has a state without input_name or output_name")
    axis, dims = value.get("batch_axis"), value.get("dims")
    if axis is not None and (type(axis) is not int or not 0 <= axis < _MOST_AXES):
        raise ValueError(f"has a batch_axis of {names[0]!r} that is no number of an axis")
    initial, dtype = value.get("initial"), value.get("dtype", "")
    if not isinstance(dtype, str):
        raise ValueError(f"has a dtype of {names[0]!r} that is no name")
    return StateTensor(
        str(names[0]),
        str(names[1]),
        None if dims is None else _sizes(dims, f"dims of {names[0]!r}"),
        axis,
        None if initial is None else read_path(initial),
        dtype,
    )


def _control(name: str, value: Any) -> ControlInput:
    content = value if isinstance(value, Mapping) else {"is": value}
    check_keys(content, _CONTROL_KEYS, f"the control {name!r} with ")
    kind, values, dtype = content.get("is"), content.get("values", (0, 1)), content.get("dtype", "")
    if kind not in _KINDS:
        raise ValueError(f"has the control {name!r} that is none of {', '.join(_KINDS)}")
    if not isinstance(values, Sequence) or isinstance(values, str) or len(values) != 2:
        raise ValueError(f"has values of {name!r} that are not two, such as [0, 1]")
    off, on = (float(one) if isinstance(one, bool) else _number(one, f"values of {name!r}") for one in values)
    if not isinstance(dtype, str):
        raise ValueError(f"has a dtype of {name!r} that is no name")
    return ControlInput(name, cast("ControlKind", kind), off, on, dtype)


def _named(value: Mapping[str, Any], key: str) -> list[tuple[str, Any]]:
    named = value.get(key, {})
    if not isinstance(named, Mapping) or not all(isinstance(name, str) for name in named):
        raise ValueError(f"has {key} that are no mapping of inputs")
    return list(named.items())


def _sizes(value: Any, subject: str) -> tuple[int, ...]:
    if (
        not isinstance(value, Sequence)
        or isinstance(value, str)
        or len(value) > _MOST_AXES
        or not all(type(size) is int and size > 0 for size in value)
        or math.prod(value) > _MOST_ELEMENTS
    ):
        raise ValueError(
            f"has {subject} that are no list of sizes above 0, with at most {_MOST_ELEMENTS} elements"
        )
    return tuple(value)


def _number(value: Any, subject: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"has {subject} that is no number")
    return value


def _idle_s(value: Any) -> float:
    seconds = _number(value, "max_idle_s")
    if not 0 < seconds <= _MOST_IDLE_S:
        raise ValueError(f"has a max_idle_s that is not above 0 and at most {_MOST_IDLE_S:g}")
    return float(seconds)
