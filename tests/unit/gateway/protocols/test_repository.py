"""The model repository extension, without a server."""

from __future__ import annotations

import pytest
from tests.puppets import metric_memory, puppet_service

from stoker.errors import UnknownService
from stoker.gateway.gateway import Gateway
from stoker.gateway.model_directory import ModelDirectory
from stoker.gateway.protocols.repository import statistics


def test_statistics_count_requests_rows_and_batches_apart() -> None:
    """Times are sums over the requests that were answered."""
    memory = metric_memory()
    digits = puppet_service("digits", memory, version="3")
    gateway = Gateway(ModelDirectory({"digits": digits}), memory)
    for _ in range(2):
        digits.metrics.note_scored(3, 1_000, 9_000)
    digits.metrics.flush()
    digits.metrics.count_request(400)
    device = memory.page(64).model(0)
    device.observe_batch(4, "idle", 10_000)
    device.observe_batch(2, "full", 1_000)
    (found,) = statistics(gateway, "digits", "3")
    assert (found["name"], found["version"]) == ("digits", "3")
    assert (found["inference_count"], found["execution_count"]) == (6, 2)
    times = found["inference_stats"]
    assert times["success"] == {"count": 2, "ns": 18_000}
    assert times["fail"] == {"count": 1, "ns": 0}
    assert times["compute_input"] == {"count": 2, "ns": 2_000}
    # Six rows took 42 µs together, so a request takes 7 µs.
    assert times["compute_infer"] == {"count": 2, "ns": 14_000}
    assert times["compute_output"] == {"count": 2, "ns": 0}
    assert (times["cache_hit"], times["cache_miss"]) == ({"count": 0, "ns": 0}, {"count": 0, "ns": 0})
    digits.metrics.count_cache(300, found=True)
    digits.metrics.count_cache(200, found=False)
    digits.metrics.count_cache_insertion(50)
    times = statistics(gateway)[0]["inference_stats"]
    assert (times["cache_hit"], times["cache_miss"]) == ({"count": 1, "ns": 300}, {"count": 1, "ns": 250})
    assert found["last_inference"] > 1_700_000_000_000
    assert [one["name"] for one in statistics(gateway)] == ["digits"]
    for name, version in (("letters", None), ("digits", "4")):
        with pytest.raises(UnknownService):
            statistics(gateway, name, version)
