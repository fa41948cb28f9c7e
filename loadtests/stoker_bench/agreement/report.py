"""The report of how far a server does what the simulator says."""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from stoker_bench.reports.report import Bound, Report, at_most
from stoker_bench.reports.tables import aligned, figure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["AgreementReport", "LightRun", "Run"]

GOODPUT: Final = 0.05
P50: Final = 0.10
REFUSALS_MS: Final = 5.0
LIGHT_P50: Final = 0.02


def _share(value: float | None) -> str:
    return figure(None) if value is None else f"{value:.3f}"


COLUMNS: Final = (
    ("in time", "in_time", _share),
    ("simulated", "in_time_simulated", _share),
    ("in time for callers", "in_time_for_callers", _share),
    ("p50 ms", "p50_ms", figure),
    ("simulated", "p50_simulated_ms", figure),
    ("refused", "refused", _share),
    ("simulated", "refused_simulated", _share),
    ("refusals p99 ms", "refusals_p99_ms", figure),
    ("full batch ms", "full_batch_ms", figure),
    ("foreign cores", "foreign_cores", figure),
)
"""The heading of each column, the attribute of runs whose median it tells, and what writes it."""


@dataclass(frozen=True)
class Run:
    """One run of an open loop, and what the simulator makes of its arrivals.

    Attributes:
        load: Rows asked for, as a part of what the model does in full batches.
        queries: How many requests.
        in_time: Which part was ready within its target, by the server's count.
        in_time_simulated: The same, simulated.
        in_time_for_callers: Which part was with its caller within the target.
        p50_ms, p50_simulated_ms: Median time to answers that were with their callers within the target.
        refused, refused_simulated: Which part was refused when it came.
        refusals_p99_ms: Within which time 99 % of these were told so; None if there are none.
        failed: Requests with neither an answer nor a refusal.
        full_batch_ms: What a full batch took, as the server has learned; the simulator is told what all sizes did.
        foreign_cores: Cores that others kept busy meanwhile.
    """

    load: float
    queries: int
    in_time: float
    in_time_simulated: float
    in_time_for_callers: float
    p50_ms: float
    p50_simulated_ms: float
    refused: float
    refused_simulated: float
    refusals_p99_ms: float | None
    failed: int
    full_batch_ms: float
    foreign_cores: float | None


@dataclass(frozen=True)
class LightRun:
    """Two runs at a light load, with the same arrivals.

    Attributes:
        load: Rows asked for, as a part of what the model does in full batches.
        p50_ms: Median time to the answer of the server with a target.
        p50_without_ms: Of that without.
    """

    load: float
    p50_ms: float
    p50_without_ms: float


@dataclass
class AgreementReport(Report):
    """How far a server does what the simulator says.

    Attributes:
        target_ms: How long an answer is worth something.
        lone_ms: Time to the answer of lone requests; what it is above their batch, answers take in the simulator too.
        runs: The runs of each load.
        light: The pairs of runs of each light load.
    """

    target_ms: float = 0.0
    lone_ms: float = 0.0
    runs: list[Run] = field(default_factory=list)
    light: list[LightRun] = field(default_factory=list)

    def notes(self) -> list[str]:
        """Return the tables."""
        lone = f"A lone request took {self.lone_ms:.1f} ms (median)."
        rows = [
            [f"{load:g}", *(told(self._median(load, attrgetter(name))) for _, name, told in COLUMNS)]
            for load in _loads(self.runs)
        ]
        headings = ["load", *(heading for heading, _, _ in COLUMNS)]
        light = [[f"{load:g}", *map(figure, self._light(load))] for load in _loads(self.light)]
        failed = sum(run.failed for run in self.runs)
        return [
            lone,
            f"Medians of runs with a target of {self.target_ms:g} ms\n\n{aligned(headings, rows)}",
            *([f"{failed:,} requests had no answer."] if failed else []),
            aligned(("load", "p50 ms with a target", "without", "p50 over that without"), light),
        ]

    def bounds(self) -> list[Bound]:
        """Return the bounds."""
        return list(self._bounds())

    def _bounds(self) -> Iterator[Bound]:
        for load in _loads(self.runs):
            apart = self._median(load, lambda run: _apart(run.in_time, run.in_time_simulated))
            yield from at_most(f"load {load:g}: rows in time apart from the simulator", apart, GOODPUT)
            apart = self._median(load, lambda run: _apart(run.p50_ms, run.p50_simulated_ms))
            yield from at_most(f"load {load:g}: p50 apart from the simulator", apart, P50)
            told = self._median(load, lambda run: run.refusals_p99_ms)
            yield from at_most(f"load {load:g}: refusals told within, ms, p99", told, REFUSALS_MS)
        for load in _loads(self.light):
            apart = abs(self._light(load)[2] - 1)
            yield from at_most(f"load {load:g}: p50 apart from that without a target", apart, LIGHT_P50)

    def further(self) -> dict[str, Any]:
        """Return all runs."""
        return {
            "target_ms": self.target_ms,
            "lone_ms": self.lone_ms,
            "runs": [asdict(run) for run in self.runs],
            "light": [asdict(run) for run in self.light],
        }

    def _median(self, load: float, get: Callable[[Run], float | None]) -> float | None:
        values = [value for run in self.runs if run.load == load and (value := get(run)) is not None]
        return statistics.median(values) if values else None

    def _light(self, load: float) -> tuple[float, float, float]:
        runs = [run for run in self.light if run.load == load]
        return (
            statistics.median(run.p50_ms for run in runs),
            statistics.median(run.p50_without_ms for run in runs),
            statistics.median(run.p50_ms / run.p50_without_ms for run in runs),
        )


def _loads(runs: Sequence[Run | LightRun]) -> list[float]:
    return list(dict.fromkeys(run.load for run in runs))


def _apart(measured: float, simulated: float) -> float:
    """How far they are apart, as a part of what was simulated."""
    if math.isnan(measured) or not simulated > 0:
        return math.inf
    return abs(measured / simulated - 1)
