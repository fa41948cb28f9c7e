"""Profiles a model: a process times its batches, and a search finds settings for a latency target."""

from __future__ import annotations

import base64
import math
from dataclasses import replace
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from stoker.errors import InvalidSettings, LoadFailed
from stoker.profiling.candidates import Candidate, Space
from stoker.profiling.curves import MeasuredCurve
from stoker.profiling.load_tests import RequestCost
from stoker.profiling.measuring import Order, Report
from stoker.profiling.measuring_process import measure_in_process
from stoker.profiling.search import Estimate, Load, SearchResult, Step, search

_EXECUTIONS: Final = ("copied", "bound", "graph")


class Measured(Struct, frozen=True):
    """The measurements of a model.

    Attributes:
        facts: Its name, device and defaults, as reported by the process.
        curves: Batch times by execution.
    """

    facts: dict[str, Any]
    curves: dict[str, MeasuredCurve] = field(default_factory=dict)

    @property
    def body(self) -> bytes:
        """The body of the sample request."""
        return base64.b64decode(self.facts["request"]["body"])


def measure_model(order: Order, report: Report = lambda _: None) -> Measured:
    """Load a model in a process of its own and time its batches; on a GPU with each kind of execution.

    Args:
        report: Called with a report of each step.

    Raises:
        OperatorError: The model cannot be measured; the message says why.
    """
    facts = measure_in_process(order, report)
    measured = Measured(facts, {"auto": _fit_curve(facts)})
    if facts["framework"] != "onnx" or facts["device"] == "cpu":
        return measured
    for execution in _EXECUTIONS:
        report({"step": f"execution {execution}"})
        variant = replace(order, settings={**order.settings, "execution": execution})
        try:
            measured.curves[execution] = _fit_curve(measure_in_process(variant, report))
        except LoadFailed as error:
            # For example, not every model can be captured as a CUDA graph.
            report({"note": f"execution {execution} is left out: {error}"})
    return measured


def find_settings(
    measured: Measured, load: Load, cost: RequestCost | None = None, step: Step = lambda _done, _of: None
) -> SearchResult:
    """Search the settings of a measured model.

    Args:
        cost: The cost of a request beside its batch; None to search for the device alone.

    Raises:
        InvalidSettings: Not even a batch of one row is within the target.
    """
    space = make_space(measured)
    curves = measured.curves.values()
    beside_ms, most_rows_per_s = 0.0, math.inf
    if cost is not None:
        beside_ms = max(0.0, cost.lone_ms - min(curve.alone(load.rows) for curve in curves) / 1e6)
        most_rows_per_s = cost.most_requests_per_s * load.rows
    least_ms = min(curve.alone(1) for curve in curves) / 1e6 + beside_ms
    if least_ms > load.target_ms:
        raise InvalidSettings(
            f"one row takes {least_ms:.3g} ms here, so no answer can be within {load.target_ms:g} ms; raise "
            "--target-ms, or take a faster device"
        )
    # The device has the time that the request's way leaves.
    load = msgspec.structs.replace(
        load, target_ms=load.target_ms - beside_ms, most_rows_per_s=most_rows_per_s
    )
    found = search(space, load, step)

    def add_request_time(estimate: Estimate) -> Estimate:
        parts = (estimate.p50_ms, estimate.p99_ms, estimate.light_ms)
        p50_ms, p99_ms, light_ms = (each and each + beside_ms for each in parts)
        return msgspec.structs.replace(estimate, p50_ms=p50_ms, p99_ms=p99_ms, light_ms=light_ms)

    return SearchResult(tuple(map(add_request_time, found.ranked)), add_request_time(found.default))


def make_space(measured: Measured) -> Space:
    """The search space of a measured model."""
    facts = measured.facts
    default = Candidate(
        facts["max_batch_rows"],
        facts["instances"],
        tuple(facts["batch_buckets"]),
        requests=facts["takes"] != "rows",
        admission=facts["admission"],
    )
    return Space(measured.curves, default, forks=facts["forks"])


def _fit_curve(facts: dict[str, Any]) -> MeasuredCurve:
    return MeasuredCurve.fit(facts["alone"], facts["beside"], filled=bool(facts["batch_buckets"]))
