"""Child runs that a script has begun: `attempts/N/children/ID/` in the folder of their parent.

The script writes `child.json`, `metrics.jsonl`, `events.jsonl`, `files/` and `outputs/` there. A child has no runner,
no record and no state of its own: what is known besides follows from its parent. A child may have children too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from stoker.system.durable import read_regular
from stoker_run.json_files import read_json_lines
from stoker_runs.errors import SubmissionRefused, UnknownRun
from stoker_runs.records.folder import RunFolder
from stoker_runs.records.record import CHILD, RunRecord
from stoker_runs.records.states import FailureCode, RunFailure, RunState, Status

_FOLDER: Final = "children"
_FACTS: Final = "child.json"
_MOST_FACTS_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ChildFolder(RunFolder):
    """The folder of a child run; it is that of the child's only attempt too.

    Attributes:
        parent: The folder of the run that has begun it.
        begun_in: The attempt of the parent in which it was begun.
    """

    parent: RunFolder
    begun_in: int

    def attempt(self, number: int) -> Path:
        """The folder of its attempt."""
        del number
        return self.path

    def attempts(self) -> list[int]:
        """One."""
        return [1]

    def record(self) -> RunRecord:
        """Return what is known of the child, with the definition of its parent.

        Raises:
            UnknownRun: The child or its parent does not exist any more, or `child.json` is damaged.
        """
        parent = self.parent.record()
        started_ms = self._facts().get("started_ms")
        created_ms = started_ms if isinstance(started_ms, int) else parent.created_ms
        return RunRecord(self.id, parent.experiment, created_ms, parent.definition, CHILD, parent=parent.id)

    def _facts(self) -> dict[str, Any]:
        try:
            content = json.loads(read_regular(self.path / _FACTS, _MOST_FACTS_BYTES))
        except (OSError, ValueError) as error:
            raise UnknownRun(f"the file {_FACTS} of {self.path} is missing or damaged ({error})") from error
        return content if isinstance(content, dict) else {}

    def state(self) -> RunState:
        """Return the state that the script has given the child, else what follows from the parent's.

        Raises:
            UnknownRun: The child or its parent does not exist any more, or is damaged.
        """
        begun_ms = self.record().created_ms
        running = RunState(Status.RUNNING, begun_ms, submitted_ms=begun_ms, started_ms=begun_ms)
        for line in read_json_lines(self.events):
            ended = line.get("v")
            if line.get("e") == "status" and isinstance(ended, dict):
                return _end_state(running, ended, line.get("t"))
        parent = self.parent.state()
        if parent.attempt != self.begun_in:
            lost = RunFailure(
                FailureCode.INTERRUPTED, f"attempt {self.begun_in} of {self.parent.id} has ended"
            )
            return running.replace(status=Status.FAILED, error=lost, ended_ms=parent.since_ms)
        if not parent.is_terminal:
            return running
        return running.replace(status=parent.status, since_ms=parent.since_ms, ended_ms=parent.ended_ms)

    def event_lines(self) -> Iterator[dict[str, Any]]:
        """Yield all events: the script and others append to one file."""
        yield from read_json_lines(self.events)

    def add_event(self, kind: str, key: str | None, value: str | None, now_ms: int) -> None:
        """Append what somebody says of the child."""
        RunFolder.add_event(self, kind, key, value, now_ms)
        # The index looks at the time of the run alone.
        root: RunFolder = self
        while isinstance(root, ChildFolder):
            root = root.parent
        os.utime(root.events)

    def request_cancel(self, reason: str, now_ms: int, grace_s: float | None = None) -> None:
        """Refuse: a child has no process of its own."""
        del reason, now_ms, grace_s
        self.refuse()

    def acquire_lock(self, *, wait: bool = False) -> int | None:
        """Refuse: a child has no runner."""
        del wait
        self.refuse()

    def has_runner(self) -> bool:
        """Whether it needs none."""
        return True

    def refuse(self) -> NoReturn:
        """Refuse what can be done with whole runs alone.

        Raises:
            SubmissionRefused: Always; the message names the run.
        """
        root: RunFolder = self.parent
        while isinstance(root, ChildFolder):
            root = root.parent
        raise SubmissionRefused(
            f"{self.id} is a child that the script of {root.id} has begun, and lives and ends with it: name that run"
        )


def _end_state(running: RunState, report: dict[str, Any], time_ms: Any) -> RunState:
    ended_ms = time_ms if isinstance(time_ms, int) else running.since_ms
    try:
        status = Status(str(report.get("status")))
    except ValueError:
        status = Status.COMPLETED
    error = None
    if status is Status.FAILED:
        message = str(report.get("error") or "the script says that it has failed")
        error = RunFailure(FailureCode.SCRIPT_FAILED, message)
    return running.replace(status=status, since_ms=ended_ms, ended_ms=ended_ms, error=error)


def children_of(folder: RunFolder) -> list[ChildFolder]:
    """Return the children that a run's script has begun; of one id in several attempts that of the latest."""
    found: dict[str, ChildFolder] = {}
    for number in folder.attempts():
        place = folder.attempt(number) / _FOLDER
        if place.is_symlink() or not place.is_dir():
            continue
        with os.scandir(place) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False) and Path(entry.path, _FACTS).is_file():
                    found[entry.name] = ChildFolder(Path(entry.path), folder, number)
    return list(found.values())


def descendants_of(folder: RunFolder) -> Iterator[ChildFolder]:
    """Yield the children of a run, and their children."""
    for child in children_of(folder):
        yield child
        yield from descendants_of(child)
