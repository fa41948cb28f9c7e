"""The settings that are found for a measured model."""

from __future__ import annotations

import pytest
from tests.unit.profiling.linear_curves import line

from stoker.errors import InvalidSettings
from stoker.profiling.load_tests import RequestCost
from stoker.profiling.profile import Measured, find_settings
from stoker.profiling.search import Load


def test_cost_of_a_request_is_part_of_all_times() -> None:
    """The frontends' time is taken from the target and added to the answers."""
    facts = {"max_batch_rows": 16, "instances": 1, "batch_buckets": [], "takes": "rows"}
    measured = Measured(facts | {"admission": "target", "forks": False}, {"auto": line(4, 0.5)})
    load = Load(20, seeds=(5,), targets=3, requests=60)
    alone = find_settings(measured, load).ranked[0]
    whole = find_settings(measured, load, RequestCost(2, 80.0, lone_ms=4.5 + 3)).ranked[0]
    assert alone.p50_ms > 4.5
    assert whole.p50_ms > 4.5 + 3
    assert 0 < whole.load_rows_per_s < alone.load_rows_per_s
    slow = RequestCost(1, 8_000.0, lone_ms=4.5)
    limited = find_settings(measured, load, slow).ranked[0]
    assert (limited.load_rows_per_s, limited.limit) == (pytest.approx(100), "frontends")
    with pytest.raises(InvalidSettings, match="one row takes 25"):
        find_settings(measured, load, RequestCost(1, 80.0, lone_ms=25))
