"""Following a run: what it prints as it prints it, what it waits for, its end; a run without a runner is adopted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from stoker.settings.workspace import Workspace
from stoker_runs.launch.runners import Clock, adopt
from stoker_runs.records.folder import RunFolder, log_file
from stoker_runs.records.states import RunState, Status

_POLL_S: Final = 0.1
_ADOPT_S: Final = 1.0
_CHUNK_BYTES: Final = 1 << 20
_BEFORE_THE_SCRIPT: Final = frozenset(
    {Status.NOT_STARTED, Status.QUEUED, Status.PREPARING, Status.PROVISIONING, Status.STARTING}
)


class LogTail:
    """Reads the log of a run's process from where it stopped, attempt after attempt."""

    def __init__(self, folder: RunFolder, rank: int = 0, attempt: int = 1) -> None:
        self._folder = folder
        self._rank = rank
        self._attempt = attempt
        self._offset = 0

    def read(self, current: int, write: Callable[[bytes], None]) -> bool:
        """Pass on new output.

        Args:
            current: The current attempt; logs of earlier attempts are read to their ends first.

        Returns:
            Whether there was anything.
        """
        found = False
        while True:
            found = self._read_file(log_file(self._folder, self._attempt, self._rank), write) or found
            if self._attempt >= current:
                return found
            self._attempt, self._offset = self._attempt + 1, 0

    def _read_file(self, path: Path, write: Callable[[bytes], None]) -> bool:
        begun = self._offset
        try:
            with path.open("rb") as file:
                file.seek(self._offset)
                while chunk := file.read(_CHUNK_BYTES):
                    self._offset += len(chunk)
                    write(chunk)
        except FileNotFoundError:
            return False
        return self._offset > begun


def follow(
    folder: RunFolder,
    workspace: Workspace,
    write: Callable[[bytes], None],
    waits: Callable[[RunState | None, float], None] = lambda *_: None,
    *,
    rank: int = 0,
    attempt: int = 1,
    clock: Clock | None = None,
    notes: Callable[[str], None] = lambda _: None,
) -> RunState:
    """Pass on the output of a run until it has ended; return its last state.

    Args:
        write: Called with the bytes of the log.
        waits: Called with the state and its age in seconds until the script runs, then with None.
        notes: Is told what was said while the run was prepared, a line each.
    """
    clock = clock or Clock()
    tail, passed = LogTail(folder, rank, attempt), 0
    adopt_at_s, before = clock.elapsed_s() + _ADOPT_S, 0
    while True:
        # Asked before the log is read: what came before the end is in it.
        state = folder.state()
        if state.status in _BEFORE_THE_SCRIPT:
            passed = _pass_notes(folder, attempt, passed, waits, notes)
            waits(state, (clock.now_ms() - state.since_ms) / 1000)
        else:
            waits(None, 0.0)
            if before != state.attempt:
                before, passed = state.attempt, _pass_notes(folder, attempt, passed, waits, notes)
            tail.read(state.attempt, write)
        if state.is_terminal:
            return state
        if clock.elapsed_s() > adopt_at_s:
            adopt(folder, workspace)
            adopt_at_s = clock.elapsed_s() + _ADOPT_S
        clock.sleep(_POLL_S)


def _pass_notes(
    folder: RunFolder,
    attempt: int,
    passed: int,
    waits: Callable[[RunState | None, float], None],
    notes: Callable[[str], None],
) -> int:
    """Pass on the notes of an attempt and later ones; return how many there are."""
    lines = [line for number, line in folder.notes() if number >= attempt]
    for line in lines[passed:]:
        waits(None, 0.0)
        notes(line)
    return len(lines)


def wait(folder: RunFolder, workspace: Workspace, clock: Clock | None = None) -> RunState:
    """Wait until a run has ended; returns its last state."""
    return follow(folder, workspace, lambda _: None, clock=clock)
