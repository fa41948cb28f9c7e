"""Load reports of a model in its answers, for load balancers: ORCA's header `endpoint-load-metrics`, as in Triton."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Final, Literal, TypeAlias

from stoker.metrics.load import LoadMeter
from stoker.metrics.memory import MetricMemory

LOAD_HEADER: Final = b"endpoint-load-metrics-format"
"""The request header that asks for it, in lower case."""

LoadFormat: TypeAlias = Literal["TEXT", "JSON"]

_FRESH_NS: Final = 10_000_000


def load_format(value: bytes | None) -> LoadFormat | None:
    """Return the requested format; None for an unknown format: the request is answered without a report."""
    match (value or b"").strip().upper():
        case b"TEXT":
            return "TEXT"
        case b"JSON":
            return "JSON"
    return None


class LoadReports:
    """The load of one model as reported in answers; computed at most a hundred times a second.

    Attributes:
        utilization: The load that `line` has reported last.
    """

    utilization = 0.0

    def __init__(
        self, metrics: MetricMemory, slot: int, clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._metrics, self._slot, self._clock_ns = metrics, slot, clock_ns
        self._meter: LoadMeter | None = None
        self._read_ns: int | None = None
        self._lines: dict[LoadFormat, bytes] = {}

    def line(self, form: LoadFormat) -> bytes:
        """Return the header line."""
        now_ns = self._clock_ns()
        if self._read_ns is None or now_ns - self._read_ns >= _FRESH_NS:
            self._read_ns = now_ns
            self._lines = self._read()
        return self._lines[form]

    def _read(self) -> dict[LoadFormat, bytes]:
        if self._meter is None:
            # Created on first use: it keeps a copy of counters.
            self._meter = LoadMeter(self._metrics, lambda: self._clock_ns() / 1e9, self._slot)
        load = self._meter.read([self._slot])[self._slot]
        named = {}
        if load.capacity_rows_s:
            named["expected_wait_ms"] = round(1000 * load.rows / load.capacity_rows_s, 3)
            named["ms_per_row"] = round(1000 / load.capacity_rows_s, 6)
        self.utilization = round(load.ratio, 4)
        report = {"application_utilization": self.utilization, "named_metrics": named}
        flat = {
            "application_utilization": self.utilization,
            **{f"named_metrics.{name}": value for name, value in named.items()},
        }
        text = ", ".join(f"{name}={value}" for name, value in flat.items())
        return {
            "JSON": b"endpoint-load-metrics: JSON %b\r\n" % json.dumps(report).encode(),
            "TEXT": b"endpoint-load-metrics: TEXT %b\r\n" % text.encode(),
        }
