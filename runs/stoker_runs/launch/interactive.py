"""Runs that a program or notebook begins for itself: it is its script and its runner at once."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from stoker.settings.workspace import Workspace
from stoker_run.records import Recorder
from stoker_runs.launch.runners import Clock
from stoker_runs.launch.state_keeper import end_run
from stoker_runs.records.folder import RunFolder
from stoker_runs.records.record import INTERACTIVE, Definition, RunRecord, checked_experiment, new_run_id
from stoker_runs.records.states import (
    FailureCode,
    Lost,
    RunFailure,
    RunState,
    ScriptEnded,
    Status,
)
from stoker_runs.records.store import RunStore


class InteractiveRun:
    """A run whose state this process sets. If the process ends without that, the run has failed as `Interrupted`."""

    def __init__(
        self,
        workspace: Workspace,
        experiment: str,
        tags: Mapping[str, str] | None = None,
        script: str = "",
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or Clock()
        now_ms = self._clock.now_ms()
        name = checked_experiment(experiment)
        record = RunRecord(
            new_run_id(name, now_ms, secrets.token_hex(4)),
            name,
            now_ms,
            Definition(script),
            INTERACTIVE,
            tags=dict(tags or {}),
        )
        state = RunState(Status.RUNNING, now_ms, submitted_ms=now_ms, started_ms=now_ms)
        self._lock: int | None = None

        def own(staged: RunFolder) -> None:
            # Taken before anybody can see it: nobody adopts what has an owner.
            self._lock = staged.acquire_lock()
            staged.attempt(1).mkdir(parents=True)

        self.folder = RunStore(workspace.create().runs_dir).create(record, state, own)
        # Its `outputs/` and `logs/` are those of the run at once: there is nothing to collect.
        self.recorder = Recorder(self.folder.attempt(1), self.folder.path)

    @property
    def is_open(self) -> bool:
        """Whether the run has not been ended."""
        return self._lock is not None

    def end(self, error: str | None = None) -> None:
        """Complete the run, or fail it with an error; a second call does nothing."""
        if self._lock is None:
            return
        failure = None if error is None else RunFailure(FailureCode.SCRIPT_FAILED, error)
        self._close(ScriptEnded(0 if error is None else 1, failure))

    def interrupt(self) -> None:
        """Fail the run as interrupted."""
        if self._lock is not None:
            self._close(Lost(RunFailure(FailureCode.INTERRUPTED, "the program has given the run up")))

    def _close(self, observation: ScriptEnded | Lost) -> None:
        self.recorder.close()
        end_run(self.folder, observation, self._clock.now_ms())
        assert self._lock is not None
        self.folder.release_lock(self._lock)
        self._lock = None
