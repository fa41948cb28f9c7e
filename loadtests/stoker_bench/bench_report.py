"""The report of one bench: tables for people, JSON for machines, and the bounds that Stoker sets itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from stoker_bench.baselines import BARE, HANDWRITTEN, STARLETTE
from stoker_bench.contest import disturbance, ratio, standing
from stoker_bench.machine import describe_machine
from stoker_bench.offline import NAME_PREFIX as OFFLINE
from stoker_bench.tables import aligned, figure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from stoker_bench.contest import Case, Slice
    from stoker_bench.start_up import FrontendWeight, StartUp

__all__ = ["BenchReport", "Bound", "CaseResult"]

MEGA = 1e6


@dataclass(frozen=True)
class Bound:
    """A bound that the project sets itself, and what was measured."""

    text: str
    measured: float
    met: bool

    def __str__(self) -> str:
        return f"{'met' if self.met else 'NOT MET':7}  {self.text}: {figure(self.measured)}"


@dataclass(frozen=True)
class CaseResult:
    """All slices of one case; entry i of every contestant lies in the same round.

    Attributes:
        case: The load.
        body_bytes: Size of the request's body.
        slices: Slices by contestant; the first contestant is Stoker.
        pss_bytes: Memory of each server's whole tree after the case.
    """

    case: Case
    body_bytes: int
    slices: dict[str, list[Slice]]
    pss_bytes: dict[str, int]

    @property
    def baselines(self) -> list[str]:
        """Every contestant but the first."""
        return list(self.slices)[1:]

    def ratio(self, get: Callable[[Slice], float | None], baseline: str) -> float | None:
        """Return the median ratio of Stoker's figure to a baseline's; None where that did not run."""
        if baseline not in self.slices:
            return None
        return ratio(get, next(iter(self.slices.values())), self.slices[baseline])

    def __str__(self) -> str:
        parts = [f"{self.case.title} ({self.body_bytes:,} bytes)", self._figures()]
        if self.baselines:
            parts.append(self._ratios())
        for name, slices in self.slices.items():
            if errors := standing(slices).errors:
                parts.append(f"{name}: {errors:,} failed requests, so its figures do not count.")
        return "\n\n".join(parts)

    def _figures(self) -> str:
        headings = [
            "medians",
            "requests/s",
            "rows/s",
            "CPU µs/request",
            "p50 ms",
            "p99 ms",
            "mean batch",
            "PSS MB",
        ]
        rows = []
        for name, slices in self.slices.items():
            medians, pss_bytes = standing(slices), self.pss_bytes.get(name)
            figures = [medians.requests_per_s, medians.rows_per_s, medians.cpu_us_per_request]
            figures += [medians.p50_ms, medians.p99_ms, medians.mean_batch_rows]
            figures.append(pss_bytes / MEGA if pss_bytes is not None else None)
            rows.append([name, *map(figure, figures)])
        return aligned(headings, rows)

    def _ratios(self) -> str:
        headings = ["Stoker over", "rows/s", "CPU/request", "p50", "p99"]
        rows = [
            [name, *(figure(self.ratio(get, name)) for get in (_rows_per_s, _cpu_us, _p50_ms, _p99_ms))]
            for name in self.baselines
        ]
        return aligned(headings, rows)

    def as_json(self) -> dict[str, Any]:
        """Return the medians and all slices by contestant, and Stoker's ratios by baseline."""
        contestants = {
            name: {
                "median": asdict(standing(slices)),
                "pss_bytes": self.pss_bytes.get(name),
                "slices": [asdict(taken) for taken in slices],
            }
            for name, slices in self.slices.items()
        }
        ratios = {
            name: {
                "rows_per_s": self.ratio(_rows_per_s, name),
                "cpu_per_request": self.ratio(_cpu_us, name),
                "p50": self.ratio(_p50_ms, name),
                "p99": self.ratio(_p99_ms, name),
            }
            for name in self.baselines
        }
        case = {**asdict(self.case), "body_bytes": self.body_bytes}
        return {"case": case, "contestants": contestants, "stoker_over": ratios}


@dataclass
class BenchReport:
    """What a bench found."""

    generator: str
    seconds: int
    rounds: int
    model: Path | None
    start_up: StartUp | None = None
    cases: list[CaseResult] = field(default_factory=list)
    weight_after_load: FrontendWeight | None = None

    def bounds(self) -> list[Bound]:
        """Return the bounds whose figures this run has."""
        found = [bound for result in self.cases for bound in _case_bounds(result)]
        if self.start_up:
            beyond_s = self.start_up.beyond_import_s
            found.append(
                Bound("seconds until ready beyond importing onnxruntime < 1.5", beyond_s, beyond_s < 1.5)
            )
        if self.weight_after_load:
            rss_mb = self.weight_after_load.rss_bytes / MEGA
            found.append(Bound("resident MB of a frontend after the load < 80", rss_mb, rss_mb < 80))
            frameworks = len(self.weight_after_load.frameworks)
            found.append(Bound("frameworks mapped by a frontend = 0", frameworks, frameworks == 0))
        return found

    def __str__(self) -> str:
        model = self.model.name if self.model else "seeded MLP 784-300-100-10"
        machine = describe_machine()
        parts = [
            f"Stoker {machine.get('stoker', '')}, {model}; load by {self.generator} on the same "
            f"{machine['cores']} cores ({machine['processor']}); "
            f"{self.rounds} slices of {self.seconds} s each in turns",
            *map(str, self.cases),
        ]
        every = [taken for case in self.cases for slices in case.slices.values() for taken in slices]
        if disturbed := disturbance(every):
            parts.append(disturbed)
        if self.start_up:
            parts.append(_start_up_line(self.start_up))
        if bounds := self.bounds():
            parts.append("\n".join(["Bounds", *map(str, bounds)]))
        return "\n\n".join(parts)

    def as_json(self) -> dict[str, Any]:
        """Return everything, slices included, as a JSON document."""
        return {
            "taken": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": describe_machine(),
            "generator": self.generator,
            "seconds": self.seconds,
            "rounds": self.rounds,
            "model": self.model.name if self.model else None,
            "cases": [result.as_json() for result in self.cases],
            "start_up": asdict(self.start_up) if self.start_up else None,
            "frontend_after_load": asdict(self.weight_after_load) if self.weight_after_load else None,
            "bounds": [asdict(bound) for bound in self.bounds()],
        }


def _start_up_line(start_up: StartUp) -> str:
    line = (
        f"Start-up: ready after {start_up.ready_s:.2f} s; importing onnxruntime takes "
        f"{start_up.import_s:.2f} s, so {start_up.beyond_import_s:.2f} s beyond it."
    )
    if weight := start_up.weight:
        line += (
            f"\nFrontends when ready: {weight.frontends}, at most {weight.rss_bytes / MEGA:.0f} MB resident "
            f"({weight.pss_bytes / MEGA:.0f} MB PSS) each."
        )
    return line


def _case_bounds(result: CaseResult) -> Iterator[Bound]:
    at = f"at {result.case.title}"

    def at_least(text: str, measured: float | None, least: float) -> Iterator[Bound]:
        if measured is not None:
            yield Bound(f"{text} ≥ {least} {at}", measured, measured >= least)

    def at_most(text: str, measured: float | None, most: float) -> Iterator[Bound]:
        if measured is not None:
            yield Bound(f"{text} ≤ {most} {at}", measured, measured <= most)

    if result.case.rows > 1:
        offline = next((name for name in result.baselines if name.startswith(OFFLINE)), "")
        yield from at_least(f"rows/s over {offline}", result.ratio(_rows_per_s, offline), 0.8)
    elif result.case.connections == 1:
        yield from at_most(f"p50 over {BARE}", result.ratio(_p50_ms, BARE), 2)
    else:
        yield from at_least(f"requests/s over {BARE}", result.ratio(_rows_per_s, BARE), 0.9)
        yield from at_least(f"requests/s over {STARLETTE}", result.ratio(_rows_per_s, STARLETTE), 1.3)
        yield from at_least(f"requests/s over {HANDWRITTEN}", result.ratio(_rows_per_s, HANDWRITTEN), 3)
        yield from at_most(f"CPU per request over {BARE}", result.ratio(_cpu_us, BARE), 1.1)
        batch_rows = standing(next(iter(result.slices.values()))).mean_batch_rows
        if batch_rows is not None:
            yield Bound(f"mean batch > 4 {at}", batch_rows, batch_rows > 4)


def _rows_per_s(taken: Slice) -> float:
    return taken.rows_per_s


def _cpu_us(taken: Slice) -> float | None:
    return taken.cpu_us_per_request


def _p50_ms(taken: Slice) -> float | None:
    return taken.p50_ms


def _p99_ms(taken: Slice) -> float | None:
    return taken.p99_ms
