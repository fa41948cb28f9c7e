"""Conditions on runs, as typed by users: `accuracy > 0.9 and status = Completed and tags.lr = 0.1`."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from stoker.errors import InvalidSettings
from stoker_runs.records.summary import RunSummary

__all__ = ["FACTS", "Condition", "SortKey", "read_conditions"]

FACTS: Final = (
    "id",
    "experiment",
    "status",
    "target",
    "script",
    "created",
    "started",
    "ended",
    "duration",
    "parent",
)
"""Names available for every run; other names are metrics, or tags if prefixed with `tags.`."""

_COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_CLAUSE: Final = re.compile(r"\s*(?P<name>.+?)\s*(?P<sign>==|!=|>=|<=|=|>|<)\s*(?P<value>.+?)\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Condition:
    """One comparison.

    Attributes:
        name: The left-hand side: one of `FACTS`, a tag `tags.NAME`, or the name of a metric.
        sign: The comparison operator.
        value: The right-hand side.
    """

    name: str
    sign: str
    value: str

    @property
    def metric(self) -> str | None:
        """The compared metric, or None."""
        return _metric(self.name)

    def holds(self, run: RunSummary) -> bool:
        """Whether it is true for a run; false if the run lacks the compared value."""
        there = _value(run, self.name)
        if there is None:
            return False
        if isinstance(there, str):
            return _COMPARISONS[self.sign](there, self.value)
        return _COMPARISONS[self.sign](there, _number(self.name, self.value))


@dataclass(frozen=True, slots=True)
class SortKey:
    """A sort order: `NAME`, or `-NAME` for descending; runs that lack the value come last."""

    text: str

    @property
    def name(self) -> str:
        """The name of the value to sort by."""
        return self.text.removeprefix("-")

    @property
    def metric(self) -> str | None:
        """The metric to sort by, or None."""
        return _metric(self.name)

    def sort(self, runs: list[RunSummary]) -> list[RunSummary]:
        """Return the runs in this order; the sort is stable."""
        values = {run.id: _value(run, self.name) for run in runs}
        # NaN cannot be ordered.
        lacking = [run for run in runs if values[run.id] in (None, "") or values[run.id] != values[run.id]]
        without = {run.id for run in lacking}
        others = [run for run in runs if run.id not in without]
        others.sort(key=lambda run: values[run.id], reverse=self.text.startswith("-"))
        return [*others, *lacking]


def read_conditions(text: str) -> list[Condition]:
    """Parse conditions joined by `and`.

    Raises:
        InvalidSettings: A condition is malformed.
    """
    conditions = []
    for part in re.split(r"\s+and\s+", text.strip(), flags=re.IGNORECASE):
        found = _CLAUSE.fullmatch(part)
        if found is None:
            raise InvalidSettings(
                f"{part!r} is no condition: write NAME > VALUE, such as accuracy > 0.9; names are those of metrics, "
                f"{', '.join(FACTS)} and tags.NAME, and 'and' joins several"
            )
        conditions.append(Condition(found["name"], found["sign"], found["value"].strip("\"'")))
    return conditions


def _metric(name: str) -> str | None:
    return None if name in FACTS or name.startswith("tags.") else name


def _value(run: RunSummary, name: str) -> Any:
    if name in ("created", "started", "ended"):
        return getattr(run, f"{name}_ms")
    if name == "duration":
        if run.started_ms is None or run.ended_ms is None:
            return None
        return (run.ended_ms - run.started_ms) / 1000
    if name == "status":
        return run.status.value
    if name in FACTS:
        return getattr(run, name)
    if name.startswith("tags."):
        return run.tags.get(name.removeprefix("tags."))
    numbers = run.metrics.get(name)
    return None if numbers is None else numbers.last


def _number(name: str, text: str) -> float:
    try:
        if name in ("created", "started", "ended"):
            time = datetime.fromisoformat(text)
            return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000
        return math.nan if text.lower() == "nan" else float(text)
    except ValueError:
        kind = "a time such as 2026-01-31" if name in ("created", "started", "ended") else "a number"
        raise InvalidSettings(f"{name} is compared with {kind}, not with {text!r}") from None
