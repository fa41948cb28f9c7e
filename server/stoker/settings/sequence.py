"""How a model keeps state between the requests of a sequence, in the terms of Triton's `sequence_batching`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, get_args

from stoker.settings.choices import ControlKind
from stoker.settings.readers import choice_of, number_of, optional, read_members, read_path, read_text

_MOST_ELEMENTS: Final = (1 << 31) - 1
_MOST_AXES: Final = 8
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
    max_idle_s: float = 60.0
    max_sequences: int = 1000
    controls: tuple[ControlInput, ...] = ()


def _read_number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("must be a number")
    return value


def _read_sizes(value: Any) -> tuple[int, ...]:
    if (
        not isinstance(value, Sequence)
        or isinstance(value, str)
        or len(value) > _MOST_AXES
        or not all(type(size) is int and size > 0 for size in value)
        or math.prod(value) > _MOST_ELEMENTS
    ):
        raise ValueError(f"must be a list of sizes above 0, with at most {_MOST_ELEMENTS} elements")
    return tuple(value)


def _by_input(read: Callable[[Any], Any]) -> Callable[[Any], dict[str, Any]]:
    """Return a reader of mappings of inputs to values."""

    def read_all(value: Any) -> dict[str, Any]:
        """Read a value as the function around says."""
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            raise ValueError("must be a mapping of inputs")
        return read_members(value, dict.fromkeys(value, read))

    return read_all


def _read_dtype(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be the name of a dtype")
    return value


_STATE_READERS: Final = {
    "input_name": read_text,
    "output_name": read_text,
    "dims": optional(_read_sizes),
    "batch_axis": optional(number_of(int, 0, _MOST_AXES - 1)),
    "initial": optional(read_path),
    "dtype": _read_dtype,
}


def _read_states(value: Any) -> tuple[StateTensor, ...]:
    if not isinstance(value, Sequence) or not all(isinstance(one, Mapping) for one in value):
        raise ValueError("must be a list such as [{input_name: h, output_name: hn}]")
    states = [read_members(one, _STATE_READERS) for one in value]
    if not all("input_name" in state and "output_name" in state for state in states):
        raise ValueError("must have an input_name and an output_name in each item")
    return tuple(StateTensor(**state) for state in states)


def _read_off_and_on(value: Any) -> tuple[float, float]:
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
        raise ValueError("must be two numbers, such as [0, 1]")
    off, on = (float(one) if isinstance(one, bool) else _read_number(one) for one in value)
    return off, on


_CONTROL_READERS: Final = {"is": choice_of(*_KINDS), "values": _read_off_and_on, "dtype": _read_dtype}


def _read_control(value: Any) -> dict[str, Any]:
    """Read what a control input means; `start` stands for `{is: start}`."""
    control = read_members(value if isinstance(value, Mapping) else {"is": value}, _CONTROL_READERS)
    if "is" not in control:
        raise ValueError(f"must be {' or '.join(_KINDS)}, or have one of these as is")
    off, on = control.get("values", (0, 1))
    return {"kind": control["is"], "off": off, "on": on, "dtype": control.get("dtype", "")}


_READERS: Final = {
    "state": _read_states,
    "dims": _by_input(_read_sizes),
    "constants": _by_input(_read_number),
    "max_idle_s": number_of(float, 1e-6, 86_400),
    "max_sequences": number_of(int, 1, 1 << 20),
    "controls": _by_input(_read_control),
}


def read_sequence(value: Any) -> SequenceSettings:
    """Read the settings of sequences from a mapping."""
    if not isinstance(value, Mapping):
        raise ValueError(
            "must be a mapping, such as state: [{input_name: h, output_name: hn}], or {} for a script"
        )
    members = read_members(value, _READERS)
    controls = (ControlInput(name, **given) for name, given in members.pop("controls", {}).items())
    settings = SequenceSettings(**members, controls=tuple(controls))
    for kind in _KINDS:
        if sum(control.kind == kind for control in settings.controls) > 1:
            raise ValueError(f"has several controls for {kind}")
    inputs = [*(one.input_name for one in settings.state), *(one.input_name for one in settings.controls)]
    inputs += settings.constants
    for side in (inputs, [one.output_name for one in settings.state]):
        twice = next((name for name in side if side.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"has {twice!r} twice among its state, controls and constants")
    return settings
