"""`ts.metrics.caching_metric`: a metric whose values are lines of the log, as in TorchServe's files."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Sequence
from typing import Final

from stoker_torchserve.ts.metrics.dimension import Dimension
from stoker_torchserve.ts.metrics.metric_type_enum import MetricTypes
from stoker_torchserve.ts.metrics.unit import Units

logger = logging.getLogger("stoker_torchserve.metrics")

_UNITS: Final = Units().units
_HOST: Final = socket.gethostname()


class CachingMetric:
    """A metric with the names of its dimensions, whose values are written when they are added."""

    def __init__(
        self,
        metric_name: str,
        unit: str,
        dimension_names: Sequence[str] | None = None,
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> None:
        self.metric_name = metric_name
        self.unit = _UNITS.get(unit, unit)
        self.dimension_names = list(dimension_names or ())
        self.metric_type = metric_type

    def add_or_update(self, value: float, dimension_values: Sequence[str] = (), request_id: str = "") -> None:
        """Write a value; a counter's is what is added to it.

        A value that the metric cannot have is logged as an error, and fails no request.
        """
        fault = ""
        if dimension_values is None or len(dimension_values) != len(self.dimension_names):
            fault = f"its dimensions are {self.dimension_names}, and their values {dimension_values}"
        elif self.metric_type == MetricTypes.COUNTER and value < 0:
            fault = "a counter cannot decrease"
        if fault:
            logger.error(
                "[METRICS]Failed to update metric with name:%s with value: %s: %s",
                self.metric_name, value, fault,
            )  # fmt: skip
            return
        pairs = zip(self.dimension_names, dimension_values, strict=True)
        logger.info(
            "[METRICS]%s.%s:%s|#%s|#type:%s|#hostname:%s,%d%s",
            self.metric_name, self.unit, value, ",".join(f"{name}:{one}" for name, one in pairs),
            self.metric_type.name, _HOST, time.time(), request_id and f",{request_id}",
        )  # fmt: skip

    def update(self, value: float, request_id: str = "", dimensions: Sequence[Dimension] = ()) -> None:
        """Write a value with other dimensions, which the metric keeps."""
        self.dimension_names = [one.name for one in dimensions]
        self.add_or_update(value, [one.value for one in dimensions], request_id)
