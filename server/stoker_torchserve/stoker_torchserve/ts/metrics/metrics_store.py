"""`ts.metrics.metrics_store`: `context.metrics`, whose metrics are lines of the log, as in TorchServe's files."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from stoker_torchserve.ts.metrics.dimension import Dimension
from stoker_torchserve.ts.metrics.metric_type_enum import MetricTypes

logger = logging.getLogger("stoker_torchserve.metrics")

_UNITS: Final = {
    "ms": "Milliseconds",
    "s": "Seconds",
    "kB": "Kilobytes",
    "MB": "Megabytes",
    "GB": "Gigabytes",
    "percent": "Percent",
    "count": "Count",
    "": "unit",
}


class CachingMetric:
    """A metric with the names of its dimensions, whose values are written when they are added."""

    def __init__(
        self, metric_name: str, unit: str, dimension_names: Sequence[str], metric_type: MetricTypes
    ) -> None:
        self.metric_name = metric_name
        self.unit = unit
        self.dimension_names = tuple(dimension_names)
        self.metric_type = metric_type

    def add_or_update(self, value: float, dimension_values: Sequence[str], request_id: str = "") -> None:
        """Write a value; a counter's is what is added to it."""
        if len(dimension_values) != len(self.dimension_names):
            raise ValueError(
                f"{self.metric_name} has the dimensions {', '.join(self.dimension_names)}, "
                f"got {len(dimension_values)} values"
            )
        pairs = zip(self.dimension_names, dimension_values, strict=True)
        dimensions = ",".join(f"{name}:{one}" for name, one in pairs)
        unit = _UNITS.get(self.unit, self.unit)
        logger.info(
            "[METRICS]%s.%s:%s|#%s|#type:%s%s",
            self.metric_name, unit, value, dimensions, self.metric_type.name, request_id and f",{request_id}",
        )  # fmt: skip

    update = add_or_update


class MetricsStore:
    """Takes the metrics of a handler.

    Attributes:
        store: Metrics that are still to be logged by the handler itself: none, for each is when it is added.
    """

    store: tuple[CachingMetric, ...] = ()

    def __init__(self, model_name: str) -> None:
        self.model_name = model_name
        self.request_ids: Mapping[int, str] = {}
        self.cache: dict[tuple[MetricTypes, str], CachingMetric] = {}

    def set_request_ids(self, request_ids: Mapping[int, str]) -> None:
        """Set the ids of the requests that metrics are of, by their places."""
        self.request_ids = request_ids

    def add_metric(
        self,
        name: str,
        value: float,
        unit: str = "",
        idx: int | None = None,
        dimensions: Sequence[Dimension] | None = None,
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> None:
        """Write a metric, of the request at a place or of all of them."""
        given = list(dimensions or ())
        names = [one.name for one in given]
        if idx is not None and "ModelName" not in names:
            given.append(Dimension("ModelName", self.model_name))
        if "Level" not in names:
            given.append(Dimension("Level", "Error" if idx is None else "Model"))
        chosen = self.request_ids.values() if idx is None else [self.request_ids.get(idx, "")]
        metric = CachingMetric(name, unit, [one.name for one in given], metric_type)
        metric.add_or_update(value, [one.value for one in given], ",".join(chosen))

    def add_counter(
        self, name: str, value: float, idx: int | None = None, dimensions: Sequence[Dimension] | None = None
    ) -> None:
        """Write what is added to a counter."""
        self.add_metric(name, value, "count", idx, dimensions)

    def add_time(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        unit: str = "ms",
        dimensions: Sequence[Dimension] | None = None,
        metric_type: MetricTypes = MetricTypes.GAUGE,
    ) -> None:
        """Write a time, in `ms` or `s`."""
        self._add_in(("ms", "s"), name, value, unit, idx, dimensions, metric_type)

    def add_size(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        unit: str = "MB",
        dimensions: Sequence[Dimension] | None = None,
        metric_type: MetricTypes = MetricTypes.GAUGE,
    ) -> None:
        """Write a size, in `kB`, `MB` or `GB`."""
        self._add_in(("MB", "kB", "GB"), name, value, unit, idx, dimensions, metric_type)

    def _add_in(self, units: Sequence[str], name: str, value: float, unit: str, *others: Any) -> None:
        if unit not in units:
            raise ValueError(f"the unit of {name} is one of {', '.join(units)}, not {unit}")
        self.add_metric(name, value, unit, *others)

    def add_percent(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        dimensions: Sequence[Dimension] | None = None,
        metric_type: MetricTypes = MetricTypes.GAUGE,
    ) -> None:
        """Write a percentage."""
        self.add_metric(name, value, "percent", idx, dimensions, metric_type)

    def add_error(self, name: str, value: float, dimensions: Sequence[Dimension] | None = None) -> None:
        """Write an error."""
        self.add_metric(name, value, "", None, dimensions)

    def add_metric_to_cache(
        self,
        metric_name: str,
        unit: str,
        dimension_names: Sequence[str] = (),
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> CachingMetric:
        """Return a new metric, which `get_metric` finds from now on."""
        metric = CachingMetric(metric_name, unit, dimension_names, metric_type)
        self.cache[metric_type, metric_name] = metric
        return metric

    def get_metric(self, metric_name: str, metric_type: MetricTypes = MetricTypes.COUNTER) -> CachingMetric:
        """Return a metric that has been added to the cache.

        Raises:
            KeyError: There is none.
        """
        return self.cache[metric_type, metric_name]
