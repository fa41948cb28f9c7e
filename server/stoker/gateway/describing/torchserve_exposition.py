"""Counters under TorchServe's names, for dashboards and autoscalers that were made for it.

Source: docs/metrics.md of TorchServe, "Frontend Metrics".
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client.core import Metric as Family

from stoker.gateway.describing.families import make_foreign_family
from stoker.metrics.totals import ModelTotals

_QUANTITIES: Final[dict[str, tuple[str, Callable[[ModelTotals], float]]]] = {
    "ts_inference_requests_total": (
        'stoker_requests_total{status="200"}',
        lambda model: model.requests()[200],
    ),
    "ts_inference_latency_microseconds": (
        'stoker_stage_seconds_sum{stage="total"}, in microseconds',
        lambda model: model.stage_ns()["total"][1] / 1000,
    ),
    "ts_queue_latency_microseconds": (
        'stoker_stage_seconds_sum{stage="queue"}, of rows, in microseconds',
        lambda model: model.stage_ns()["queue"][1] / 1000,
    ),
}
"""The metrics of TorchServe by name: help and value."""


def torchserve_metrics(named: Sequence[tuple[list[str], ModelTotals]]) -> Iterator[Family]:
    """The metrics of models, whose labels are name and version, under TorchServe's names."""
    host = socket.gethostname()
    for name, (meaning, read) in _QUANTITIES.items():
        samples = [
            ({"model_name": model, "model_version": version, "hostname": host}, read(totals))
            for (model, version), totals in named
        ]
        yield make_foreign_family(name, f"TorchServe's name of {meaning}.", samples)
