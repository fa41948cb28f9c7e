"""Metrics of answers that frontends keep, under Stoker's names and Triton's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from stoker.metrics.totals import CacheTotals, ModelTotals

__all__ = ["cache_metrics"]


class _Quantity(NamedTuple):
    name: str
    text: str
    read: Callable[[CacheTotals], float]
    alias: str
    times: int = 1
    """How many of Triton's units one of Stoker's is: it counts microseconds."""


_QUANTITIES: Final = (
    _Quantity(
        "stoker_cache_hits",
        "Requests answered by a kept answer.",
        lambda cache: cache.hits,
        "nv_cache_num_hits_per_model",
    ),
    _Quantity(
        "stoker_cache_misses",
        "Requests whose answer was not among those that are kept.",
        lambda cache: cache.misses,
        "nv_cache_num_misses_per_model",
    ),
    _Quantity(
        "stoker_cache_hit_seconds",
        "Time in which kept answers were found.",
        lambda cache: cache.hit_ns / 1e9,
        "nv_cache_hit_duration_per_model",
        10**6,
    ),
    _Quantity(
        "stoker_cache_miss_seconds",
        "Time in which answers were looked for, not found, and then kept.",
        lambda cache: cache.miss_ns / 1e9,
        "nv_cache_miss_duration_per_model",
        10**6,
    ),
)


def cache_metrics(named: Sequence[tuple[list[str], ModelTotals]]) -> Iterator[Metric]:
    """What is counted of models whose answers are kept; others have no samples."""
    caches = [(labels, model.cache()) for labels, model in named]
    used = [(labels, cache) for labels, cache in caches if cache.hits or cache.misses]
    for quantity in _QUANTITIES:
        own = CounterMetricFamily(quantity.name, quantity.text, labels=["model", "version"])
        alias = Metric(quantity.alias, f"Triton's name of {quantity.name}_total.", "unknown")
        for labels, cache in used:
            value = quantity.read(cache)
            own.add_metric(labels, value)
            places = dict(zip(("model", "version"), labels, strict=True))
            alias.add_sample(quantity.alias, places, value * quantity.times)
        yield from (own, alias)
    evictions = CounterMetricFamily(
        "stoker_cache_evictions", "Kept answers forgotten for others.", labels=["model", "version"]
    )
    size = GaugeMetricFamily(
        "stoker_cache_bytes", "What kept answers take in all frontends.", labels=["model", "version"]
    )
    for labels, cache in used:
        evictions.add_metric(labels, cache.evictions)
        size.add_metric(labels, cache.size_bytes)
    yield from (evictions, size)
