"""What a comparison found: Markdown tables for the README and JSON with every slice."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from stoker_bench.contestants.contest import Slice, disturbance, ratio, standing
from stoker_bench.generators.scoring_request import DATA_LISTS
from stoker_bench.reports.machine import describe_machine
from stoker_bench.reports.tables import figure, markdown

if TYPE_CHECKING:
    from collections.abc import Callable

    from stoker_bench.contestants.servers import Launch
    from stoker_bench.generators.scoring_request import Dialect

__all__ = ["Comparison", "Entry"]

MEGA = 1e6


@dataclass
class Entry:
    """One contestant and what was seen of it; the lists by connections run parallel, a slice a round."""

    name: str
    version: str
    configuration: str
    launch: Callable[[], Launch]
    dialect: Dialect = DATA_LISTS
    slices: dict[int, list[Slice]] = field(default_factory=dict)
    yardsticks: dict[int, list[Slice]] = field(default_factory=dict)
    """The hand-written service's slices right before `slices`."""
    start_s: list[float] = field(default_factory=list)
    """Seconds from starting the process to its first right answer, one a round."""
    pss_bytes: list[int] = field(default_factory=list)
    """Memory of the whole tree after its slices, one a round."""


@dataclass(frozen=True)
class Comparison:
    """What a comparison found."""

    generator: str
    seconds: int
    rounds: int
    entries: list[Entry]
    yardstick: Entry

    def table(self, connections: int) -> str:
        """Return the Markdown table of one concurrency, the fastest first."""
        headings = ["server", "how it was run", "× hand-written", "requests/s", "CPU µs/request"]
        headings += ["p50 ms", "p99 ms", "PSS MB", "start-up s"]
        ranked = sorted(self.entries, key=lambda entry: -(_times(entry, connections) or 0))
        rows = [_cells(entry, connections) for entry in ranked]
        rows.append(_cells(self.yardstick, connections))
        return markdown(headings, rows)

    def __str__(self) -> str:
        machine = describe_machine()
        told = (
            f"One row of 784 floats as JSON a request, load by {self.generator} on the same "
            f"{machine['cores']} cores ({machine['processor']}), Python {machine['python']}; "
            f"medians of {self.rounds} rounds of {self.seconds} s, × = median ratio to the hand-written "
            "service in the slice right before."
        )
        parts = [told]
        for connections in self.yardstick.slices:
            parts += [f"{connections} connections:", self.table(connections)]
            parts += [
                f"{entry.name} failed {errors:,} requests here, so its figures do not count."
                for entry in self.entries
                if (errors := standing(entry.slices[connections]).errors)
            ]
        every = [taken for entry in self.entries for slices in entry.slices.values() for taken in slices]
        if disturbed := disturbance(every):
            parts.append(disturbed)
        return "\n\n".join(parts)

    def as_json(self) -> dict[str, Any]:
        """Return every slice, its yardstick and the ratios."""
        return {
            "taken": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": describe_machine(),
            "generator": self.generator,
            "seconds": self.seconds,
            "rounds": self.rounds,
            "servers": [_entry_json(entry) for entry in (*self.entries, self.yardstick)],
        }


def _times(entry: Entry, connections: int) -> float | None:
    return ratio(lambda taken: taken.requests_per_s, entry.slices[connections], entry.yardsticks[connections])


def _cells(entry: Entry, connections: int) -> list[str]:
    medians = standing(entry.slices[connections])
    figures = [_times(entry, connections), medians.requests_per_s, medians.cpu_us_per_request]
    figures += [medians.p50_ms, medians.p99_ms]
    figures += [statistics.median(entry.pss_bytes) / MEGA, statistics.median(entry.start_s)]
    return [f"{entry.name} {entry.version}".strip(), entry.configuration, *map(figure, figures)]


def _entry_json(entry: Entry) -> dict[str, Any]:
    cases = {
        str(connections): {
            "median": asdict(standing(slices)),
            "times_handwritten": _times(entry, connections),
            "slices": [asdict(taken) for taken in slices],
            "handwritten_slices": [asdict(taken) for taken in entry.yardsticks[connections]],
        }
        for connections, slices in entry.slices.items()
    }
    facts = {"name": entry.name, "version": entry.version, "configuration": entry.configuration}
    return {**facts, "start_s": entry.start_s, "pss_bytes": entry.pss_bytes, "connections": cases}
