"""Triton's configuration of batching in a load request."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stoker.models.pbtxt_fields import InvalidField
from stoker.models.triton_load_request import adjustments_of
from stoker.settings.choices import Adjustments
from stoker.settings.model import ModelSettings


def test_configuration_without_batching_changes_nothing() -> None:
    """Settings stay as they are; a size of 0 is unset in protobuf."""
    for config in ({}, {"name": "m", "input": []}, {"max_batch_size": 0}, {"instance_group": None}):
        assert adjustments_of(config, "it") == Adjustments()
    settings = ModelSettings(max_batch_rows=8, instances=2)
    assert Adjustments().over(settings) == settings
    assert Adjustments(instances=3).over(settings) == ModelSettings(max_batch_rows=8, instances=3)


def test_deeply_nested_configuration_is_refused() -> None:
    """JSON of any depth that can be parsed is refused without an overflow."""
    nested: Any = 0
    for _ in range(5000):
        nested = {"dynamic_batching": nested}
    with pytest.raises(InvalidField, match="nested too deeply"):
        adjustments_of(nested, "it")
    assert adjustments_of(
        json.loads('{"dynamic_batching": {"max_queue_delay_microseconds": 5}}'), "it"
    ) == Adjustments(max_delay_ms=0.005)
