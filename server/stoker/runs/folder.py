"""The folder of one run: its files, and who writes which.

run.json                what was asked; written once
state.json              what has become of it; replaced by its runner alone
events.jsonl            each change of state, and tags; anybody appends a line
cancel.json             somebody wants it to end
.runner                 locked by the runner; what it printed is in runner.log
environment/            asked.yml, got.txt, build.log
attempts/N/             what one attempt's agent and script write, its metrics.jsonl and events.jsonl among that
outputs/, logs/         what the script has written there; while an attempt runs they are in its `work/`
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from stoker.errors import UnknownRun
from stoker.runs.journal import append_line, read_lines
from stoker.runs.record import RunRecord
from stoker.runs.states import RunState
from stoker.system.durable import lock_file, replace_file

__all__ = ["EVENTS_FILE", "RunFolder"]

_STATE: Final = "state.json"
EVENTS_FILE: Final = "events.jsonl"
"""The name of the file that changes with each change of a run."""
_Form = TypeVar("_Form")


@dataclass(frozen=True, slots=True)
class RunFolder:
    """One run's folder.

    Attributes:
        path: The folder; nothing in it is absolute, so it may be copied elsewhere.
    """

    path: Path

    @property
    def id(self) -> str:
        """The run's id."""
        return self.path.name

    @property
    def outputs(self) -> Path:
        """What the script has written to `outputs/`."""
        return self.path / "outputs"

    @property
    def logs(self) -> Path:
        """What the script has written to `logs/`."""
        return self.path / "logs"

    @property
    def environment(self) -> Path:
        """What was asked for and got of packages."""
        return self.path / "environment"

    @property
    def runner_log(self) -> Path:
        """What the runner has printed."""
        return self.path / "runner.log"

    @property
    def events(self) -> Path:
        """The lines of all changes."""
        return self.path / EVENTS_FILE

    def attempt(self, number: int) -> Path:
        """The folder of one attempt."""
        return self.path / "attempts" / str(number)

    def attempts(self) -> list[int]:
        """The numbers of the attempts that have a folder, ascending."""
        folder = self.path / "attempts"
        if not folder.is_dir():
            return []
        return sorted(int(entry.name) for entry in folder.iterdir() if entry.name.isdecimal())

    def record(self) -> RunRecord:
        """Read what was asked.

        Raises:
            UnknownRun: The run is not there any more, or its record is damaged.
        """
        return self._read("run.json", RunRecord.from_json)

    def state(self) -> RunState:
        """Read what has become of it.

        Raises:
            UnknownRun: The run is not there any more, or its state is damaged.
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
        """Replace the state and note the change; for the holder of the lock alone.

        Raises:
            OSError: The disk does not take it.
        """
        content = json.dumps(state.to_json(), indent=2).encode() + b"\n"
        if state.is_terminal:
            replace_file(self.path / _STATE, content)
        else:
            # A power cut takes the script along, so that what is on the disk is looked at anew: no waiting for it.
            staged = self.path / f".{_STATE}.new"
            staged.write_bytes(content)
            staged.rename(self.path / _STATE)
        line = {"t": state.since_ms, "e": "state", "v": state.status.value, "a": state.attempt}
        append_line(self.events, {**line, "reason": state.reason})

    def event_lines(self) -> Iterator[dict[str, Any]]:
        """Yield all events: those of the scripts, attempt by attempt, then those of the run itself."""
        for number in self.attempts():
            yield from read_lines(self.attempt(number) / EVENTS_FILE)
        yield from read_lines(self.events)

    def metric_lines(self) -> Iterator[dict[str, Any]]:
        """Yield what was measured, attempt by attempt."""
        for path in self.metric_files():
            yield from read_lines(path)

    def metric_files(self) -> list[Path]:
        """Where what was measured is, attempt by attempt."""
        return [self.attempt(number) / "metrics.jsonl" for number in self.attempts()]

    def tags(self) -> dict[str, str]:
        """The run's labels: those of its record, and what was changed of them since, by anybody."""
        tags = dict(self.record().tags)
        changes = [line for line in self.event_lines() if line.get("e") == "tag" and "k" in line]
        for line in sorted(changes, key=_time_of):
            if line.get("v") is None:
                tags.pop(str(line["k"]), None)
            else:
                tags[str(line["k"])] = str(line["v"])
        return tags

    def properties(self) -> dict[str, str]:
        """What is said of the run for good; of several values of one name the first."""
        properties = dict(self.record().properties)
        for line in self.event_lines():
            if line.get("e") == "property" and "k" in line:
                properties.setdefault(str(line["k"]), str(line.get("v")))
        return properties

    def change_tags(self, changes: Mapping[str, str | None], now_ms: int) -> None:
        """Set labels; those that are to be None are removed."""
        for key, value in changes.items():
            append_line(self.events, {"t": now_ms, "e": "tag", "k": key, "v": value})

    def ask_to_cancel(self, reason: str, now_ms: int, grace_s: float | None = None) -> None:
        """Leave word for the runner that the run is to end; the first word counts.

        Args:
            reason: Who wants it, or why.
            now_ms: The time.
            grace_s: How long it may take to end; None is what the run was submitted with.
        """
        path = self.path / "cancel.json"
        if not path.exists():
            content = {"t": now_ms, "reason": reason, "grace_s": grace_s}
            replace_file(path, json.dumps(content).encode())

    def cancel_asked(self) -> dict[str, Any] | None:
        """The word that was left, or None."""
        try:
            content = json.loads((self.path / "cancel.json").read_bytes())
        except (FileNotFoundError, ValueError):
            return None
        return content if isinstance(content, dict) else None

    def forget_cancel(self) -> None:
        """Take the word back, for a further attempt."""
        (self.path / "cancel.json").unlink(missing_ok=True)

    def take(self, *, wait: bool = False) -> int | None:
        """Take the lock that makes this process the run's runner; None where somebody else is.

        Args:
            wait: Wait until nobody else is, for a runner whose run has ended is about to end itself.

        Returns:
            The descriptor that holds it; the kernel gives it back when the process dies.
        """
        try:
            return lock_file(self.path / ".runner", wait=wait)
        except BlockingIOError:
            return None

    @staticmethod
    def give_back(lock: int) -> None:
        """Give back what `take` has given."""
        os.close(lock)

    def has_runner(self) -> bool:
        """Whether a process is its runner now."""
        descriptor = self.take()
        if descriptor is None:
            return True
        os.close(descriptor)
        return False


def _time_of(line: Mapping[str, Any]) -> int:
    time_ms = line.get("t")
    return time_ms if isinstance(time_ms, int) else 0
