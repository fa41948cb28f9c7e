"""What the index has of a run: its record and state in short, and the numbers that it has measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stoker.runs.folder import RunFolder
from stoker.runs.journal import real
from stoker.runs.states import Status

__all__ = ["Numbers", "RunSummary", "numbers_of", "summarize"]


@dataclass(slots=True)
class Numbers:
    """All values of one metric, in short.

    Attributes:
        last: The newest one.
        least: The least finite one; NaN where there is none.
        most: The greatest finite one; NaN where there is none.
        count: How many there are.
    """

    last: float
    least: float = math.nan
    most: float = math.nan
    count: int = 0

    def add(self, value: float) -> None:
        """Count one more value."""
        self.last, self.count = value, self.count + 1
        if math.isfinite(value):
            self.least = value if math.isnan(self.least) else min(self.least, value)
            self.most = value if math.isnan(self.most) else max(self.most, value)


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One line of a list of runs.

    Attributes:
        id: The run's id.
        experiment: Its experiment.
        status: What it is doing.
        created_ms: When it was submitted.
        started_ms: When its script began.
        ended_ms: When it came to its end.
        target: Name of its compute target.
        script: Its script.
        reason: What it waits for, or its error in one line.
        parent: Id of the run that it is a part of.
        tags: Its labels.
        metrics: The numbers that it has measured, by name.
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
    tags: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, Numbers] = field(default_factory=dict)

    @property
    def is_terminal(self) -> bool:
        """Whether it has come to its end."""
        return self.status in {Status.COMPLETED, Status.FAILED, Status.CANCELED}


def numbers_of(lines: Iterable[Mapping[str, Any]]) -> dict[str, Numbers]:
    """Summarize the numbers among lines of metrics; what is no number is passed over."""
    found: dict[str, Numbers] = {}
    for line in lines:
        value = real(line.get("v"))
        if "y" in line or not isinstance(value, int | float) or not isinstance(line.get("k"), str):
            continue
        try:
            number = float(value)
        except OverflowError:
            continue
        found.setdefault(line["k"], Numbers(number)).add(number)
    return found


def summarize(folder: RunFolder) -> RunSummary:
    """Read what the index has of a run.

    Raises:
        UnknownRun: It is not there any more, or it is damaged.
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
        record.definition.target,
        record.definition.script,
        reason,
        record.parent,
        folder.tags(),
        numbers_of(folder.metric_lines()),
    )
