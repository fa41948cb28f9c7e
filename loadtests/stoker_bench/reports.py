"""Reports of benches: tables for people, JSON for machines, and the bounds that Stoker sets itself."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from stoker_bench.contestants.contest import Case, Slice, disturbance, ratio, standing

UNKNOWN = "–"
WHOLE_FROM, TENTHS_FROM = 100, 10


def figure(value: float | None) -> str:
    """Return a figure with three significant digits or so, thousands grouped; a dash for None."""
    if value is None:
        return UNKNOWN
    if abs(value) >= WHOLE_FROM:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= TENTHS_FROM else f"{value:.2f}"


def aligned(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose first column is flush left and whose other columns are flush right."""
    widths = [max(len(row[column]) for row in (headings, *rows)) for column in range(len(headings))]

    def line(cells: Sequence[str]) -> str:
        first, *others = cells
        padded = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        return "  ".join([first.ljust(widths[0]), *padded]).rstrip()

    return "\n".join([line(headings), line(["-" * width for width in widths]), *map(line, rows)])


PACKAGES = ("stoker", "uvicorn", "uvloop", "httptools", "starlette", "orjson", "pysimdjson", "numpy")
RUNTIMES = ("onnxruntime-gpu", "onnxruntime")


def describe_machine() -> dict[str, str | int]:
    """Return the processor, the cores that this process may use, Python's and the packages' versions."""
    facts: dict[str, str | int] = {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }
    for package in PACKAGES + RUNTIMES:
        try:
            facts[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return facts


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


MEGA = 1e6


@dataclass(frozen=True)
class Bound:
    """A bound that the project sets itself, and the measured value."""

    text: str
    measured: float
    met: bool

    def __str__(self) -> str:
        return f"{'met' if self.met else 'NOT MET':7}  {self.text}: {figure(self.measured)}"


def at_least(text: str, measured: float | None, least: float) -> Iterator[Bound]:
    """Yield the bound, if the figure was measured."""
    if measured is not None:
        yield Bound(text, measured, measured >= least)


def at_most(text: str, measured: float | None, most: float) -> Iterator[Bound]:
    """Yield the bound, if the figure was measured."""
    if measured is not None:
        yield Bound(text, measured, measured <= most)


class CaseResult(Struct, frozen=True):
    """All slices of one case; entry i of every contestant lies in the same round.

    Attributes:
        body_bytes: The distinct sizes of the contestants' request bodies.
        slices: Slices by contestant; ratios are those of the first to the others.
        pss_bytes: Memory of each server's process tree after the case.
        subject: The loaded model, in reports with several.
        yardstick: The contestant that all others are compared with; empty to compare the first with each other one.
    """

    case: Case
    body_bytes: tuple[int, ...]
    slices: dict[str, list[Slice]]
    pss_bytes: dict[str, int]
    subject: str = ""
    yardstick: str = ""

    @property
    def title(self) -> str:
        """A heading for tables."""
        return f"{self.subject}: {self.case.title}" if self.subject else self.case.title

    @property
    def first(self) -> str:
        """The first contestant's name."""
        return next(iter(self.slices))

    @property
    def baselines(self) -> list[str]:
        """Every contestant but the first."""
        return list(self.slices)[1:]

    def ratio(
        self, get: Callable[[Slice], float | None], baseline: str, contestant: str = ""
    ) -> float | None:
        """Return the median ratio of a contestant's figure, by default the first's, to a baseline's."""
        if baseline not in self.slices:
            return None
        return ratio(get, self.slices[contestant or self.first], self.slices[baseline])

    def ratios(self) -> dict[str, dict[str, float | None]]:
        """Return the ratios of all figures: of the first to each baseline, or of each to the yardstick."""
        if self.yardstick:
            pairs = {name: (self.yardstick, name) for name in self.slices if name != self.yardstick}
        else:
            pairs = {name: (name, self.first) for name in self.baselines}
        return {
            name: {key: self.ratio(get, *pair) for key, get in _COMPARED.items()}
            for name, pair in pairs.items()
        }

    def __str__(self) -> str:
        sizes = " or ".join(f"{size:,}" for size in self.body_bytes)
        parts = [f"{self.title} ({sizes} bytes)", self._figures()]
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
        compared = f"over {self.yardstick}" if self.yardstick else f"{self.first} over"
        rows = [[name, *map(figure, ratios.values())] for name, ratios in self.ratios().items()]
        return aligned([compared, "rows/s", "CPU/request", "p50", "p99"], rows)

    def as_json(self) -> dict[str, Any]:
        """Return the medians and all slices by contestant, and the ratios."""
        contestants = {
            name: {
                "median": asdict(standing(slices)),
                "pss_bytes": self.pss_bytes.get(name),
                "slices": [asdict(taken) for taken in slices],
            }
            for name, slices in self.slices.items()
        }
        case = {"subject": self.subject, **asdict(self.case), "body_bytes": self.body_bytes}
        return {"case": case, "contestants": contestants, "first": self.first, "first_over": self.ratios()}


def no_bounds(_result: CaseResult) -> Iterable[Bound]:
    """Return no bounds, for benches without any."""
    return ()


@dataclass
class Report:
    """The results of a bench.

    Attributes:
        rounds: Slices of each contestant per case.
        bounds_of: Returns the bounds that a case has the figures of.
        further_bounds: Bounds of the whole run.
        notes: Further paragraphs.
    """

    generator: str
    seconds: int
    rounds: int
    subject: str
    bounds_of: Callable[[CaseResult], Iterable[Bound]] = no_bounds
    cases: list[CaseResult] = field(default_factory=list)
    further_bounds: list[Bound] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def bounds(self) -> list[Bound]:
        """Return the bounds whose figures this run has."""
        return [*(bound for case in self.cases for bound in self.bounds_of(case)), *self.further_bounds]

    def __str__(self) -> str:
        machine = describe_machine()
        parts = [
            f"Stoker {machine.get('stoker', '')}, {self.subject}; load by {self.generator} on the same "
            f"{machine['cores']} cores ({machine['processor']}); "
            f"{self.rounds} slices of {self.seconds} s each in turns",
            *map(str, self.cases),
        ]
        every = [taken for case in self.cases for slices in case.slices.values() for taken in slices]
        if disturbed := disturbance(every):
            parts.append(disturbed)
        parts += self.notes
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
            "subject": self.subject,
            "cases": [result.as_json() for result in self.cases],
            "notes": self.notes,
            "bounds": [asdict(bound) for bound in self.bounds()],
        }


def rows_per_s(taken: Slice) -> float:
    """Rows a second, of which ratios are made."""
    return taken.rows_per_s


def cpu_us(taken: Slice) -> float | None:
    """CPU time of a request."""
    return taken.cpu_us_per_request


def p50_ms(taken: Slice) -> float | None:
    """Median latency."""
    return taken.p50_ms


def p99_ms(taken: Slice) -> float | None:
    """99th percentile of the latency."""
    return taken.p99_ms


_COMPARED: Final[Mapping[str, Callable[[Slice], float | None]]] = {
    "rows_per_s": rows_per_s,
    "cpu_per_request": cpu_us,
    "p50": p50_ms,
    "p99": p99_ms,
}


def say(step: str) -> None:
    """Print a progress message."""
    print(f"bench: {step} …", file=sys.stderr, flush=True)
