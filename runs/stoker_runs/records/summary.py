"""Summaries of runs with their numeric metrics, and conditions on them, as typed by users."""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from stoker.errors import InvalidSettings
from stoker_runs.records.folder import RunFolder, numbers_of, object_of, read_chunks
from stoker_runs.records.serialization import Record
from stoker_runs.records.states import TERMINAL, Status

# A number as the agent writes it, else the whole line. Invalid JSON and overflowing numbers do not match the first
# form. Possessive quantifiers avoid backtracking, which saves a fifth of the time.
_LINES: Final = re.compile(
    rb'^(?:\{"t":\d++,"k":("[ !#-\[\]-~]*+"),"v":(-?(?:0|[1-9]\d{0,299}+)(?:\.\d++)?+(?:[eE][-+]?\d++)?+)'
    rb'(?:,"s":-?\d++)?+,"a":\d++(?:,"r":\d++)?+\}|(.+))$',
    re.MULTILINE,
)


class MetricStatistics(Struct):
    """Statistics of one metric.

    Attributes:
        least: The smallest finite value; NaN if there is none.
        most: The largest finite value; NaN if there is none.
    """

    last: float
    least: float = math.nan
    most: float = math.nan
    count: int = 0

    def add(self, value: float) -> None:
        """Add one value."""
        self.last, self.count = value, self.count + 1
        if math.isfinite(value):
            self.least = value if math.isnan(self.least) else min(self.least, value)
            self.most = value if math.isnan(self.most) else max(self.most, value)

    def add_several(self, values: Sequence[float]) -> None:
        """Add values, at least one, the latest last."""
        least, most = min(values), max(values)
        if math.isfinite(least) and math.isfinite(most):
            self.add(least)
            self.add(most)
            self.last, self.count = values[-1], self.count + len(values) - 2
            return
        for value in values:
            self.add(value)


class RunSummary(
    Record, frozen=True, rename={f"{name}_ms": name for name in ("created", "started", "ended")}
):
    """One line of a list of runs.

    Attributes:
        reason: What it waits for, or its error in one line.
        metrics: Statistics of its numeric metrics, by name.
    """

    id: str
    experiment: str
    status: Status
    created_ms: int
    started_ms: int | None
    ended_ms: int | None
    target: str
    script: str
    reason: str
    parent: str = ""
    tags: Mapping[str, str] = {}
    metrics: Mapping[str, MetricStatistics] = {}

    @property
    def is_terminal(self) -> bool:
        """Whether it has ended."""
        return self.status in TERMINAL


def metric_statistics(files: Iterable[Path]) -> dict[str, MetricStatistics]:
    """Compute statistics of the numeric metrics in files, without an object for each line; other values are skipped.

    Lists, rows and tables count with each of their numbers: see `numbers_of`.
    """
    found: dict[str, MetricStatistics] = {}
    for path in files:
        for chunk in read_chunks(path):
            several: dict[bytes, list[bytes]] = {}
            for name, value, other in _LINES.findall(chunk):
                if not other:
                    several.setdefault(name, []).append(value)
                    continue
                # Added first, so that values stay in order: the latest one is the last.
                _add_several(found, several)
                line = object_of(other)
                if line is not None:
                    _add(found, line)
            _add_several(found, several)
    return found


def logged_values(files: Iterable[Path]) -> dict[str, list[Any]]:
    """Return the values of lists, of columns of rows and tables, and of texts, in the order of logging."""
    found: dict[str, list[Any]] = {}
    lines = (line for path in files for chunk in read_chunks(path) for line in chunk.split(b"\n"))
    # Most lines are numbers; they are told without being read.
    for content in filter(None, (object_of(line) for line in lines if b'"y":' in line)):
        name, value, kind = content.get("k"), content.get("v"), content.get("y")
        if kind in ("row", "table") and isinstance(value, dict):
            for key, one in value.items():
                found.setdefault(f"{name}.{key}", []).extend(one if isinstance(one, list) else [one])
        elif kind in ("list", "text"):
            found.setdefault(str(name), []).extend(value if isinstance(value, list) else [value])
    return found


def _add(found: dict[str, MetricStatistics], line: Mapping[str, Any]) -> None:
    for name, values in numbers_of(line):
        found.setdefault(name, MetricStatistics(values[-1])).add_several(values)


def _add_several(found: dict[str, MetricStatistics], several: dict[bytes, list[bytes]]) -> None:
    """Add values by name, both undecoded; empties the argument."""
    for written, values in several.items():
        numbers = list(map(float, values))
        name = json.loads(written)
        found.setdefault(name, MetricStatistics(numbers[-1])).add_several(numbers)
    several.clear()


def summarize(folder: RunFolder) -> RunSummary:
    """Summarize a run, without its metrics, which `metric_statistics` reads.

    Raises:
        UnknownRun: It does not exist any more, or is damaged.
    """
    record, state = folder.record(), folder.state()
    reason = state.reason
    if state.error is not None:
        reason = f"{state.error.code}: {(state.error.message.strip().splitlines() or [''])[-1]}"
    return RunSummary(
        record.id,
        record.experiment,
        state.status,
        record.created_ms,
        state.started_ms,
        state.ended_ms,
        record.definition.target_name,
        record.definition.script,
        reason,
        record.parent,
        folder.tags(),
    )


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


class Condition(Struct, frozen=True):
    """One comparison.

    Attributes:
        name: The left-hand side: one of `FACTS`, a tag `tags.NAME`, or the name of a metric.
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


class SortKey(Struct, frozen=True):
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
    """Parse conditions joined by `and`."""
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
