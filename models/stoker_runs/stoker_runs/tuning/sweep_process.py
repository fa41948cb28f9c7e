"""`python -m stoker_runs.tuning.sweep_process RUN WORKSPACE`: the detached process that is a sweep's runner."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Final

from stoker.workspace import Workspace
from stoker_runs.launch.adoption import adopt
from stoker_runs.launch.runner_process import became_runner
from stoker_runs.launch.runner_start import fork_runner
from stoker_runs.records.failures import FailureCode, RunFailure
from stoker_runs.records.folder import RunFolder
from stoker_runs.records.store import RunStore
from stoker_runs.tuning.sweep import Sweep

__all__ = ["main"]

_LOG: Final = logging.getLogger(__name__)


class _Runners:
    """The runners of children, as forks of this process: it has no second thread, and buries them itself."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._pids: set[int] = set()

    def begin(self, child: RunFolder) -> None:
        """Start the runner of a child."""
        self._fork(child, self._workspace)

    def adopt(self, child: RunFolder) -> None:
        """Start that of one that has none any more."""
        self._bury()
        adopt(child, self._workspace, self._fork)

    def _fork(self, child: RunFolder, workspace: Workspace) -> None:
        self._bury()
        fork_runner(child, workspace, self._pids.add)

    def _bury(self) -> None:
        for pid in list(self._pids):
            if os.waitpid(pid, os.WNOHANG)[0] == pid:
                self._pids.discard(pid)


def main(arguments: list[str]) -> int:
    """Be the runner of a sweep until it has ended."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    folder, workspace = RunFolder(Path(arguments[0])), Workspace(Path(arguments[1]))
    if not became_runner(folder):
        return 0
    runners = _Runners(workspace)
    sweep = Sweep(folder, RunStore(workspace.runs_dir), runners.begin, runners.adopt)
    try:
        sweep.run()
    except Exception as error:  # noqa: BLE001  # the sweep must not stay as it is for ever
        _LOG.exception("the runner of the sweep has failed")
        sweep.fail(
            RunFailure(
                FailureCode.INTERNAL,
                f"the runner of the sweep has failed: {error!r}",
                f"its log is {folder.runner_log.name}",
            )
        )
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
