"""Batching settings of a Triton configuration that comes with a load request: JSON, not `config.pbtxt`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from stoker.models.pbtxt import Identifier, Message, Value
from stoker.models.pbtxt_fields import Fields, InvalidField
from stoker.models.triton_batching import batching_settings
from stoker.settings.choices import Adjustments
from stoker.settings.model import model_settings

ADJUSTED: Final = ("max_batch_size", "dynamic_batching", "instance_group")
"""The fields that count."""


def adjustments_of(config: Mapping[str, Any], source: str) -> Adjustments:
    """Return the adjustments of the batching and the devices of a model; other fields are ignored.

    Args:
        config: The configuration in protobuf's JSON, where numbers of 64 bits are texts.
    """
    try:
        fields = Fields(_message({name: config[name] for name in ADJUSTED if name in config}), "")
    except RecursionError:
        raise InvalidField("it is nested too deeply") from None
    settings = model_settings(batching_settings(fields, lambda *_: None), source)
    names = (field.name for field in dataclasses.fields(Adjustments))
    return Adjustments(**{name: getattr(settings, name) for name in names})


def _message(values: Mapping[str, Any]) -> Message:
    return {
        name: [_value(name, one) for one in (value if isinstance(value, list) else [value])]
        for name, value in values.items()
        if value is not None
    }


def _value(name: str, value: Any) -> Value:
    if isinstance(value, Mapping):
        return _message(value)
    if isinstance(value, str):
        return int(value) if value.isdecimal() and value.isascii() and len(value) < 20 else Identifier(value)
    if isinstance(value, bool | int | float):
        return value
    raise InvalidField(f"{name} cannot be {type(value).__name__}")
