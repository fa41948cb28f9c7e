"""`ts.metrics.metric`: a value of a metric, which `ts.service.emit_metrics` logs."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from typing import Any

from stoker_torchserve.ts.metrics.caching_metric import CachingMetric
from stoker_torchserve.ts.metrics.dimension import Dimension
from stoker_torchserve.ts.metrics.metric_type_enum import MetricTypes


class Metric:
    """A value with its unit and dimensions."""

    metric_type = MetricTypes.COUNTER

    def __init__(
        self,
        name: str,
        value: float,
        unit: str,
        dimensions: Sequence[Dimension],
        request_id: str | None = None,
        metric_method: str | None = None,
    ) -> None:
        self.dimensions = dimensions
        self.dimension_names = [one.name for one in dimensions]
        self.dimension_values = [one.value for one in dimensions]
        self._metric = CachingMetric(name, unit, self.dimension_names, self.metric_type)
        self.name = name
        self.unit = self._metric.unit
        self.value = value
        self.request_id = request_id
        self.metric_method = metric_method

    def update(self, value: float) -> None:
        """Write what is added to the metric."""
        self._metric.add_or_update(value, self.dimension_values, self.request_id or "")

    def reset(self) -> None:
        """Write 0."""
        self.update(0)

    def __str__(self) -> str:
        dimensions = ",".join(map(str, self.dimensions))
        end = f",{self.request_id}" if self.request_id else ""
        return (
            f"{self.name}.{self.unit}:{self.value}|#{dimensions}|#hostname:{socket.gethostname()},"
            f"{int(time.time())}{end}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the value and what belongs to it."""
        return {
            "MetricName": self.name,
            "Value": self.value,
            "Unit": self.unit,
            "Dimensions": self.dimensions,
            "Timestamp": int(time.time()),
            "HostName": socket.gethostname(),
            "RequestId": self.request_id,
        }
