"""Contestants measured in turns: A B C D A B C D …, so that a drifting clock meets all of them alike."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["Case", "Contestant", "Slice", "disturbance", "ratio", "run_in_turns", "standing"]

LEAD_IN_S = 1
NOTABLE_FOREIGN_CORES = 0.1


@dataclass(frozen=True)
class Case:
    """One kind of load.

    Attributes:
        connections: Callers, each with one request under way at a time.
        rows: Rows a request.
    """

    connections: int
    rows: int = 1

    @property
    def title(self) -> str:
        """A heading for tables."""
        rows = "1 row" if self.rows == 1 else f"{self.rows} rows"
        return f"{self.connections} connection{'s' * (self.connections > 1)}, {rows} a request"


@dataclass(frozen=True)
class Slice:
    """What one contestant did in one turn; None stands for what cannot be known of it."""

    rows_per_s: float
    requests_per_s: float
    errors: int
    p50_ms: float | None = None
    p99_ms: float | None = None
    cpu_us_per_request: float | None = None
    mean_batch_rows: float | None = None
    foreign_cores: float | None = None
    """Cores that were busy with neither the server nor the load: what disturbed the slice."""


class Contestant(Protocol):
    """Something that can be loaded for a while."""

    @property
    def name(self) -> str:
        """What the tables call it."""

    def run(self, case: Case, seconds: int) -> Slice:
        """Take a turn."""


def run_in_turns(
    contestants: Sequence[Contestant],
    case: Case,
    seconds: int,
    rounds: int,
    on_slice: Callable[[str, Slice], None],
) -> dict[str, list[Slice]]:
    """Give each contestant one slice a round; entry i of every list lies in the same round.

    Each slice begins after a second of the same load that does not count: while the others had their turns, the
    system may have taken back pages of an idle server, and it should not pay for that as if under load.
    """
    slices: dict[str, list[Slice]] = {contestant.name: [] for contestant in contestants}
    for _ in range(rounds):
        for contestant in contestants:
            if seconds > LEAD_IN_S:
                contestant.run(case, LEAD_IN_S)
            taken = contestant.run(case, seconds)
            slices[contestant.name].append(taken)
            on_slice(contestant.name, taken)
    return slices


def standing(slices: Sequence[Slice]) -> Slice:
    """Summarise one contestant's slices: the median of each figure, the sum of the errors."""

    def median(figure: Callable[[Slice], float | None]) -> float | None:
        known = [value for value in map(figure, slices) if value is not None]
        return statistics.median(known) if known else None

    return Slice(
        rows_per_s=statistics.median(taken.rows_per_s for taken in slices),
        requests_per_s=statistics.median(taken.requests_per_s for taken in slices),
        errors=sum(taken.errors for taken in slices),
        p50_ms=median(lambda taken: taken.p50_ms),
        p99_ms=median(lambda taken: taken.p99_ms),
        cpu_us_per_request=median(lambda taken: taken.cpu_us_per_request),
        mean_batch_rows=median(lambda taken: taken.mean_batch_rows),
        foreign_cores=median(lambda taken: taken.foreign_cores),
    )


def ratio(
    figure: Callable[[Slice], float | None], mine: Sequence[Slice], theirs: Sequence[Slice]
) -> float | None:
    """Return the median over the rounds of one contestant's figure over another's in the same round."""
    quotients = []
    for own, other in zip(mine, theirs, strict=True):
        top, bottom = figure(own), figure(other)
        if top is not None and bottom:
            quotients.append(top / bottom)
    return statistics.median(quotients) if quotients else None


def disturbance(slices: Iterable[Slice]) -> str | None:
    """Say how much other processes disturbed the slices; None where they did not to speak of."""
    known = [taken.foreign_cores for taken in slices if taken.foreign_cores is not None]
    if not known or statistics.mean(known) < NOTABLE_FOREIGN_CORES:
        return None
    return (
        f"Other processes kept {statistics.mean(known):.1f} cores busy meanwhile, so these figures are "
        "not those of a free machine."
    )
