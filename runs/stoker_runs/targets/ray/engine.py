"""The engine of Ray clusters, whose nodes see the workspace at the path that it has here.

Ray chooses the node. A job of Ray takes seconds to start (decision 68), so it is a worker (`stoker_run.worker`),
which runs one attempt after the other for as long as there are any. Attempts that ask for the same wait in one queue,
and each has a worker started for it, but any worker takes the next one: an attempt whose node is lost waits for no
other job of Ray.

WORKSPACE/ray/agents/DIGEST.zip     the agent
WORKSPACE/ray/TARGET/POOL/*.next    the queue of attempts with the same needs, or of a single one on several nodes
WORKSPACE/ray/TARGET/POOL/WORKER/   the folder of a worker of this queue; WORKER is its job's name in Ray
attempts/N/lost.json                the worker's word that the attempt has ended without a report
"""

from __future__ import annotations

import contextlib
import secrets
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from stoker.settings.workspace import Workspace
from stoker.system.durable import private_folder
from stoker.system.wording import format_count
from stoker_base.trees import remove_tree
from stoker_run.gang import has_ended
from stoker_run.json_files import read_json
from stoker_run.worker import CURRENT
from stoker_runs.environments.requested import RequestedEnvironment, RunEnvironment
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
    places_of,
    take_back,
)

_DAEMON: Final = "raylet"
_PENDING: Final = "PENDING"
_IDLE_S: Final = 5
_TRIES: Final = 3
"""How many workers are started for an attempt that none of them begins with."""
_CHECK_S: Final = 60.0
_CHECK_IDLE_S: Final = 3
_HOLD: Final = (
    "import ray; from ray.autoscaler.sdk import request_resources; ray.init(); request_resources(bundles="
)


class _Pool(Struct, frozen=True):
    """A queue of attempts, and its workers."""

    folder: Path

    def attempts(self) -> dict[Path, str]:
        """Return the folders of the workers that Ray was asked for, with the folder of what each runs, or ""."""
        found: dict[Path, str] = {}
        with contextlib.suppress(FileNotFoundError):
            for worker in sorted(path for path in self.folder.iterdir() if path.is_dir()):
                with contextlib.suppress(FileNotFoundError):
                    # Listed, for a look at a single name may be answered from an old answer of the folder's server.
                    has_attempt = any(path.name == CURRENT for path in worker.iterdir())
                    current = read_json(worker / CURRENT) if has_attempt else None
                    found[worker] = str(current["attempt"]) if isinstance(current, dict) else ""
        return found

    def free_workers(self) -> list[Path]:
        """Return those that run nothing."""
        return [worker for worker, attempt in self.attempts().items() if not attempt]

    def worker_of(self, job: Job) -> Path | None:
        """Return the worker that has taken an attempt."""
        place = str(job.place)
        return next((worker for worker, attempt in self.attempts().items() if attempt == place), None)

    def waiting(self) -> list[Path]:
        """Return the files of the attempts in the queue."""
        return list(self.folder.glob("*.next"))

    def surplus(self) -> int:
        """Return how many more workers are free than attempts wait; below 0, workers are missing."""
        # In this order, a worker that takes an attempt meanwhile is not missed.
        return len(self.free_workers()) - len(self.waiting())


class RayEngine(SharedWorkspaceEngine):
    """Runs attempts on the nodes of a Ray cluster."""

    def __init__(self, target: Target, workspace: Workspace) -> None:
        super().__init__(target, workspace)
        token = read_secrets(target, workspace.targets_dir).get("token", "")
        self._cluster = RayCluster(target.name, str(target.settings.get("address", "")), token)
        self._lost_workers = 0

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
            self._cluster.submit(job, self._command(_work(folder, folder, _CHECK_IDLE_S)), 0, 0)

        def find_failure() -> EngineFailure | None:
            status = self._cluster.status(job)
            return self._unseen(job, status) if status is not None and status.is_over else None

        facts = self.wait_for_facts(folder, _CHECK_S, find_failure)
        if facts is not None:
            return facts
        raise EngineFailure(
            f"a job of the Ray cluster at {self._cluster.address} has not begun after {_CHECK_S:g} s",
            "does ray status there list a node that is idle?",
        )

    def _unseen(self, job: str, status: JobStatus) -> EngineFailure:
        """Return why a job has ended before it could write into the workspace."""
        last = status.message
        with contextlib.suppress(EngineFailure):
            last = self._cluster.log_tail(job) or last
        return EngineFailure(
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

    def environment(self, requested: RequestedEnvironment, job: Job, say: Say) -> RunEnvironment:
        """Return the interpreter of the nodes, or build an environment in the workspace."""
        if requested.kind == "user":
            return super().environment(requested, job, say)
        # Not above: the libraries that read environment files take longer to import than all the rest.
        from stoker_runs.run_environment import prepare_environment

        gpus = job.record.definition.gpus or 0
        home = self._workspace.environments_dir
        return with_variables(prepare_environment(requested, job.folder.environment, home, say, gpus))

    def start(self, job: Job) -> None:
        """Write the attempt into the queue, and have Ray start a worker if there are too few."""
        pool, entry = self._pool(job), self._entry(job)
        with as_failure("the attempt cannot be handed to a node"):
            if entry in pool.waiting():
                self._check_worker(job)
            elif pool.worker_of(job) is not None or has_agent(job):
                return
            else:
                private_folder(pool.folder)
                assign_attempt(job, entry)
            if pool.surplus() < 0:
                self._submit(job, pool.folder / f"{_prefix(job)}{secrets.token_hex(4)}")
        self.forget_answer()
        # For the next second, nothing else is to be expected.
        self.ask_seldom(str(job.place), lambda _: AttemptState(Presence.PENDING))

    def _check_worker(self, job: Job) -> None:
        """Forget a worker that has ended; one that Ray has not heard of is asked for again.

        Raises:
            EngineFailure: The nodes cannot run workers.
        """
        worker = self._worker_to_check(job)
        try:
            status = None if worker is None else self._cluster.status(worker.name)
        except Unreachable:
            return
        if worker is None or (status is not None and not status.is_over):
            return
        # It removes its folder when it ends.
        has_begun = not worker.exists() or (worker / "worker.json").exists()
        if status is None and not has_begun:
            self._submit(job, worker)
            return
        if status is not None and not has_begun and worker.name.startswith(_prefix(job)):
            self._lost_workers += 1
            if (status.exit_status or self._lost_workers >= _TRIES) and self.take_back(job):
                failure = self._unseen(worker.name, status)
                _forget_worker(worker)
                raise failure
        _forget_worker(worker)

    def _worker_to_check(self, job: Job) -> Path | None:
        """Return the worker that was started for a waiting attempt, or else another one each second."""
        free = self._pool(job).free_workers()
        own = [worker for worker in free if worker.name.startswith(_prefix(job))]
        return (own or free)[int(self.elapsed_s()) % len(own or free)] if free else None

    def _submit(self, job: Job, folder: Path) -> None:
        """Have Ray start a worker; what cannot be asked of it now is asked again later."""
        private_folder(folder)
        definition = job.record.definition
        cores, gpus = definition.cores, definition.gpus or 0
        with contextlib.suppress(Unreachable):
            if definition.nodes > 1:
                options = ["gang", str(folder), str(job.place), "--cores", str(cores), "--gpus", str(gpus)]
                self._cluster.submit(folder.name, self._command(options), 0, 0)
            else:
                idle_s = int(self._target.settings.get("idle_s", _IDLE_S))
                self._cluster.submit(
                    folder.name, self._command(_work(folder, folder.parent, idle_s)), cores, gpus
                )

    def _command(self, words: Sequence[str]) -> str:
        """Return the command line of the agent with some arguments; the shell that Ray starts is replaced by it."""
        return f"exec {shlex.join([self._python, str(self.agent_archive()), *words])}"

    def _pool(self, job: Job) -> _Pool:
        """Return the workers that have what a run asks for."""
        definition = job.record.definition
        name = f"{definition.cores}c{definition.gpus or 0}g"
        if definition.nodes > 1:
            name = f"{job.record.id}.{job.attempt}"
        return _Pool(self._home / self._target.name / name)

    def _entry(self, job: Job) -> Path:
        """Return the file of an attempt in the queue, which is in the order of the runs."""
        record = job.record
        return self._pool(job).folder / f"{record.created_ms:015d}.{record.id}.{job.attempt}.next"

    def take_back(self, job: Job) -> bool:
        """Take an attempt out of the queue."""
        return take_back(job, self._entry(job), lambda: self._pool(job).worker_of(job))

    def observe_waiting(self, job: Job) -> AttemptState:
        """Ask Ray about a worker for the attempt."""
        if self._entry(job) in self._pool(job).waiting():
            return self.ask_seldom(str(job.place), lambda _: self._state_in_queue(job))
        worker = self._pool(job).worker_of(job)
        try:
            status = None if worker is None else self.ask_seldom(worker.name, self._cluster.status)
        except Unreachable as error:
            return AttemptState(Presence.PENDING, error.failure.message)
        reason = "the node has ended while the script began"
        return beginning_state(job, worker, is_over=status is None or status.is_over, reason=reason)

    def _state_in_queue(self, job: Job) -> AttemptState:
        worker = self._worker_to_check(job)
        if worker is None or self._pool(job).surplus() < 0:
            return AttemptState(Presence.ABSENT)
        try:
            status = self._cluster.status(worker.name)
        except Unreachable as error:
            return AttemptState(Presence.PENDING, error.failure.message)
        if status is None or status.is_over:
            return AttemptState(Presence.ABSENT)
        return AttemptState(Presence.PENDING, self._wait_reason(job) if status.status == _PENDING else "")

    def _wait_reason(self, job: Job) -> str:
        definition = job.record.definition
        resources = format_count(definition.cores, "core")
        if definition.gpus:
            resources += f" and {format_count(definition.gpus, 'GPU')}"
        with contextlib.suppress(EngineFailure):
            nodes = self._cluster.count_nodes()
            return f"waits for a node with {resources} of its own: {nodes}"
        return f"waits for a node with {resources} of its own"

    def observe_silent(self, job: Job, silent_s: float, reason: str) -> AttemptState:
        """Ask Ray whether the worker of the attempt is still there."""
        worker = self._pool(job).worker_of(job)
        try:
            status = None if worker is None else self.ask_seldom(worker.name, self._cluster.status)
        except EngineFailure as error:
            return AttemptState(Presence.UNREACHABLE, f"{reason}; {error.failure.message}")
        if status is None or status.is_over:
            reason += f"; Ray: {'the job is unknown' if status is None else status.message}"
            if is_given_up(job, silent_s):
                return AttemptState(Presence.GONE, reason)
        return AttemptState(Presence.UNREACHABLE, reason)

    def clean(self, job: Job) -> None:
        """Have Ray end the worker of an attempt that is lost, and remove the attempt's working directory."""
        if not job.place.is_dir():
            return
        pool = self._pool(job)
        with as_failure("what is left of the run cannot be removed"):
            # A worker that has reported the end has another attempt by now.
            is_over = all(map(has_ended, places_of(job))) or self.take_back(job)
            worker = None if is_over else pool.worker_of(job)
            if worker is not None:
                with contextlib.suppress(EngineFailure):
                    self._cluster.stop(worker.name)
                remove_tree(worker, ignore_errors=True)
            if not pool.waiting() and set(pool.attempts().values()) <= {"", str(job.place)}:
                # Not before: the next child of a sweep takes what is left of the ones before it.
                self.forget_worker(job)
        super().clean(job)

    def forget_worker(self, job: Job) -> None:
        """Have Ray forget workers that have not begun, and for which no attempt waits."""
        pool, is_gang = self._pool(job), job.record.definition.nodes > 1
        waiting = [one for one in pool.free_workers() if is_gang or not (one / "worker.json").exists()]
        for worker in waiting[: max(0, pool.surplus())]:
            with contextlib.suppress(EngineFailure):
                status = self._cluster.status(worker.name)
                if is_gang or (status is not None and status.status == _PENDING):
                    self._cluster.stop(worker.name)
                    _forget_worker(worker)
        if is_gang:
            remove_tree(pool.folder, ignore_errors=True)


def _work(folder: Path, queue: Path, idle_s: int) -> list[str]:
    return ["work", str(folder), "--queue", str(queue), "--idle", str(idle_s), "--daemon", _DAEMON]


def _prefix(job: Job) -> str:
    """Return how the names of the workers begin that were started for an attempt."""
    return f"stoker-{job.record.id}-{job.attempt}-"


def _forget_worker(worker: Path) -> None:
    """Remove the folder of a worker that has ended, unless it has taken an attempt, which others must find."""
    with contextlib.suppress(OSError):
        for path in worker.iterdir():
            if path.name != CURRENT:
                path.unlink()
        worker.rmdir()
