"""Limits of groups of models, as operators write them."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.metrics.layout import MODEL_LIMITS
from stoker.settings.model_limits import MOST_LIMITS, ModelLimit, find_limit, read_model_limits


def test_a_model_has_the_first_limit_that_it_matches() -> None:
    """In the order in which they are written, as a mapping or as JSON."""
    limits = read_model_limits({"a-1": {"rows_per_s": 5}, "a-*": {"device_ms_per_s": "200", "burst_s": 1}})
    assert find_limit(limits, "a-1") == ModelLimit("a-1", 0, rows_per_s=5.0)
    assert find_limit(limits, "a-2") == ModelLimit("a-*", 1, device_ms_per_s=200.0, burst_s=1.0)
    assert find_limit(limits, "b") is find_limit(None, "a-1") is None
    assert read_model_limits('{"a-1": {"rows_per_s": 5}}') == {"a-1": {"rows_per_s": 5.0}}
    assert MOST_LIMITS == MODEL_LIMITS


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("a-*", "for instance customer-*"),
        ("[" * 100_000, "for instance customer-*"),
        ([], "for instance customer-*"),
        ({f"a{number}": {"rows_per_s": 1} for number in range(MOST_LIMITS + 1)}, "at most 64 limits"),
        ({"a/b": {"rows_per_s": 1}}, "names models by 'a/b'"),
        ({"a": {"burst_s": 1}}, "needs rows_per_s or device_ms_per_s for a"),
        ({"a": 5}, "needs rows_per_s or device_ms_per_s for a"),
        ({"a": {"rows_per_s": 1, "rows": 1}}, "has for a no 'rows'"),
        ({"a": {"rows_per_s": 0}}, "has for a a value of rows_per_s that must be between 0.001"),
        ({"a": {"rows_per_s": True}}, "must be a number"),
    ],
)
def test_invalid_model_limit_is_refused(written: Any, message: str) -> None:
    """The error has the reason."""
    with pytest.raises(ValueError, match=message.replace("*", r"\*")):
        read_model_limits(written)
