"""The settings of `collect`."""

import re
from typing import Any

import pytest

from stoker.settings.collection import CollectionSettings, read_collection


def test_true_collects_all_inputs_and_outputs() -> None:
    """`collect: true` keeps all inputs and outputs as JSON lines within a gibibyte; false keeps nothing."""
    for value in (True, "true", {}):
        assert read_collection(value) == CollectionSettings(1.0, "jsonl", 1024, ("inputs", "outputs"))
    assert read_collection(False) is False


def test_mapping_sets_each_option() -> None:
    """Each setting can be given."""
    mapping = {"sample_rate": 0.25, "format": "parquet", "max_mb": 64, "collections": ["outputs"]}
    assert read_collection(mapping) == CollectionSettings(0.25, "parquet", 64, ("outputs",))


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("often", "must be true or false, or hold sample_rate, format, max_mb, collections by name"),
        ({"sample_rat": 1}, "has no 'sample_rat'; did you mean sample_rate?"),
        ({"sample_rate": 0}, "has a value of sample_rate that must be between 1e-09 and 1"),
        ({"sample_rate": 1.5}, "has a value of sample_rate"),
        ({"sample_rate": True}, "has a value of sample_rate"),
        ({"format": "csv"}, "has a value of format that must be jsonl or parquet"),
        ({"max_mb": 15}, "has a value of max_mb that must be a whole number between 16"),
        ({"max_mb": 16.5}, "has a value of max_mb"),
        ({"collections": []}, "has a value of collections that must be a list of inputs, outputs"),
        ({"collections": ["inputs", "scores"]}, "has a value of collections"),
        ({"collections": "inputs"}, "has a value of collections"),
    ],
)
def test_bad_settings_are_refused_with_the_reason(value: Any, problem: str) -> None:
    """The message completes a sentence that begins with the setting's name."""
    with pytest.raises(ValueError, match=re.escape(problem)):
        read_collection(value)
