"""The folder of one run: its files, and who writes each of them.

run.json                the record; written once
state.json              the state; replaced by the runner alone
events.jsonl            changes of state, tags and notes; any process may append a line
cancel.json             a request to cancel the run
.runner                 locked by the runner; its output is in runner.log
environment/            asked.yml, got.txt, build.log
attempts/N/             files of one attempt's agent and script, such as metrics.jsonl and events.jsonl
outputs/, logs/         files that the script has written there; during an attempt they are in its `work/`
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from stoker.errors import UnknownRun
from stoker.system.durable import lock_file, replace_file
from stoker_runs.records.journal import append_line, read_lines
from stoker_runs.records.record import RunRecord
from stoker_runs.records.states import RunState

__all__ = ["EVENTS_FILE", "RunFolder"]

_STATE: Final = "state.json"
EVENTS_FILE: Final = "events.jsonl"
"""The name of the file that every change of a run is appended to."""
_Form = TypeVar("_Form")


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one run.

    Attributes:
        path: The folder; it contains no absolute paths, so it may be copied.
    """

    path: Path

    @property
    def id(self) -> str:
        """The run's id."""
        return self.path.name

    @property
    def outputs(self) -> Path:
        """The files that the script has written to `outputs/`."""
        return self.path / "outputs"

    @property
    def logs(self) -> Path:
        """The files that the script has written to `logs/`."""
        return self.path / "logs"

    @property
    def environment(self) -> Path:
        """The folder with the requested and actual packages."""
        return self.path / "environment"

    @property
    def runner_log(self) -> Path:
        """The output of the runner."""
        return self.path / "runner.log"

    @property
    def events(self) -> Path:
        """The file with all changes."""
        return self.path / EVENTS_FILE

    def attempt(self, number: int) -> Path:
        """The folder of one attempt."""
        return self.path / "attempts" / str(number)

    def attempts(self) -> list[int]:
        """The numbers of existing attempts, ascending."""
        folder = self.path / "attempts"
        if not folder.is_dir():
            return []
        return sorted(int(entry.name) for entry in folder.iterdir() if entry.name.isdecimal())

    def record(self) -> RunRecord:
        """Read the record.

        Raises:
            UnknownRun: The run does not exist any more, or its record is damaged.
        """
        return self._read("run.json", RunRecord.from_json)

    def state(self) -> RunState:
        """Read the state.

        Raises:
            UnknownRun: The run does not exist any more, or its state is damaged.
        """
        return self._read(_STATE, RunState.from_json)

    def _read(self, name: str, form: Callable[[dict[str, Any]], _Form]) -> _Form:
        if not self.path.is_dir():
            raise UnknownRun(f"the run {self.id} is not there any more: it was deleted")
        try:
            return form(json.loads((self.path / name).read_bytes()))
        except (OSError, ValueError) as error:
            raise UnknownRun(
                f"the file {name} of {self.path} is missing or damaged ({error}); remove that folder"
            ) from error

    def write_state(self, state: RunState) -> None:
        """Replace the state and append the change to the events; only for the holder of the lock.

        Raises:
            OSError: The file cannot be written.
        """
        content = json.dumps(state.to_json(), indent=2).encode() + b"\n"
        if state.is_terminal:
            replace_file(self.path / _STATE, content)
        else:
            # Not synced to disk: a power cut ends the script too, so the state is determined anew afterwards.
            staged = self.path / f".{_STATE}.new"
            staged.write_bytes(content)
            staged.rename(self.path / _STATE)
        line = {"t": state.since_ms, "e": "state", "v": state.status.value, "a": state.attempt}
        append_line(self.events, {**line, "reason": state.reason})

    def event_lines(self) -> Iterator[dict[str, Any]]:
        """Yield all events: those of the scripts by attempt, then those of the run itself."""
        for number in self.attempts():
            yield from read_lines(self.attempt(number) / EVENTS_FILE)
        yield from read_lines(self.events)

    def metric_lines(self) -> Iterator[dict[str, Any]]:
        """Yield the lines of all metrics, by attempt."""
        for path in self.metric_files():
            yield from read_lines(path)

    def metric_files(self) -> list[Path]:
        """The files with metrics, by attempt."""
        return [self.attempt(number) / "metrics.jsonl" for number in self.attempts()]

    def tags(self) -> dict[str, str]:
        """The run's tags: those of its record, with later changes."""
        tags = dict(self.record().tags)
        changes = [line for line in self.event_lines() if line.get("e") == "tag" and "k" in line]
        for line in sorted(changes, key=_time_of):
            if line.get("v") is None:
                tags.pop(str(line["k"]), None)
            else:
                tags[str(line["k"])] = str(line["v"])
        return tags

    def properties(self) -> dict[str, str]:
        """The run's properties, which are immutable; of several values of one name the first counts."""
        properties = dict(self.record().properties)
        for line in self.event_lines():
            if line.get("e") == "property" and "k" in line:
                properties.setdefault(str(line["k"]), str(line.get("v")))
        return properties

    def change_tags(self, changes: Mapping[str, str | None], now_ms: int) -> None:
        """Set tags; a tag with value None is removed."""
        for key, value in changes.items():
            append_line(self.events, {"t": now_ms, "e": "tag", "k": key, "v": value})

    def add_note(self, line: str, now_ms: int, attempt: int) -> None:
        """Append what whoever follows the run is to read before its script starts.

        Raises:
            OSError: It cannot be written.
        """
        append_line(self.events, {"t": now_ms, "e": "note", "v": line, "a": attempt})

    def notes(self) -> list[tuple[int, str]]:
        """The attempt and the line of each note."""
        return [
            (int(line.get("a", 1)), str(line.get("v", "")))
            for line in read_lines(self.events)
            if line.get("e") == "note"
        ]

    def ask_to_cancel(self, reason: str, now_ms: int, grace_s: float | None = None) -> None:
        """Request the runner to end the run; only the first request counts.

        Args:
            reason: Who cancels the run, or why.
            now_ms: The time.
            grace_s: Time between asking the script to end and killing it; None for the run's own setting.
        """
        path = self.path / "cancel.json"
        if not path.exists():
            content = {"t": now_ms, "reason": reason, "grace_s": grace_s}
            replace_file(path, json.dumps(content).encode())

    def cancel_asked(self) -> dict[str, Any] | None:
        """The request to cancel, or None."""
        try:
            content = json.loads((self.path / "cancel.json").read_bytes())
        except (FileNotFoundError, ValueError):
            return None
        return content if isinstance(content, dict) else None

    def forget_cancel(self) -> None:
        """Remove the request to cancel, before a further attempt."""
        (self.path / "cancel.json").unlink(missing_ok=True)

    def take(self, *, wait: bool = False) -> int | None:
        """Acquire the lock that makes this process the run's runner; returns None if another process holds it.

        Args:
            wait: Wait for the lock, because a runner whose run has ended is about to exit.

        Returns:
            The descriptor that holds the lock; the kernel releases it when the process ends.
        """
        try:
            return lock_file(self.path / ".runner", wait=wait)
        except BlockingIOError:
            return None

    @staticmethod
    def give_back(lock: int) -> None:
        """Release the lock acquired by `take`."""
        os.close(lock)

    def has_runner(self) -> bool:
        """Whether a process holds the runner's lock now."""
        descriptor = self.take()
        if descriptor is None:
            return True
        os.close(descriptor)
        return False


def _time_of(line: Mapping[str, Any]) -> int:
    time_ms = line.get("t")
    return time_ms if isinstance(time_ms, int) else 0
