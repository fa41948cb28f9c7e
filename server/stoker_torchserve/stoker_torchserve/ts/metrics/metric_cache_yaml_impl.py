"""`ts.metrics.metric_cache_yaml_impl`: `context.metrics`, the metrics of a handler by type and name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stoker_torchserve.metrics_config import DEFAULT_METRICS, read_metrics
from stoker_torchserve.ts.metrics.caching_metric import CachingMetric
from stoker_torchserve.ts.metrics.dimension import Dimension
from stoker_torchserve.ts.metrics.metric_cache_errors import (
    MetricsCacheKeyError,
    MetricsCacheTypeError,
    MetricsCacheValueError,
)
from stoker_torchserve.ts.metrics.metric_type_enum import MetricTypes


class MetricsCacheYamlImpl:
    """Takes the metrics of a handler: those of a `metrics.yaml`, and those that the handler adds.

    Attributes:
        store: Metrics that are still to be logged by the handler itself: none, for each is when it is added.
    """

    store: tuple[CachingMetric, ...] = ()

    def __init__(self, config_file_path: str | None, model_name: str | None = None) -> None:
        self.config_file_path = config_file_path
        self.model_name = model_name
        self.request_ids: Mapping[int, str] | None = None
        self.cache: dict[MetricTypes, dict[str, CachingMetric]] = {}

    def initialize_cache(self) -> None:
        """Add the metrics of the file, or TorchServe's own where no file is named.

        Raises:
            ValueError: The file cannot be read.
        """
        file = self.config_file_path
        for one in read_metrics(Path(file)) if file else DEFAULT_METRICS:
            self.add_metric_to_cache(one.name, one.unit, list(one.dimensions), MetricTypes(one.kind))

    def cache_keys(self) -> list[str]:
        """Return the types and names of all metrics: `gauge:HandlerTime`."""
        return [f"{kind.value}:{name}" for kind, metrics in self.cache.items() for name in metrics]

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
        ids = self.request_ids or {}
        request_id = ids[idx] if idx is not None and idx in ids else ",".join(ids.values())
        self._add(name, value, unit, dimensions, metric_type, "Model", request_id)

    def _add(
        self,
        name: str,
        value: float,
        unit: str,
        dimensions: Sequence[Dimension] | None,
        metric_type: MetricTypes,
        level: str,
        request_id: str = "",
    ) -> None:
        """Write a value of a metric that is declared, or else is from now on."""
        given = list(dimensions or ())
        names = [one.name for one in given]
        if level == "Model" and "ModelName" not in names:
            given.append(Dimension("ModelName", str(self.model_name)))
        if "Level" not in names:
            given.append(Dimension("Level", level))
        metric = self.cache.get(metric_type, {}).get(name)
        if metric is None:
            metric = self.add_metric_to_cache(name, unit, [one.name for one in given], metric_type)
        metric.add_or_update(value, [one.value for one in given], request_id)

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
        """Write a time, in `ms` or `s`; raises MetricsCacheValueError for another unit."""
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
        """Write a size, in `B`, `kB`, `MB` or `GB`; raises MetricsCacheValueError for another unit."""
        self._add_in(("B", "kB", "MB", "GB"), name, value, unit, idx, dimensions, metric_type)

    def _add_in(self, units: Sequence[str], name: str, value: float, unit: str, *others: Any) -> None:
        if unit not in units:
            raise MetricsCacheValueError(f"the unit of {name} is one of {', '.join(units)}, not {unit}")
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
        self._add(name, value, "", dimensions, MetricTypes.COUNTER, "Error")

    def add_metric_to_cache(
        self,
        metric_name: str,
        unit: str,
        dimension_names: Sequence[str] = (),
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> CachingMetric:
        """Return a new metric, which `get_metric` finds from now on."""
        _check_metric(metric_name, metric_type)
        metric = CachingMetric(metric_name, unit, dimension_names, metric_type)
        self.cache.setdefault(metric_type, {})[metric_name] = metric
        return metric

    def get_metric(self, metric_name: str, metric_type: MetricTypes = MetricTypes.COUNTER) -> CachingMetric:
        """Return a metric that the file declares, or that has been added.

        Raises:
            MetricsCacheKeyError: There is none of this type and name.
        """
        _check_metric(metric_name, metric_type)
        metric = self.cache.get(metric_type, {}).get(metric_name)
        if metric is None:
            raise MetricsCacheKeyError(
                f"there is no {metric_type.value} {metric_name}: declare it under model_metrics in the file that "
                f"metrics_config names, or add it by add_metric_to_cache (there are: {', '.join(self.cache_keys())})"
            )
        return metric


def _check_metric(name: object, metric_type: object) -> None:
    if not isinstance(name, str):
        raise MetricsCacheTypeError("`metric_name` must be a str")
    if not isinstance(metric_type, MetricTypes):
        raise MetricsCacheTypeError("`metric_type` must be a MetricTypes enum")
