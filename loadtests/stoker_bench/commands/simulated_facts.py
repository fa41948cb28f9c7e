"""What has become of simulated requests, as lines of a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stoker.simulation.world import Outcome

__all__ = ["facts_of", "mean", "not_taken", "table"]


def mean(parts: Iterable[float]) -> float | None:
    """The mean of numbers, to three digits; None of none."""
    known = list(parts)
    return round(sum(known) / len(known), 3) if known else None


def not_taken(outcomes: Sequence[Outcome]) -> dict[str, object]:
    """Which part of the rows was refused when it came."""
    return {"not taken": mean(one.refused_rows / max(1, int(one.requests.rows.sum())) for one in outcomes)}


def facts_of(outcomes: Sequence[Outcome], model: int | None = None) -> dict[str, object]:
    """A line: the mean of several simulations.

    Args:
        outcomes: These.
        model: Of which model; None for all.
    """
    count = len(outcomes)
    if model is not None:
        rows = [outcome.requests.rows[outcome.requests.model == model].sum() for outcome in outcomes]
        return {
            "rows": int(sum(rows)),
            "in time": round(sum(outcome.in_time(model) for outcome in outcomes) / count, 3),
            "p50 ms": None,
            "p99 ms": None,
            "rows a batch": None,
            "busy": round(sum(outcome.busy_ns[model] / outcome.end_ns for outcome in outcomes) / count, 3),
        }
    asked = sum(int(outcome.requests.rows.sum()) for outcome in outcomes)
    batches = sum(outcome.batches for outcome in outcomes)
    answered = sum(outcome.answered_rows for outcome in outcomes)
    return {
        "rows": asked,
        "in time": round(sum(outcome.in_time() for outcome in outcomes) / count, 3),
        "p50 ms": round(sum(outcome.latency_ms(0.5) for outcome in outcomes) / count, 2),
        "p99 ms": round(sum(outcome.latency_ms(0.99) for outcome in outcomes) / count, 2),
        "rows a batch": round(answered / max(1, batches), 1),
        "busy": round(sum(sum(outcome.busy_ns) / outcome.end_ns for outcome in outcomes) / count, 3),
    }


def table(rows: Sequence[dict[str, object]]) -> Iterator[str]:
    """The lines of a table, with a head."""
    names = list(rows[0])
    texts = [["" if row[name] is None else str(row[name]) for name in names] for row in rows]
    widths = [max(map(len, column)) for column in zip(names, *texts, strict=True)]
    for cells in (names, *texts):
        first, *others = zip(cells, widths, strict=True)
        yield "  ".join((first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)))
