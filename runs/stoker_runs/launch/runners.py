"""Runners of runs: how one is started, and how a run that goes on without one is adopted.

A program that only starts a runner imports nothing of what the runner needs.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from stoker.settings.workspace import Workspace
from stoker_runs.errors import UnknownRun
from stoker_runs.launch.inputs import hold_inputs
from stoker_runs.records.folder import RunFolder
from stoker_runs.records.record import SWEEP
from stoker_runs.records.store import RunStore

if TYPE_CHECKING:
    from stoker_runs.records.index import RunIndex


class Clock:
    """The machine's clocks; tests have one that does not wait."""

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def elapsed_s(self) -> float:
        """Seconds of a clock that only goes forward."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


_RUNNER: Final = "stoker_runs.launch.runner_process"
_RUNNERS: Final = {SWEEP: "stoker_runs.tuning.sweep_process"}
"""The programs that are runners of other kinds of runs than those of scripts; they stand above this package."""
_NOT_FOR_RUNS: Final = (
    "STOKER_RUN_ID",
    "STOKER_ATTEMPT",
    "STOKER_ATTEMPT_DIR",
    "STOKER_ATTEMPT_KEY",
    "STOKER_WORK_DIR",
)
# Of a command; no more are open.
_MOST_FILES: Final = 4096


def spawn_runner(folder: RunFolder, workspace: Workspace) -> None:
    """Start the runner of a run in its own session; a second runner ends by itself.

    Raises:
        OSError: The system does not start it.
    """
    log = os.open(folder.runner_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    held = hold_inputs(folder.record().definition.inputs, workspace)
    try:
        # A run that a script submits is no part of the script's own.
        variables = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_RUNS}
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-P", "-m", _runner_of(folder), *_arguments(folder, workspace, held)],
            variables,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, log, 1),
                (os.POSIX_SPAWN_DUP2, log, 2),
                # Onto itself, which leaves it open.
                *((os.POSIX_SPAWN_DUP2, descriptor, descriptor) for descriptor in held),
            ],
            setsid=True,
            setsigdef=[signal.SIGINT, signal.SIGPIPE],
        )
    finally:
        for descriptor in (log, *held):
            os.close(descriptor)
    _reap_in_background(pid)


def _arguments(folder: RunFolder, workspace: Workspace, held: Sequence[int]) -> list[str]:
    return [str(folder.path), str(workspace.root), *map(str, held)]


def read_arguments(arguments: Sequence[str]) -> tuple[RunFolder, Workspace]:
    """Return what a runner was started for. It holds its inputs until it ends; its children do not."""
    folder, root, *held = arguments
    for descriptor in held:
        os.set_inheritable(int(descriptor), False)
    return RunFolder(Path(folder)), Workspace(Path(root))


def _runner_of(folder: RunFolder) -> str:
    return _RUNNERS.get(folder.record().kind, _RUNNER)


def _reap_in_background(pid: int) -> None:
    """Reap the process when it ends: it must not stay a zombie of a notebook."""
    threading.Thread(target=_reap, args=(pid,), daemon=True).start()


def fork_runner(
    folder: RunFolder, workspace: Workspace, reap: Callable[[int], None] = _reap_in_background
) -> None:
    """Start the runner of a run as a fork of this process, which spares it half of what its start takes.

    For a command of ours, which has imported most of what a runner needs: who knows what another program has open.
    With a second thread, whose locks a fork would keep for ever, or as a part of another run, whose mark a fork would
    bear, it is started as `spawn_runner` does.

    Args:
        reap: Called with the process id, for which the caller must wait.

    Raises:
        OSError: The system does not start it.
    """
    if threading.active_count() > 1 or not os.environ.keys().isdisjoint(_NOT_FOR_RUNS):
        spawn_runner(folder, workspace)
        return
    log = os.open(folder.runner_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    held = hold_inputs(folder.record().definition.inputs, workspace)
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        _run_as_runner(folder, workspace, log, held)
    for descriptor in (log, *held):
        os.close(descriptor)
    reap(pid)


def _run_as_runner(folder: RunFolder, workspace: Workspace, log: int, held: Sequence[int]) -> NoReturn:
    """Become the runner, as `posix_spawn` would start it. Never returns to the caller's code."""
    status = 1
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        nowhere = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nowhere, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        for first, end in pairwise([2, *sorted(held), _MOST_FILES]):
            os.closerange(first + 1, end)
        sys.stdout = sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        with open("/proc/self/comm", "w", encoding="ascii") as title:  # noqa: PTH123  # opened once a run
            title.write("stoker-runner")
        status = importlib.import_module(_runner_of(folder)).main(_arguments(folder, workspace, held))
    finally:
        os._exit(status)


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        return


def adopt(
    folder: RunFolder, workspace: Workspace, spawn: Callable[[RunFolder, Workspace], None] = spawn_runner
) -> bool:
    """Give a run a runner if it needs one; returns whether it did."""
    try:
        if folder.state().is_terminal or folder.has_runner():
            return False
    except UnknownRun:
        return False
    spawn(folder, workspace)
    return True


def adopt_all(workspace: Workspace, index: RunIndex | None = None) -> list[str]:
    """Give each run that needs one a runner; returns their ids.

    Args:
        index: The index of the runs, if the caller uses one.
    """
    store = RunStore(workspace.runs_dir)
    if not store.runs_dir.is_dir():
        return []
    if index is None:
        # Imported here: who submits a run needs no database.
        from stoker_runs.records.index import RunIndex

        index = RunIndex(store)
    return [run_id for run_id in index.unfinished_runs() if adopt(store.get(run_id), workspace)]
