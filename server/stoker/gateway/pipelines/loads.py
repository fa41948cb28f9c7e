"""The load of a pipeline as answers report it to load balancers: that of its most loaded model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from stoker.gateway.scoring.load_reports import LoadFormat, LoadReports

if TYPE_CHECKING:
    from collections.abc import Callable

    from stoker.gateway.scoring.service import Service
    from stoker.metrics.memory import MetricMemory

__all__ = ["PipelineLoadReports"]


class PipelineLoadReports(LoadReports):
    """Reports the load of one pipeline, which has no rows of its own that could wait.

    Args:
        metrics: The counters of all processes.
        slot: The pipeline's slot in them.
        models: Returns the models of the pipeline's steps.
    """

    def __init__(self, metrics: MetricMemory, slot: int, models: Callable[[], Iterable[Service]]) -> None:
        super().__init__(metrics, slot)
        self._models = models

    def line(self, form: LoadFormat) -> bytes:
        """Return the header line."""
        reports = [service.load_reports for service in self._models() if service.load_reports is not None]
        told = [(one.line(form), one.utilization) for one in reports]
        return max(told, key=lambda pair: pair[1])[0] if told else super().line(form)
