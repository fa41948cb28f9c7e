"""Sequences in Triton's `config.pbtxt` as the setting `sequence`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from stoker.deployment import DeclaredTensor
from stoker.models.pbtxt_fields import Fields, InvalidField
from stoker.wire.datatypes import TRITON_DTYPES

_NO_ITERATIONS: Final = "is not offered: a model that goes on by itself is a score.py whose run yields"
_KINDS: Final = {
    "CONTROL_SEQUENCE_START": "start",
    "CONTROL_SEQUENCE_END": "end",
    "CONTROL_SEQUENCE_READY": "ready",
    "CONTROL_SEQUENCE_CORRID": "id",
}
_FLAGS: Final = {"int32_false_true": "int32", "fp32_false_true": "float32", "bool_false_true": "bool"}
_IDS: Final = ("TYPE_UINT64", "TYPE_INT64", "TYPE_UINT32", "TYPE_INT32", "TYPE_STRING")
_INITIAL_FOLDER: Final = "initial_state"
"""The folder beside `config.pbtxt` with the files of initial states."""


def sequence_settings(
    fields: Fields,
    inputs: Sequence[DeclaredTensor],
    pass_over: Callable[..., None],
    base: Path,
) -> dict[str, Any]:
    """Return the settings for the sequences of a configuration; empty without sequences.

    Args:
        inputs: The declared inputs; fixed sizes are those of a row.
        pass_over: Notes a field that has no effect, and a setting that has.
    """
    batching = fields.message("sequence_batching")
    if batching is None:
        return {}
    known = ("max_sequence_idle_microseconds", "direct", "oldest", "state", "control_input")
    batching.check_known(*known, "iterative_sequence")
    if batching.flag("iterative_sequence"):
        raise InvalidField(f"{batching.place}iterative_sequence {_NO_ITERATIONS}")
    whole = fields.number("max_batch_size") == 0
    states = [_state(one, pass_over, base, whole=whole) for one in batching.messages("state")]
    controls = _controls(batching)
    if not states and not controls:
        raise InvalidField(f"{batching.place}state is missing: a model without it needs no sequences")
    taken = {*(state["input_name"] for state in states), *controls}
    # With max_batch_size, also 0, the first axis is that of the rows.
    first = int(fields.has("max_batch_size"))
    dims = {
        one.name: list((one.shape if one.model_shape is None else one.model_shape)[first:]) for one in inputs
    }
    sequence: dict[str, Any] = {
        "state": states,
        "dims": {
            name: sizes for name, sizes in dims.items() if name not in taken and min(sizes, default=0) > 0
        },
        "controls": controls,
    }
    idle_us = batching.number("max_sequence_idle_microseconds")
    if idle_us:
        sequence["max_idle_s"] = idle_us / 1e6
    return {"sequence": sequence, **_strategy(batching, sequence, pass_over)}


def _controls(batching: Fields) -> dict[str, dict[str, Any]]:
    listed = [_control(one) for one in batching.messages("control_input")]
    controls = dict(listed)
    if len(controls) < len(listed):
        raise InvalidField(f"{batching.place}control_input has two of one name")
    return controls


def _strategy(batching: Fields, sequence: dict[str, Any], pass_over: Callable[..., None]) -> dict[str, Any]:
    """Return settings for batches of rows of sequences; `sequence` receives the most sequences."""
    settings = {}
    for kind in ("direct", "oldest"):
        strategy = batching.message(kind)
        if strategy is None:
            continue
        delay_us = strategy.number("max_queue_delay_microseconds")
        if delay_us is not None:
            settings["max_delay_ms"] = delay_us / 1000
        if kind == "oldest" and (most := strategy.number("max_candidate_sequences")):
            sequence["max_sequences"] = most
        _pass_over_rest(strategy, kind, pass_over)
    return settings


def _state(fields: Fields, pass_over: Callable[..., None], base: Path, *, whole: bool) -> dict[str, Any]:
    """Return a state; with `whole` its dims include the batch axis, of size 1."""
    passed = ("use_same_buffer_for_input_output", "use_growable_memory")
    fields.check_known("input_name", "output_name", "data_type", "dims", "initial_state", *passed)
    for field in passed:
        if fields.flag(field):
            pass_over(f"{fields.place}{field}")
    dims, data_type = fields.sizes("dims"), fields.identifier("data_type")
    if data_type is not None and data_type not in TRITON_DTYPES:
        raise InvalidField(
            f"{fields.place}data_type must be one of {', '.join(TRITON_DTYPES)}, not {data_type}"
        )
    initials = fields.messages("initial_state")
    if len(initials) > 1:
        raise InvalidField(f"{fields.place}initial_state stands more than once")
    file = None
    for initial in initials:
        initial.check_known("name", "data_type", "dims", "zero_data", "data_file")
        for field, same in (
            ("data_type", initial.identifier("data_type") in (None, data_type)),
            ("dims", initial.sizes("dims") in ((), dims) or -1 in dims),
        ):
            if not same:
                raise InvalidField(f"{initial.place}{field} must be that of the state")
        file = initial.text("data_file")
        if file in (".", "..") or "/" in (file or ""):
            raise InvalidField(f"{initial.place}data_file is {file!r}; it must be a name without a folder")
    begins = {"initial": base.absolute() / _INITIAL_FOLDER / file} if file else {}
    named = {key: fields.text(key) for key in ("input_name", "output_name")}
    dtype = {} if data_type is None else {"dtype": TRITON_DTYPES[data_type]}
    axis = {}
    if whole and 1 in dims:
        one = dims.index(1)
        axis, dims = {"batch_axis": one}, (*dims[:one], *dims[one + 1 :])
    return {**named, **({"dims": list(dims)} if dims and min(dims) > 0 else {}), **axis, **dtype, **begins}


def _control(fields: Fields) -> tuple[str, dict[str, Any]]:
    """Return the name of an input that the server fills, and its values."""
    fields.check_known("name", "control")
    name, controls = fields.text("name"), fields.messages("control")
    if not name or len(controls) != 1:
        raise InvalidField(f"{fields.place}name and one control are both needed")
    (control,) = controls
    control.check_known("kind", "data_type", *_FLAGS)
    kind = control.identifier("kind") or "CONTROL_SEQUENCE_START"
    if kind not in _KINDS:
        raise InvalidField(f"{control.place}kind must be one of {', '.join(_KINDS)}, not {kind}")
    if _KINDS[kind] == "id":
        data_type = control.identifier("data_type") or ""
        if data_type not in _IDS:
            raise InvalidField(f"{control.place}data_type must be one of {', '.join(_IDS)}")
        return name, {"is": "id", "dtype": TRITON_DTYPES[data_type]}
    flags = [field for field in _FLAGS if control.has(field)]
    values = control.switches(flags[0]) if len(flags) == 1 else ()
    if len(values) != 2:
        raise InvalidField(f"{control.place}needs the two values of one of {', '.join(_FLAGS)}")
    return name, {"is": _KINDS[kind], "values": list(values), "dtype": _FLAGS[flags[0]]}


def _pass_over_rest(strategy: Fields, kind: str, pass_over: Callable[..., None]) -> None:
    rest = ("preferred_batch_size", "preserve_ordering", "minimum_slot_utilization")
    strategy.check_known("max_queue_delay_microseconds", "max_candidate_sequences", *rest)
    for field in rest:
        if strategy.has(field):
            pass_over(f"sequence_batching.{kind}.{field}", "a batch leaves when the device is free")
