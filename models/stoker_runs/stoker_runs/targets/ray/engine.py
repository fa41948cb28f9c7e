"""The engine of Ray clusters, whose nodes see the workspace at the path that it has here.

Ray chooses the node. A job of Ray takes seconds to start, so it is a worker (`stoker_run.worker`), which runs one
attempt after the other for as long as there are any.

WORKSPACE/ray/agents/DIGEST.zip        the agent
WORKSPACE/ray/TARGET/SHAPE/WORKER/     a worker's folder; SHAPE is what it has, WORKER is its job's name in Ray
attempts/N/placement.json              the worker to which the attempt was given
attempts/N/lost.json                   the worker's word that the attempt has ended without a report
"""

from __future__ import annotations

import contextlib
import secrets
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from stoker.settings.workspace import Workspace
from stoker.system.durable import private_folder
from stoker_run.json_files import read_json, replace_json
from stoker_run.trees import remove_tree
from stoker_run.worker import LOST
from stoker_runs.environments.requested import RequestedEnvironment, RunEnvironment
from stoker_runs.records.record import Definition
from stoker_runs.records.states import FailureCode
from stoker_runs.targets.definitions import Target, read_secrets
from stoker_runs.targets.engine import (
    AttemptState,
    EngineFailure,
    Job,
    NodeCounts,
    Presence,
    Say,
    Unreachable,
)
from stoker_runs.targets.local import (
    as_failure,
    with_variables,
)
from stoker_runs.targets.ray.cluster import JobStatus, RayCluster
from stoker_runs.targets.shared_workspace import (
    SharedWorkspaceEngine,
    assign_attempt,
    beginning_state,
    has_agent,
    is_given_up,
    take_back,
)

_DAEMON: Final = "raylet"
_PYTHON: Final = "python3"
_IDLE_S: Final = 5
_SILENT_AFTER_S: Final = 15.0
"""The agent's heart beats every 5 s."""
_RENEW_S: Final = 1.0
"""How often leases are renewed."""
_TRIES: Final = 3
"""How many workers are started for an attempt that none of them begins with."""
_CHECK_S: Final = 60.0
_CHECK_IDLE_S: Final = 3
_HOLD: Final = (
    "import ray; from ray.autoscaler.sdk import request_resources; ray.init(); request_resources(bundles="
)


@dataclass(frozen=True, slots=True)
class _Placement:
    """The worker to which an attempt was given.

    Attributes:
        tries: How many workers were started for the attempt.
        is_new: Whether it was started for the attempt.
    """

    folder: Path
    tries: int = 1
    is_new: bool = False

    @property
    def was_seen(self) -> bool:
        """Whether a worker has been there: it removes its folder when it ends."""
        return not self.folder.exists() or (self.folder / "worker.json").exists()

    def is_claimed(self, job: Job) -> bool:
        """Whether the worker waits for the attempt, which was not written yet."""
        names = ("next", "current")
        claimed = (self.folder / f"taken.{_key(job)}").exists()
        return claimed and not any((self.folder / name).exists() for name in names)

    def again(self) -> _Placement:
        """The same with one more try."""
        return replace(self, tries=self.tries + 1)

    def write(self, job: Job) -> None:
        """Write it into the attempt's folder, before the worker hears of it."""
        content = {"worker": str(self.folder), "tries": self.tries, "is_new": self.is_new}
        replace_json(job.place / "placement.json", content)


class RayEngine(SharedWorkspaceEngine):
    """Runs attempts on the nodes of a Ray cluster."""

    def __init__(self, target: Target, workspace: Workspace) -> None:
        super().__init__(target, workspace)
        token = read_secrets(target, workspace.targets_dir).get("token", "")
        self._cluster = RayCluster(target.name, str(target.settings.get("address", "")), token)

    def check(self) -> Sequence[str]:
        """Have a worker started that finds nothing to do, and read what it writes into the workspace.

        It takes no cores, so that it needs no node but the head.
        """
        version = self._cluster.version()
        job = f"stoker-check-{secrets.token_hex(4)}"
        folder = private_folder(self._home / self._target.name / "check" / job)
        try:
            facts = self._facts(job, folder)
        finally:
            remove_tree(folder, ignore_errors=True)
        nodes = self._cluster.count_nodes()
        most = self._target.settings["max_nodes"]
        return (
            f"Python {facts['python']} on {facts['host']}, the head of the cluster",
            f"Ray {version} at {self._cluster.address}",
            f"nodes: {nodes}; at most {most}",
            f"workspace: {self._workspace.root}, which the head sees",
        )

    def _facts(self, job: str, folder: Path) -> Mapping[str, Any]:
        with as_failure("the workspace cannot be written to"):
            self._cluster.submit(job, self._command(_work(folder, _CHECK_IDLE_S)), 0, 0)
        until_s = time.monotonic() + _CHECK_S
        while time.monotonic() < until_s:
            facts = read_json(folder / "worker.json")
            if isinstance(facts, dict):
                return facts
            status = self._cluster.status(job)
            if status is not None and status.is_over and not (folder / "worker.json").exists():
                raise self._unseen(job, status)
            time.sleep(0.1)
        raise EngineFailure(
            FailureCode.TARGET_UNUSABLE,
            f"a job of the Ray cluster at {self._cluster.address} has not begun after {_CHECK_S:g} s",
            "does ray status there list a node that is idle?",
        )

    def _unseen(self, job: str, status: JobStatus) -> EngineFailure:
        """Return why a job has ended before it could write into the workspace."""
        last = status.message
        with contextlib.suppress(EngineFailure):
            last = self._cluster.log_tail(job) or last
        return EngineFailure(
            FailureCode.TARGET_UNUSABLE,
            f"the Ray cluster at {self._cluster.address} could not start a worker for {self._workspace.root}: {last}",
            "put the workspace into a folder that all nodes and this machine have at the same path, with the rights "
            f"to write there (STOKER_WORKSPACE), and name a Python that the nodes have: python: {self._python}",
        )

    def hold_nodes(self) -> None:
        """Have the cluster keep as many nodes as the target says, also without runs.

        Raises:
            EngineFailure: The cluster cannot be told.
        """
        settings = self._target.settings
        bundle = {"CPU": settings.get("node_cores", 1)}
        if settings.get("node_gpus"):
            bundle["GPU"] = settings["node_gpus"]
        program = f"{_HOLD}{[bundle] * settings.get('min_nodes', 0)!r})"
        job = f"stoker-nodes-{secrets.token_hex(4)}"
        self._cluster.submit(job, shlex.join([self._python, "-c", program]), 0, 0)

    def count_nodes(self) -> NodeCounts:
        """Return the number of nodes in each state."""
        return self._cluster.count_nodes()

    def environment(self, asked: RequestedEnvironment, job: Job, say: Say) -> RunEnvironment:
        """Return the interpreter of the nodes, or build an environment in the workspace."""
        if asked.kind == "user":
            return super().environment(asked, job, say)
        # Not above: the libraries that read environment files take longer to import than all the rest.
        from stoker_runs.run_environment import prepare_environment

        gpus = job.record.definition.gpus or 0
        home = self._workspace.environments_dir
        return with_variables(prepare_environment(asked, job.folder.environment, home, say, gpus))

    def start(self, job: Job) -> None:
        """Give the attempt to a worker that has nothing to do, or else to a new one."""
        with as_failure("the attempt cannot be handed to a node"):
            if has_agent(job):
                return
            placed = self._placement(job)
            if placed is not None and not placed.is_claimed(job):
                if not self._is_free_again(job, placed):
                    return
                placed = placed.again()
            folder = self._claimed(job)
            if folder is not None:
                _Placement(folder).write(job)
                with contextlib.suppress(FileNotFoundError):
                    assign_attempt(job, folder)
                    return
            self._start_worker(job, 1 if placed is None else placed.tries)

    def _is_free_again(self, job: Job, placed: _Placement) -> bool:
        """Whether the worker of an attempt is gone without having begun with it; one that was never started is now.

        Raises:
            EngineFailure: The nodes cannot run workers.
        """
        name = placed.folder.name
        try:
            status = self._cluster.status(name)
        except Unreachable:
            return False
        if status is None and placed.is_new:
            self._submit(job, placed.folder)
            return False
        if (status is not None and not status.is_over) or not take_back(placed.folder):
            return False
        has_failed = status is not None and bool(status.exit_status) and not placed.was_seen
        if status is not None and (has_failed or placed.tries >= _TRIES):
            raise self._unseen(name, status)
        return True

    def _start_worker(self, job: Job, tries: int) -> None:
        workers = self._workers(job.record.definition)
        folder = workers / f"stoker-{job.record.id}-{job.attempt}-{secrets.token_hex(4)}"
        _Placement(folder, tries, is_new=True).write(job)
        self._submit(job, folder)

    def _submit(self, job: Job, folder: Path) -> None:
        """Have Ray start a worker with this attempt; what cannot be asked of it now is asked again later."""
        private_folder(folder)
        assign_attempt(job, folder)
        definition = job.record.definition
        cores, gpus = definition.cores, definition.gpus or 0
        with contextlib.suppress(Unreachable):
            if definition.nodes > 1:
                options = ["gang", str(folder), str(job.place), "--cores", str(cores), "--gpus", str(gpus)]
                self._cluster.submit(folder.name, self._command(options), 0, 0)
            else:
                idle_s = int(self._target.settings.get("idle_s", _IDLE_S))
                self._cluster.submit(folder.name, self._command(_work(folder, idle_s)), cores, gpus)

    def _claimed(self, job: Job) -> Path | None:
        """Return a worker that has nothing to do, and that waits for this attempt from now on."""
        if job.record.definition.nodes > 1:
            return None
        workers, mark = self._workers(job.record.definition), f"taken.{_key(job)}"
        for folder in sorted(workers.iterdir()) if workers.is_dir() else ():
            if (folder / mark).exists():
                return folder
            with contextlib.suppress(OSError):
                (folder / "idle").rename(folder / mark)
                return folder
        return None

    def _command(self, words: Sequence[str]) -> str:
        """Return the command line of the agent with some arguments; the shell that Ray starts is replaced by it."""
        return f"exec {shlex.join([self._python, str(self.agent_archive()), *words])}"

    def _workers(self, definition: Definition) -> Path:
        """Return the folder of the workers that have what a run asks for."""
        shape = "gangs" if definition.nodes > 1 else f"{definition.cores}c{definition.gpus or 0}g"
        return self._home / self._target.name / shape

    @staticmethod
    def _placement(job: Job) -> _Placement | None:
        found = read_json(job.place / "placement.json")
        if not isinstance(found, dict):
            return None
        return _Placement(Path(found["worker"]), int(found["tries"]), bool(found["is_new"]))

    def observe_waiting(self, job: Job) -> AttemptState:
        """Ask Ray about the worker to which the attempt was given."""
        placed = self._placement(job)
        if placed is None:
            return AttemptState(Presence.ABSENT)
        is_ahead = (placed.folder / "next").exists()
        try:
            status = self.ask_seldom(placed.folder.name, self._cluster.status)
        except Unreachable as error:
            return AttemptState(Presence.PENDING, error.failure.message)
        if not is_ahead:
            reason = "the node has ended while the script began"
            is_over = status is None or status.is_over
            return beginning_state(job, placed.folder, is_over=is_over, reason=reason)
        if status is None or status.is_over:
            return AttemptState(Presence.ABSENT)
        return AttemptState(Presence.PENDING, self._wait_reason(job) if status.status == "PENDING" else "")

    def _wait_reason(self, job: Job) -> str:
        definition = job.record.definition
        what = f"{definition.cores} core{'s' * (definition.cores != 1)}"
        if definition.gpus:
            what += f" and {definition.gpus} GPU{'s' * (definition.gpus != 1)}"
        with contextlib.suppress(EngineFailure):
            nodes = self._cluster.count_nodes()
            return f"waits for a node with {what} of its own: {nodes}"
        return f"waits for a node with {what} of its own"

    def observe_silent(self, job: Job, silent_s: float, reason: str) -> AttemptState:
        """Ask Ray whether the worker of the attempt is still there."""
        placed = self._placement(job)
        try:
            status = None if placed is None else self.ask_seldom(placed.folder.name, self._cluster.status)
        except EngineFailure as error:
            return AttemptState(Presence.UNREACHABLE, f"{reason}; {error.failure.message}")
        if status is None or status.is_over:
            reason += f"; Ray: {'the job is unknown' if status is None else status.message}"
            if is_given_up(job, silent_s):
                return AttemptState(Presence.GONE, reason)
        return AttemptState(Presence.UNREACHABLE, reason)

    def stop(self, job: Job, grace_s: float, reason: str) -> None:
        """Write the request to stop, which the agent reads; an attempt that waits is taken back from its worker."""
        super().stop(job, grace_s, reason)
        placed = self._placement(job)
        if placed is None or (job.place / "agent.json").exists():
            return
        with as_failure("the attempt cannot be taken back"):
            if take_back(placed.folder):
                replace_json(job.place / LOST, {"reason": reason})
                self._end_worker(job, placed.folder)

    def clean(self, job: Job) -> None:
        """Have Ray end the worker of an attempt that is lost, and remove the attempt's working directory."""
        if not job.place.is_dir():
            return
        with as_failure("what is left of the run cannot be removed"):
            placed = self._placement(job)
            if placed is not None and not (job.place / "exit.json").exists():
                take_back(placed.folder)
                self._end_worker(job, placed.folder)
        super().clean(job)

    def _end_worker(self, job: Job, folder: Path) -> None:
        """Have Ray end a worker, unless it has another attempt by now."""
        current = read_json(folder / "current")
        if isinstance(current, dict) and current.get("attempt") != str(job.place):
            return
        with contextlib.suppress(EngineFailure):
            self._cluster.stop(folder.name)
        if not (folder / "current").exists():
            remove_tree(folder, ignore_errors=True)


def _work(folder: Path, idle_s: int) -> list[str]:
    return ["work", str(folder), "--idle", str(idle_s), "--daemon", _DAEMON]


def _key(job: Job) -> str:
    return f"{job.record.id}.{job.attempt}"
