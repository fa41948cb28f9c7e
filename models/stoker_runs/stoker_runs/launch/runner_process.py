"""`python -m stoker_runs.launch.runner_process RUN WORKSPACE`: the detached process that is a run's runner."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import Final

from stoker.errors import StokerError
from stoker.workspace import Workspace
from stoker_runs.launch.pools import slots_of
from stoker_runs.launch.runner import Runner
from stoker_runs.records.failures import FailureCode, RunFailure
from stoker_runs.records.folder import RunFolder
from stoker_runs.records.record import INTERACTIVE
from stoker_runs.records.states import Collected, Lost, next_state
from stoker_runs.records.store import RunStore
from stoker_runs.targets.definitions import find_target
from stoker_runs.targets.registry import engine_of

__all__ = ["became_runner", "main"]

_LOG: Final = logging.getLogger(__name__)
# Whoever asks whether a run has a runner holds its lock for a moment.
_TRIES: Final = 20
_BETWEEN_TRIES_S: Final = 0.05


def main(arguments: list[str]) -> int:
    """Be the runner of a run until it has ended."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    folder, workspace = RunFolder(Path(arguments[0])), Workspace(Path(arguments[1]))
    if not became_runner(folder):
        return 0
    if folder.record().kind == INTERACTIVE:
        _close_interactive(folder)
        return 0
    store = RunStore(workspace.runs_dir)
    target_failure: StokerError | None = None
    try:
        definition = folder.record().definition
        target = find_target(workspace.targets_dir, definition.target)
        if definition.container:
            target = target.in_containers()
        runner = Runner(
            folder,
            store,
            engine_of(target, workspace),
            slots_of(target, workspace),
            workspace.snapshots_dir,
            _begun,
            lambda ended: _register(ended, workspace),
        )
    except StokerError as error:
        target_failure = error
    if target_failure is not None:
        _fail_without_target(folder, target_failure)
        return 1
    try:
        runner.run()
    except Exception as error:  # noqa: BLE001  # the run must not stay as it is for ever
        _LOG.exception("the runner has failed")
        runner.fail(
            RunFailure(
                FailureCode.INTERNAL,
                f"the runner has failed: {error!r}",
                f"its log is {folder.runner_log.name}",
            )
        )
        return 1
    finally:
        _end_installers()
    return 0


def _register(folder: RunFolder, workspace: Workspace) -> None:
    if any(line.get("e") == "register" for line in folder.event_lines()):
        # Not above: few scripts ask for it, and it knows of all kinds of models.
        from stoker_runs.launch.registration import register_asked

        register_asked(folder, workspace)


def became_runner(folder: RunFolder) -> bool:
    """Take the run's lock for as long as this process lives, unless somebody else has it for longer than a look."""
    for _ in range(_TRIES):
        if folder.take() is not None:
            return True
        time.sleep(_BETWEEN_TRIES_S)
    return False


def _begun(work: Callable[[], None]) -> Future[None]:
    """Do what takes long on a thread that no end of the process waits for."""
    future: Future[None] = Future()

    def do() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  # raised where the future is asked
            future.set_exception(error)
        else:
            future.set_result(None)

    Thread(target=do, daemon=True).start()
    return future


def _end_installers() -> None:
    """End what this process has started and that still runs: an installer of a run that was cancelled."""
    if os.getpgrp() == os.getpid():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(os.getpgrp(), signal.SIGTERM)


def _close_interactive(folder: RunFolder) -> None:
    """Whoever had begun it held its lock: it was free, so that its owner has ended without a word."""
    state = folder.state()
    failure = RunFailure(
        FailureCode.INTERRUPTED, "the program that had begun the run ended without completing it"
    )
    now_ms = max(state.since_ms, int(folder.events.stat().st_mtime * 1000))
    for observation in (Lost(failure), Collected()):
        state = next_state(state, observation, now_ms)
    folder.write_state(state)


def _fail_without_target(folder: RunFolder, error: StokerError) -> None:
    from stoker_runs.records.states import Refused

    state = folder.state()
    for observation in (Refused(RunFailure(FailureCode.TARGET_UNUSABLE, str(error))), Collected()):
        state = next_state(state, observation, max(state.since_ms, 1))
    folder.write_state(state)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
