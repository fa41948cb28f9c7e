"""Families of samples, as prometheus-client writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family

from stoker.metrics.metric import HistogramTotals, Kind, Metric, Value

_KINDS: Final[dict[Kind, Callable[..., Any]]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


def make_family(
    metric: Metric, samples: Iterable[tuple[Sequence[str], Value]], *, of_models: bool = False
) -> Family:
    """Return a family of samples: the values of the labels, those of model and version first, and the value."""
    labels = [*(("model", "version") if of_models else ()), *metric.labels]
    family = _KINDS[metric.kind](metric.name, metric.help, labels=labels)
    for names, value in samples:
        if isinstance(value, HistogramTotals):
            family.add_metric(names, value.buckets(), value.sum)
        else:
            family.add_metric(names, value)
    return family  # type: ignore[no-any-return]


def make_foreign_family(
    name: str, text: str, samples: Iterable[tuple[dict[str, str], float]], kind: str = "unknown"
) -> Family:
    """Return a family under another server's name; `format_for_tools` makes a counter of an unknown kind."""
    # As a counter prometheus-client would end its name in _total.
    family = Family(name, text, kind)
    for labels, value in samples:
        family.add_sample(name, labels, value)
    return family
