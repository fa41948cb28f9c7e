"""The folder of one run: its files, who writes each of them, and the names under which users know them.

run.json                the record; written once
state.json              the state; replaced by the runner alone
events.jsonl            changes of state, tags and notes; any process may append a line
cancel.json             a request to cancel the run
.runner                 locked by the runner; its output is in runner.log
environment/            asked.yml, got.txt, build.log
attempts/N/             files of one attempt's agent and script, such as metrics.jsonl and events.jsonl
outputs/, logs/         files that the script has written there; during an attempt they are in its `work/`

Files of JSON lines are append-only, and each line is one write: a crash damages at most the last one. Users and the
SDK know logs by Azure's names, the rest by the script's own. Symbolic links are not followed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from stoker.system.durable import lock_file, replace_file
from stoker_base.trees import files_below
from stoker_run.json_files import read_json_lines
from stoker_run.records import from_json
from stoker_runs.errors import SubmissionRefused, UnknownRun
from stoker_runs.records.record import RunRecord
from stoker_runs.records.states import RunState

_CHUNK_BYTES: Final = 1 << 20


def append_line(path: Path, content: Mapping[str, Any]) -> None:
    """Append one line with a single write, after terminating an incomplete last line.

    Raises:
        OSError: The file cannot be written.
    """
    line = json.dumps(content, allow_nan=False).encode() + b"\n"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        end = os.lseek(descriptor, 0, os.SEEK_END)
        torn = end > 0 and os.pread(descriptor, 1, end - 1) != b"\n"
        os.write(descriptor, b"\n" + line if torn else line)
    finally:
        os.close(descriptor)


def read_chunks(path: Path) -> Iterator[bytes]:
    """Yield the complete lines of a file in large chunks, for readers that do not need each line as an object."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        rest = b""
        while chunk := file.read(_CHUNK_BYTES):
            lines, newline, behind = chunk.rpartition(b"\n")
            if newline:
                yield rest + lines
                rest = behind
            else:
                rest += chunk


def numbers_of(line: Mapping[str, Any]) -> list[tuple[str, list[float]]]:
    """The numbers in a line of metrics, by name: one of a value, those of a list, of a row or table each column's.

    The numbers of a column have the name `METRIC.COLUMN`. Texts and what else is no number are left out.
    """
    name, value, kind = line.get("k"), line.get("v"), line.get("y")
    if not isinstance(name, str):
        return []
    if kind is None:
        found = {name: [value]}
    elif kind == "list" and isinstance(value, list):
        found = {name: value}
    elif kind in ("row", "table") and isinstance(value, dict):
        found = {f"{name}.{key}": one if isinstance(one, list) else [one] for key, one in value.items()}
    else:
        return []
    several = ((key, [_number(value) for value in values]) for key, values in found.items())
    numbers = ((key, [value for value in values if value is not None]) for key, values in several)
    return [(key, values) for key, values in numbers if values]


def _number(value: Any) -> float | None:
    value = from_json(value)
    if not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def object_of(line: bytes) -> dict[str, Any] | None:
    """The object of one line; None if the line is incomplete or damaged."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


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
            yield from read_json_lines(self.attempt(number) / EVENTS_FILE)
        yield from read_json_lines(self.events)

    def metric_lines(self) -> Iterator[dict[str, Any]]:
        """Yield the lines of all metrics, by attempt."""
        for path in self.metric_files():
            yield from read_json_lines(path)

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
            self.add_event("tag", key, value, now_ms)

    def add_event(self, kind: str, key: str | None, value: str | None, now_ms: int) -> None:
        """Append what somebody says of the run: a tag, a property or its name.

        Raises:
            OSError: It cannot be written.
        """
        keyed = {} if key is None else {"k": key}
        append_line(self.events, {"t": now_ms, "e": kind, **keyed, "v": value})

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
            for line in read_json_lines(self.events)
            if line.get("e") == "note"
        ]

    def request_cancel(self, reason: str, now_ms: int, grace_s: float | None = None) -> None:
        """Request the runner to end the run; only the first request counts.

        Args:
            grace_s: Time between asking the script to end and killing it; None for the run's own setting.
        """
        path = self.path / "cancel.json"
        if not path.exists():
            content = {"t": now_ms, "reason": reason, "grace_s": grace_s}
            replace_file(path, json.dumps(content).encode())

    def cancel_request(self) -> dict[str, Any] | None:
        """The request to cancel, or None."""
        try:
            content = json.loads((self.path / "cancel.json").read_bytes())
        except (FileNotFoundError, ValueError):
            return None
        return content if isinstance(content, dict) else None

    def clear_cancel_request(self) -> None:
        """Remove the request to cancel, before a further attempt."""
        (self.path / "cancel.json").unlink(missing_ok=True)

    def acquire_lock(self, *, wait: bool = False) -> int | None:
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
    def release_lock(lock: int) -> None:
        """Release the lock acquired by `acquire_lock`."""
        os.close(lock)

    def has_runner(self) -> bool:
        """Whether a process holds the runner's lock now."""
        descriptor = self.acquire_lock()
        if descriptor is None:
            return True
        os.close(descriptor)
        return False


def _time_of(line: Mapping[str, Any]) -> int:
    time_ms = line.get("t")
    return time_ms if isinstance(time_ms, int) else 0


_LOG: Final = re.compile(r"log_([0-9]+)\.txt", re.ASCII)
_PROCESS_FILES: Final = ("process_info.json", "process_status.json")
_NAMES_SHOWN: Final = 20


def run_files(folder: RunFolder) -> Mapping[str, Path]:
    """Return the path of each file of a run by name, in alphabetical order; while it runs, those that exist."""
    return dict(sorted(_files(folder)))


def _files(folder: RunFolder) -> Iterator[tuple[str, Path]]:
    if (build_log := folder.environment / "build.log").is_file():
        yield "azureml-logs/20_image_build_log.txt", build_log
    attempts = folder.attempts()
    for number in attempts:
        files = folder.attempt(number) / "files"
        yield from ((name, path) for name, path in _below(files))
    if attempts:
        current = folder.attempt(attempts[-1])
        yield from _logs(current)
        for name in ("outputs", "logs"):
            yield from ((f"{name}/{inner}", path) for inner, path in _below(current / "work" / name))
    for name, place in (("outputs", folder.outputs), ("logs", folder.logs)):
        yield from ((f"{name}/{inner}", path) for inner, path in _below(place))


def _logs(attempt: Path) -> Iterator[tuple[str, Path]]:
    if not attempt.is_dir():
        return
    logs = {int(found[1]): entry for entry in attempt.iterdir() if (found := _LOG.fullmatch(entry.name))}
    for rank, path in logs.items():
        suffix = f"_{rank}" if len(logs) > 1 else ""
        yield f"azureml-logs/70_driver_log{suffix}.txt", path
    if 0 in logs:
        yield "user_logs/std_log.txt", logs[0]
    for name in _PROCESS_FILES:
        if (attempt / name).is_file():
            yield f"azureml-logs/{name}", attempt / name


def _below(folder: Path) -> Iterator[tuple[str, Path]]:
    if folder.is_symlink():
        return
    for path in files_below(folder):
        if path.is_file() and not path.is_symlink():
            yield path.relative_to(folder).as_posix(), path


def log_file(folder: RunFolder, attempt: int, rank: int = 0) -> Path:
    """The output of one process of an attempt; the file may not exist yet."""
    return folder.attempt(attempt) / f"log_{rank}.txt"


def find_file(folder: RunFolder, name: str) -> Path:
    """Return the file or folder of a run with this name.

    Raises:
        SubmissionRefused: There is no such file; the message lists those that exist.
    """
    clean = name.strip("/")
    files = run_files(folder)
    if clean in files:
        return files[clean]
    below = [path for known, path in files.items() if known.startswith(f"{clean}/")]
    if clean and below:
        depth = (
            next(known for known in files if known.startswith(f"{clean}/"))[len(clean) + 1 :].count("/") + 1
        )
        return below[0].parents[depth - 1]
    shown = ", ".join(list(files)[:_NAMES_SHOWN]) or "none"
    more = f" and {len(files) - _NAMES_SHOWN} more" if len(files) > _NAMES_SHOWN else ""
    raise SubmissionRefused(f"the run {folder.id} has no file {name!r}; it has: {shown}{more}")


def copy_files(folder: RunFolder, prefix: str, place: Path) -> list[str]:
    """Copy the files of a run whose names have this prefix into a folder; returns their names.

    Raises:
        OSError: A file cannot be written.
    """
    copied = []
    for name, path in run_files(folder).items():
        if name.startswith(prefix):
            target = place / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            copied.append(name)
    return copied
