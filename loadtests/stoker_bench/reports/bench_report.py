"""What `stoker bench` finds of a model: the cases, the start-up, the frontends' weight, and their bounds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from stoker_bench.contestants.baselines import BARE, HANDWRITTEN, STARLETTE
from stoker_bench.contestants.contest import standing
from stoker_bench.contestants.offline import NAME_PREFIX as OFFLINE
from stoker_bench.reports.report import MEGA, Bound, Report, at_least, at_most, cpu_us, p50_ms, rows_per_s

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stoker_bench.contestants.start_up import FrontendWeight, StartUp
    from stoker_bench.reports.report import CaseResult

__all__ = ["BenchReport"]


@dataclass
class BenchReport(Report):
    """What a bench of a model found."""

    start_up: StartUp | None = None
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

    def notes(self) -> list[str]:
        """Return the line about the start-up."""
        return [_start_up_line(self.start_up)] if self.start_up else []

    def further(self) -> dict[str, Any]:
        """Return start-up and weight."""
        return {
            "start_up": asdict(self.start_up) if self.start_up else None,
            "frontend_after_load": asdict(self.weight_after_load) if self.weight_after_load else None,
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
    if result.case.rows > 1:
        offline = next((name for name in result.baselines if name.startswith(OFFLINE)), "")
        yield from at_least(f"rows/s over {offline} ≥ 0.8 {at}", result.ratio(rows_per_s, offline), 0.8)
    elif result.case.connections == 1:
        yield from at_most(f"p50 over {BARE} ≤ 2 {at}", result.ratio(p50_ms, BARE), 2)
    else:
        for baseline, least in ((BARE, 0.9), (STARLETTE, 1.3), (HANDWRITTEN, 3)):
            measured = result.ratio(rows_per_s, baseline)
            yield from at_least(f"requests/s over {baseline} ≥ {least} {at}", measured, least)
        yield from at_most(f"CPU per request over {BARE} ≤ 1.1 {at}", result.ratio(cpu_us, BARE), 1.1)
        batch_rows = standing(result.slices[result.first]).mean_batch_rows
        if batch_rows is not None:
            yield Bound(f"mean batch > 4 {at}", batch_rows, batch_rows > 4)
