"""Starting the runner of a run; who only starts one imports nothing of what it does."""

from __future__ import annotations

import os
import signal
import sys
from threading import Thread
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from stoker.runs.folder import RunFolder
    from stoker.workspace import Workspace

__all__ = ["spawn_runner"]

_RUNNER: Final = "stoker.launch.runner_process"
_NOT_FOR_RUNS: Final = (
    "STOKER_RUN_ID",
    "STOKER_ATTEMPT",
    "STOKER_ATTEMPT_DIR",
    "STOKER_ATTEMPT_KEY",
    "STOKER_WORK_DIR",
)


def spawn_runner(folder: RunFolder, workspace: Workspace) -> None:
    """Start the runner of a run in a session of its own; one too many ends by itself.

    Raises:
        OSError: The system does not start it.
    """
    log = os.open(folder.runner_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        # A run that a script submits is no part of the script's own.
        variables = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_RUNS}
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-P", "-m", _RUNNER, str(folder.path), str(workspace.root)],
            variables,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, log, 1),
                (os.POSIX_SPAWN_DUP2, log, 2),
            ],
            setsid=True,
            setsigdef=[signal.SIGINT, signal.SIGPIPE],
        )
    finally:
        os.close(log)
    # It may outlive this process, and must not stay a zombie of a notebook's.
    Thread(target=_reap, args=(pid,), daemon=True).start()


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        return
