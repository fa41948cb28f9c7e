"""Conditions on runs, as people type them: `accuracy > 0.9 and status = Completed and tags.lr = 0.1`."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from stoker.errors import InvalidSettings
from stoker.runs.summary import RunSummary

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
"""What is known of every run; other names are those of metrics, and with `tags.` before them of labels."""

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
        name: What is compared: one of `FACTS`, a label `tags.NAME`, or the name of a metric.
        sign: How.
        value: With what.
    """

    name: str
    sign: str
    value: str

    @property
    def metric(self) -> str | None:
        """The metric that it compares, or None."""
        return _metric(self.name)

    def holds(self, run: RunSummary) -> bool:
        """Whether it is true of a run; of one that lacks what is compared it is not."""
        there = _value(run, self.name)
        if there is None:
            return False
        if isinstance(there, str):
            return _COMPARISONS[self.sign](there, self.value)
        return _COMPARISONS[self.sign](there, _number(self.name, self.value))


@dataclass(frozen=True, slots=True)
class SortKey:
    """By what runs are sorted: `NAME`, or `-NAME` for the greatest first; those that lack it come last."""

    text: str

    @property
    def name(self) -> str:
        """What is compared."""
        return self.text.removeprefix("-")

    @property
    def metric(self) -> str | None:
        """The metric that is compared, or None."""
        return _metric(self.name)

    def sort(self, runs: list[RunSummary]) -> list[RunSummary]:
        """Return the runs in this order; equal ones stay as they are."""
        values = {run.id: _value(run, self.name) for run in runs}
        # NaN has no place in an order.
        lacking = [run for run in runs if values[run.id] in (None, "") or values[run.id] != values[run.id]]
        without = {run.id for run in lacking}
        others = [run for run in runs if run.id not in without]
        others.sort(key=lambda run: values[run.id], reverse=self.text.startswith("-"))
        return [*others, *lacking]


def read_conditions(text: str) -> list[Condition]:
    """Read conditions that `and` joins.

    Raises:
        InvalidSettings: One of them is none.
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
