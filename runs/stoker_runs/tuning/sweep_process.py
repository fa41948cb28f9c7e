"""`python -m stoker_runs.tuning.sweep_process RUN WORKSPACE`: the detached process that is a sweep's runner.

It reads the state of its children, decides by `next_step`, and starts and ends children. They are runs with their own
runners, which continue if this process is killed. The next one starts from the folders of the children: children that
have ended are not repeated, and missing ones are started (decision 45).
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Final

from msgspec.structs import replace

from stoker.errors import StokerError
from stoker.settings.workspace import Workspace
from stoker.system.wording import format_count
from stoker_runs.errors import UnknownRun
from stoker_runs.launch.runner_process import acquire_runner_lock, runner_failure
from stoker_runs.launch.runners import Clock, adopt, fork_runner, read_arguments
from stoker_runs.records.folder import RunFolder, log_file
from stoker_runs.records.states import (
    CancelRequested,
    Collected,
    Granted,
    Observation,
    Prepared,
    Provisioned,
    Refused,
    RunFailure,
    RunState,
    ScriptEnded,
    Seen,
    Status,
    next_state,
)
from stoker_runs.records.store import RunStore
from stoker_runs.targets.definitions import find_target
from stoker_runs.targets.registry import engine_of
from stoker_runs.tuning.children import (
    ChildReader,
    Trials,
    child_folders,
    create_child,
    definition_of,
    earlier_curves,
    earlier_trials,
)
from stoker_runs.tuning.definition import BAYESIAN, Value, arguments_of
from stoker_runs.tuning.planning import Child, ending_of, next_step
from stoker_runs.tuning.policies import best_of
from stoker_runs.tuning.proposals import propose_parameters

_POLL_S: Final = 0.05
_FAILING_POLL_S: Final = 2.0
_ADOPT_S: Final = 2.0
# Of the time it takes to look at all children, which may be many.
_PAUSES: Final = 5.0


class Sweep:
    """Brings one sweep to its end.

    Args:
        folder: The sweep's folder, whose lock the caller holds.
        adopt: Starts that of one that goes on and has none.
    """

    def __init__(
        self,
        folder: RunFolder,
        store: RunStore,
        begin: Callable[[RunFolder], None],
        adopt: Callable[[RunFolder], object],
        clock: Clock | None = None,
    ) -> None:
        self._folder = folder
        self._record = folder.record()
        self._terms = definition_of(self._record)
        self._store = store
        self._begin = begin
        self._adopt = adopt
        self._clock = clock or Clock()
        self._earlier = earlier_curves(self._terms, store)
        self._trials = Trials(folder, store)
        self._earlier_trials = earlier_trials(self._terms, store)
        folders = child_folders(self._record, self._terms.total, store)
        self._readers = {number: ChildReader(child, self._terms.metric) for number, child in folders.items()}
        self._evaluated: dict[int, int] = {}
        self._reported: set[int] = set()
        self._adopt_at_s = 0.0
        self.state: RunState = folder.state()

    def run(self) -> RunState:
        """Bring the sweep to its end; return its state."""
        while not self.state.is_terminal:
            began_s = self._clock.elapsed_s()
            try:
                self.step()
            except OSError as error:
                # The next step repeats what could not be written.
                _LOG.warning("the workspace cannot be written to: %s", error)
                self._clock.sleep(_FAILING_POLL_S)
            took_s = self._clock.elapsed_s() - began_s
            if not self.state.is_terminal:
                self._clock.sleep(max(_POLL_S, _PAUSES * took_s))
        return self.state

    def step(self) -> None:
        """Poll once and act.

        Raises:
            OSError: The workspace cannot be written to.
        """
        if self.state.status is Status.FINALIZING:
            self._apply(Collected())
            return
        self._check_cancel_request()
        if self.state.status in (Status.NOT_STARTED, Status.QUEUED):
            for observation in (Granted(), Prepared(), Provisioned(), Seen()):
                self._apply(observation)
            self._log(self._heading())
        children = self._read_children()
        ending = self._ending()
        step = next_step(self._terms, children, self._earlier, ending)
        self._evaluated |= step.evaluated
        for number, reason in step.ends.items():
            self._end_child(number, reason)
        for number in step.starts:
            self._start_child(number)
        if step.is_over:
            self._finish(children, ending)

    def fail(self, failure: RunFailure) -> None:
        """End the sweep because its runner itself has failed."""
        self._apply(Refused(failure))
        self._apply(Collected())

    def _apply(self, observation: Observation, reason: str = "") -> None:
        following = next_state(self.state, observation, self._clock.now_ms())
        if reason:
            following = following.replace(reason=reason)
        if following != self.state:
            self._folder.write_state(following)
            self.state = following

    def _check_cancel_request(self) -> None:
        request = self._folder.cancel_request()
        if request is not None and not self.state.ending:
            self._apply(CancelRequested(str(request.get("reason") or "")))

    def _ending(self) -> str:
        """Return why the whole sweep ends; empty while it continues."""
        if self.state.ending:
            reason = f" {self.state.reason}" if self.state.reason else ""
            return f"its sweep was canceled{reason}"
        limit_s, began_ms = self._terms.max_duration_s, self.state.started_ms
        if limit_s is not None and began_ms is not None and self._clock.now_ms() - began_ms > limit_s * 1000:
            return f"the sweep has taken the {limit_s:g} s that it was allowed"
        return ""

    def _read_children(self) -> dict[int, Child]:
        if self._clock.elapsed_s() >= self._adopt_at_s:
            self._adopt_at_s = self._clock.elapsed_s() + _ADOPT_S
            for reader in self._readers.values():
                if not reader.state.is_terminal:
                    self._adopt(reader.folder)
        children: dict[int, Child] = {}
        for number, reader in list(self._readers.items()):
            try:
                child = reader.read()
            except UnknownRun:
                del self._readers[number]
                continue
            children[number] = replace(child, evaluated=self._evaluated.get(number, 0))
        for number, child in children.items():
            if self._readers[number].state.is_terminal and number not in self._reported:
                self._reported.add(number)
                self._log_end(number, child, children)
        return children

    def _start_child(self, number: int) -> None:
        parameters = self._choose_parameters(number)
        child = create_child(
            self._folder, self._record, self._terms, number, parameters, self._store, self._clock.now_ms()
        )
        self._readers[number] = ChildReader(child, self._terms.metric)
        self._begin(child)
        self._log(f"{child.id} begins: {' '.join(arguments_of(parameters))}")

    def _choose_parameters(self, number: int) -> dict[str, Value]:
        if self._terms.sampler.kind != BAYESIAN or self._terms.resumes(number):
            return self._terms.parameters(number)
        return propose_parameters(self._terms, number, [*self._earlier_trials, *self._trials.read()])

    def _end_child(self, number: int, reason: str) -> None:
        request = self._folder.cancel_request() or {}
        grace_s = request.get("grace_s")
        self._readers[number].folder.request_cancel(
            reason, self._clock.now_ms(), None if grace_s is None else float(grace_s)
        )
        self._log(f"{self._readers[number].folder.id} is told to end: {reason}")

    def _finish(self, children: dict[int, Child], ending: str) -> None:
        found = ending_of(self._terms, children, ending)
        if self.state.ending:
            self._apply(ScriptEnded(0))
        else:
            self._apply(ScriptEnded(0 if found.failure is None else 1, found.failure), found.reason)
        if found.reason:
            self._log(found.reason)
        self._apply(Collected())

    def _heading(self) -> str:
        terms = self._terms
        how = f"at most {terms.at_once} at once, by {terms.sampler.kind} sampling"
        return f"{format_count(terms.total, 'run')}, {how}: {terms.goal.value} {terms.metric}"

    def _log_end(self, number: int, child: Child, children: dict[int, Child]) -> None:
        reader, terms = self._readers[number], self._terms
        state = reader.state
        value = best_of(child.curve.values, terms.goal)
        words = [f"{reader.folder.id} is {state.status.value}"]
        if state.error is not None:
            words.append(f"{state.error.code}: {state.error.message}")
        elif value is not None:
            words.append(f"{terms.metric} {value:.6g}")
        else:
            names = ", ".join(child.logged[:10]) or "no numbers"
            words.append(f"it has not logged {terms.metric}, but {names}")
        best = best_of([value for one in children.values() for value in one.curve.values], terms.goal)
        if best is not None:
            words.append(f"the best is {best:.6g}")
        over = sum(one.curve.is_over for one in children.values())
        words.append(f"{over} of {terms.total} have ended")
        self._log("; ".join(words))

    def _log(self, text: str) -> None:
        """Add a line to the log, which people follow as that of any run."""
        path = log_file(self._folder, self.state.attempt)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        time = datetime.fromtimestamp(self._clock.now_ms() / 1000).astimezone()
        with path.open("ab") as file:
            file.write(f"{time:%H:%M:%S} {text}\n".encode())


_LOG: Final = logging.getLogger(__name__)


class _Runners:
    """The runners of children, as forks of this process, which has one thread and reaps them itself."""

    def __init__(self, workspace: Workspace, target: str) -> None:
        self._workspace = workspace
        with contextlib.suppress(StokerError):
            # Imported once here: in each fork the imports would be more than half of its work.
            engine_of(find_target(workspace.targets_dir, target), workspace)
        self._pids: set[int] = set()

    def begin(self, child: RunFolder) -> None:
        """Start the runner of a child."""
        self._fork(child, self._workspace)

    def adopt(self, child: RunFolder) -> None:
        """Start the runner of a child that has lost its runner."""
        self._reap()
        adopt(child, self._workspace, self._fork)

    def _fork(self, child: RunFolder, workspace: Workspace) -> None:
        self._reap()
        fork_runner(child, workspace, self._pids.add)

    def _reap(self) -> None:
        for pid in list(self._pids):
            if os.waitpid(pid, os.WNOHANG)[0] == pid:
                self._pids.discard(pid)


def main(arguments: list[str]) -> int:
    """Be the runner of a sweep until it has ended."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    folder, workspace = read_arguments(arguments)
    if not acquire_runner_lock(folder):
        return 0
    runners = _Runners(workspace, folder.record().definition.target)
    sweep = Sweep(folder, RunStore(workspace.runs_dir), runners.begin, runners.adopt)
    try:
        sweep.run()
    except Exception as error:  # noqa: BLE001  # the sweep must not stay as it is for ever
        _LOG.exception("the runner of the sweep has failed")
        sweep.fail(runner_failure(folder, "the runner of the sweep", error))
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
