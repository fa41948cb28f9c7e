"""Warm-up requests in Triton's `config.pbtxt`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from stoker.deployment import WarmUpInput, WarmUpRequest
from stoker.models.pbtxt_fields import Fields, InvalidField


def read_warm_up(fields: Fields, base: Path) -> WarmUpRequest:
    """Read a request for the warm-up."""
    fields.check_known("name", "batch_size", "inputs", "count")
    name = fields.text("name") or fields.place.rstrip(".")
    inputs = tuple(_warm_up_inputs(fields, name, base))
    return WarmUpRequest(name, fields.number("batch_size") or 0, inputs)


def _warm_up_inputs(fields: Fields, name: str, base: Path) -> Iterator[WarmUpInput]:
    for entry in fields.messages("inputs"):
        key, value = entry.text("key"), entry.message("value")
        if not key or value is None:
            raise InvalidField(f"{entry.place}key and value are both needed")
        value.check_known("data_type", "dims", "zero_data", "random_data", "input_data_file")
        data_type, file = value.identifier("data_type") or "", value.text("input_data_file")
        if file:
            inside = PurePosixPath(file)
            if inside.is_absolute() or ".." in inside.parts:
                raise InvalidField(
                    f"the model_warmup {name!r}: input_data_file is {file!r}; it must be below the folder warmup"
                )
            path = base / "warmup" / inside
            yield WarmUpInput(key, data_type, value.sizes("dims"), "file", path)
        elif value.flag("zero_data") or value.flag("random_data"):
            kind = "zero" if value.flag("zero_data") else "random"
            yield WarmUpInput(key, data_type, value.sizes("dims"), kind)  # type: ignore[arg-type]  # one of both
        else:
            raise InvalidField(
                f"the model_warmup {name!r} has no data for {key}: zero_data, random_data or input_data_file"
            )
