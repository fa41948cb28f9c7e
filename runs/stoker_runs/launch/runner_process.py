"""`python -m stoker_runs.launch.runner_process RUN WORKSPACE`: the detached process that is a run's runner.

It polls the attempt, decides by `next_state` and acts, from whatever state the run is in to its end. Each step may be
repeated: after a runner was killed, the next one starts from the run's folder and asks the engine for the attempt
(decision 27).
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Final

from stoker.errors import StokerError
from stoker.settings.workspace import Workspace
from stoker_runs.launch.agent_reports import observations
from stoker_runs.launch.runners import Clock, read_arguments
from stoker_runs.launch.slots import SlotClaim, Slots, slots_of
from stoker_runs.launch.state_keeper import StateKeeper, end_run
from stoker_runs.records.folder import RunFolder
from stoker_runs.records.record import INTERACTIVE
from stoker_runs.records.states import (
    CancelRequested,
    Collected,
    FailureCode,
    Granted,
    Lost,
    Observation,
    Prepared,
    Provisioned,
    Refused,
    RunFailure,
    RunState,
    Seen,
    Status,
    Unseen,
    Waits,
    next_state,
)
from stoker_runs.records.store import RunStore
from stoker_runs.targets.background import start_thread
from stoker_runs.targets.definitions import find_target
from stoker_runs.targets.engine import AttemptState, Engine, EngineFailure, Job, Presence, Unreachable
from stoker_runs.targets.registry import engine_of

INTERRUPTED: Final = RunFailure(
    FailureCode.INTERRUPTED,
    "the script was interrupted: its agent is gone without an exit status, as after a restart of the machine",
    "stoker runs resume RUN begins another attempt; with --attempts 2 that happens by itself",
)
_LOG: Final = logging.getLogger(__name__)
_POLL_S: Final = 0.1
_QUEUE_POLL_S: Final = 0.5
_FAILING_POLL_S: Final = 2.0
_COLLECT_FOR_S: Final = 300.0
# A machine that does not answer still has the files.
_COLLECT_UNREACHABLE_FOR_S: Final = 86_400.0
Begin = Callable[[Callable[[], None]], "Future[None]"]
"""Begins work that takes long, and returns its future."""


class Runner:
    """Brings one run to its end.

    Args:
        folder: The run's folder, whose lock the caller holds.
        slots: The slots of the target; None if it has none.
        begin: Starts the preparation in the background, so that the run can be cancelled meanwhile.
        register: Registers the models that the script has requested.
        deliver: Copies outputs into data stores; returns a line for each, and the failure if one could not be.
    """

    def __init__(
        self,
        folder: RunFolder,
        store: RunStore,
        engine: Engine,
        slots: Slots | None,
        snapshots_dir: Path,
        begin: Begin,
        register: Callable[[RunFolder], None] = lambda _: None,
        deliver: Callable[[RunFolder], tuple[list[str], RunFailure | None]] = lambda _: ([], None),
        clock: Clock | None = None,
    ) -> None:
        self._folder = folder
        self._record = folder.record()
        self._store = store
        self._engine = engine
        self._claim = SlotClaim(slots, self._record)
        self._snapshots_dir = snapshots_dir
        self._begin = begin
        self._register = register
        self._deliver = deliver
        self._clock = clock or Clock()
        self._keeper = StateKeeper(folder, self._clock)
        self._preparation: Future[None] | None = None
        self._stop_sent = False
        self._silent_since_s: float | None = None
        self._collecting_since_s: float | None = None

    @property
    def state(self) -> RunState:
        """The run's state."""
        return self._keeper.state

    def run(self) -> RunState:
        """Bring the run to its end; return its state."""
        while not self.state.is_terminal or self._keeper.is_unwritten:
            wait_s = self.step()
            if wait_s:
                self._clock.sleep(wait_s)
        return self.state

    def step(self) -> float:
        """Poll once and act; return the seconds until the next step."""
        if self._keeper.is_unwritten and not self._keeper.write():
            return _FAILING_POLL_S
        self._check_cancel_request()
        match self.state.status:
            case Status.NOT_STARTED | Status.QUEUED:
                return self._queue()
            case Status.PREPARING:
                return self._prepare()
            case Status.FINALIZING:
                return self._finish()
            case Status.COMPLETED | Status.FAILED | Status.CANCELED:
                return 0.0
            case _:
                return self._poll()

    def fail(self, failure: RunFailure) -> None:
        """End the run because the runner itself has failed."""
        self._apply(Refused(failure))
        self._apply(Collected())

    def _apply(self, observation: Observation) -> None:
        attempt = self.state.attempt
        self._keeper.apply(observation)
        if self.state.attempt != attempt:
            self._preparation, self._stop_sent, self._silent_since_s = None, False, None

    def _check_cancel_request(self) -> None:
        request = self._folder.cancel_request()
        if request is not None and not self.state.ending:
            self._apply(CancelRequested(str(request.get("reason") or "")))

    def _job(self) -> Job:
        definition = self._record.definition
        resume_from = None
        if definition.resume_from:
            resume_from = self._store.get(definition.resume_from).outputs
        gpus = self._claim.gpus
        return Job(self._folder, self._record, self.state.attempt, self._snapshots_dir, gpus, resume_from)

    def _queue(self) -> float:
        try:
            reason = self._claim.make(self.state.submitted_ms, self._clock.now_ms())
        except OSError as error:
            self._apply(Waits(f"the workspace cannot be read or written: {error.strerror}"))
            return _FAILING_POLL_S
        if reason:
            self._apply(Waits(reason))
            return _QUEUE_POLL_S
        self._apply(Granted())
        return 0.0

    def _prepare(self) -> float:
        if self._preparation is None:
            # After a restart of the runner the run gets the slots once more that it holds.
            self._claim.make(self.state.submitted_ms, self._clock.now_ms())
            job = self._job()
            self._preparation = self._begin(lambda: self._engine.prepare(job, self._notify))
        if not self._preparation.done():
            return 0.02
        problem = self._preparation.exception()
        if isinstance(problem, EngineFailure):
            self._apply(Refused(problem.failure))
        elif problem is not None:
            raise problem
        else:
            self._apply(Prepared())
        return 0.0

    def _notify(self, line: str) -> None:
        """Log a line of the preparation, and add it to the run's notes."""
        _LOG.info("%s", line)
        with contextlib.suppress(OSError):
            self._folder.add_note(line, self._clock.now_ms(), self.state.attempt)

    def _poll(self) -> float:
        job = self._job()
        try:
            sight = self._engine.observe(job)
            if sight.presence in {Presence.ALIVE, Presence.PENDING}:
                if self.state.ending and not self._stop_sent:
                    self._send_stop(job)
                self._engine.pull(job, final=False)
        except EngineFailure as error:
            sight = AttemptState(Presence.UNREACHABLE, error.failure.message)
        if sight.presence is not Presence.UNREACHABLE:
            self._silent_since_s = None
        return self._act_on(job, sight)

    def _act_on(self, job: Job, sight: AttemptState) -> float:
        match sight.presence:
            case Presence.ABSENT:
                return self._handle_absence(job)
            case Presence.PENDING:
                self._apply(Unseen(sight.reason))
            case Presence.ALIVE:
                self._apply(Provisioned())
                if sight.reason:
                    self._apply(Unseen(sight.reason))
                elif sight.started_ms is not None:
                    self._apply(Seen(sight.started_ms))
            case Presence.ENDED:
                for observation in observations(sight.exit, self._record.definition.max_duration_s):
                    self._end_attempt(job, observation)
                return 0.0
            case Presence.GONE:
                lost = RunFailure(FailureCode.NODE_LOST, sight.reason) if sight.reason else INTERRUPTED
                self._end_attempt(job, Lost(lost))
                return 0.0
            case Presence.UNREACHABLE:
                return self._handle_silence(job, sight.reason)
        return _POLL_S

    def _handle_absence(self, job: Job) -> float:
        """Start the agent; if it was started before, the machine has lost the attempt."""
        if self.state.ending or self.state.status is not Status.PROVISIONING:
            self._end_attempt(job, Lost(INTERRUPTED))
            return 0.0
        try:
            self._engine.start(job)
        except EngineFailure as error:
            self._apply(Refused(error.failure))
        return 0.0

    def _handle_silence(self, job: Job, reason: str) -> float:
        """Declare a node lost that is silent for long, if another attempt may follow or none is wanted.

        Otherwise wait for it, and collect the script's files when it answers.
        """
        now_s = self._clock.elapsed_s()
        self._silent_since_s = now_s if self._silent_since_s is None else self._silent_since_s
        lost_after_s = self._record.definition.lost_after_s
        # The agent ends its script after as long; the margin is for what it takes to do so.
        margin_s = self._record.definition.grace_s + 10.0
        is_lost = now_s - self._silent_since_s > lost_after_s + margin_s
        if is_lost and (self.state.attempts > 1 or self.state.ending):
            failure = RunFailure(
                FailureCode.NODE_LOST, f"nothing was heard of the node for {lost_after_s:g} s: {reason}"
            )
            self._end_attempt(job, Lost(failure))
            return 0.0
        self._apply(Unseen(reason))
        return _FAILING_POLL_S

    def _send_stop(self, job: Job) -> None:
        request = self._folder.cancel_request() or {}
        grace_s = request.get("grace_s")
        usual_s = self._record.definition.grace_s
        self._engine.stop(job, usual_s if grace_s is None else float(grace_s), "canceled")
        self._stop_sent = True

    def _end_attempt(self, job: Job, observation: Observation) -> None:
        following = next_state(self.state, observation, self._clock.now_ms())
        if following.attempt != self.state.attempt:
            # The next attempt begins with the files of this one, so no process of it may still run.
            try:
                self._engine.pull(job, final=True)
                self._engine.clean(job)
            except EngineFailure as error:
                _LOG.warning("attempt %d was left as it is: %s", job.attempt, error)
        self._apply(observation)

    def _finish(self) -> float:
        job = self._job()
        now_s = self._clock.elapsed_s()
        began_s = self._collecting_since_s = (
            now_s if self._collecting_since_s is None else self._collecting_since_s
        )
        try:
            if job.place.is_dir():
                self._engine.pull(job, final=True)
                self._engine.clean(job)
        except EngineFailure as error:
            is_wanted = isinstance(error, Unreachable) and self.state.outcome is not Status.CANCELED
            if now_s - began_s < (_COLLECT_UNREACHABLE_FOR_S if is_wanted else _COLLECT_FOR_S):
                _LOG.warning("%s", error)
                return _FAILING_POLL_S
            self._keeper.state = self.state.replace(reason=f"not all files came back: {error}")
        if self.state.outcome is Status.COMPLETED:
            lines, failure = self._deliver(self._folder)
            for line in lines:
                self._notify(line)
            if failure is not None:
                self._keeper.state = self.state.replace(outcome=Status.FAILED, error=failure)
        if self.state.outcome is Status.COMPLETED:
            try:
                self._register(self._folder)
            except (StokerError, OSError) as error:
                _LOG.warning("a model was not registered: %s", error)
        self._apply(Collected())
        # Only now: the run keeps its slots until its end is written.
        self._claim.release()
        return 0.0


# Programs that look whether a run has a runner hold its lock for a moment.
_TRIES: Final = 20
_BETWEEN_TRIES_S: Final = 0.05


def main(arguments: list[str]) -> int:
    """Be the runner of a run until it has ended."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    folder, workspace = read_arguments(arguments)
    if not acquire_runner_lock(folder):
        return 0
    if folder.record().kind == INTERACTIVE:
        _close_interactive(folder)
        return 0
    store = RunStore(workspace.runs_dir)
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
            start_thread,
            lambda folder: _register(folder, workspace),
            lambda folder: _deliver(folder, workspace),
        )
    except StokerError as error:
        failure = RunFailure(FailureCode.TARGET_UNUSABLE, str(error))
        end_run(folder, Refused(failure), max(folder.state().since_ms, 1))
        return 1
    try:
        runner.run()
    except Exception as error:  # noqa: BLE001  # the run must not stay as it is for ever
        _LOG.exception("the runner has failed")
        runner.fail(runner_failure(folder, "the runner", error))
        return 1
    finally:
        _end_installers()
    return 0


def _register(folder: RunFolder, workspace: Workspace) -> None:
    if any(line.get("e") == "register" for line in folder.event_lines()):
        # Imported here: few scripts register models, and this imports all kinds of them.
        from stoker_runs.launch.registration import register_requested

        register_requested(folder, workspace)


def _deliver(folder: RunFolder, workspace: Workspace) -> tuple[list[str], RunFailure | None]:
    if not folder.record().definition.outputs:
        return [], None
    # Imported here: few runs have outputs in data stores.
    from stoker_runs.launch.outputs import store_outputs

    return store_outputs(folder, workspace)


def runner_failure(folder: RunFolder, runner: str, error: Exception) -> RunFailure:
    """Return the failure of a run whose runner has a defect."""
    hint = f"its log is {folder.runner_log.name}"
    return RunFailure(FailureCode.INTERNAL, f"{runner} has failed: {error!r}", hint)


def acquire_runner_lock(folder: RunFolder) -> bool:
    """Acquire the run's lock for the life of this process; return False if another process keeps it."""
    for _ in range(_TRIES):
        if folder.acquire_lock() is not None:
            return True
        time.sleep(_BETWEEN_TRIES_S)
    return False


def _end_installers() -> None:
    """Terminate processes that this one has started, such as the installer of a cancelled run."""
    if os.getpgrp() == os.getpid():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(os.getpgrp(), signal.SIGTERM)


def _close_interactive(folder: RunFolder) -> None:
    """Fail a run whose owner has ended without completing it: its lock was free."""
    failure = RunFailure(
        FailureCode.INTERRUPTED, "the program that had begun the run ended without completing it"
    )
    now_ms = max(folder.state().since_ms, int(folder.events.stat().st_mtime * 1000))
    end_run(folder, Lost(failure), now_ms)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
