"""The engine of Kubernetes clusters, whose pods mount the workspace at the path that it has here.

The scheduler of the cluster chooses nodes and queues; an attempt is a Job (`jobs`), whose pods are workers
(`stoker_run.worker`) of this attempt alone.

WORKSPACE/kubernetes/agents/DIGEST.zip     the agent
WORKSPACE/kubernetes/TARGET/JOB/           the folder of the worker, and JOB/N/ that of each node of several
attempts/N/lost.json                       the worker's word that the attempt has ended without a report
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from stoker.settings.workspace import Workspace
from stoker.system.durable import private_folder
from stoker_base.trees import remove_tree
from stoker_cluster.access import Cluster, Reference
from stoker_cluster.errors import ClusterError, ClusterRefusal
from stoker_run.worker import CURRENT
from stoker_runs.records.record import Definition
from stoker_runs.targets.definitions import Target
from stoker_runs.targets.engine import AttemptState, EngineFailure, Job, Presence, Unreachable
from stoker_runs.targets.kubernetes.jobs import JOB_LABEL, JobState, job_object, state_of
from stoker_runs.targets.local import as_failure
from stoker_runs.targets.shared_workspace import (
    SharedWorkspaceEngine,
    assign_attempt,
    beginning_state,
    has_agent,
    is_given_up,
    take_back,
)

_CHECK_S: Final = 300.0
"""How long the pod of a check may take, whose image has to be pulled."""
_NAME: Final = re.compile(r"[^a-z0-9]+")
_EXISTS: Final = 409
_FAULT: Final = 500
_LOG_LINES: Final = 20


class KubernetesEngine(SharedWorkspaceEngine):
    """Runs attempts in pods of a Kubernetes cluster."""

    def __init__(self, target: Target, workspace: Workspace) -> None:
        super().__init__(target, workspace)
        self._connected: Cluster | None = None

    @property
    def _cluster(self) -> Cluster:
        if self._connected is None:
            with self._answers():
                self._connected = Cluster.connect(self._target.settings.get("context"))
        return self._connected

    @property
    def _namespace(self) -> str:
        return str(self._target.settings.get("namespace") or self._cluster.namespace)

    @contextlib.contextmanager
    def _answers(self) -> Iterator[None]:
        """Turn errors of the cluster into failures of the target."""
        try:
            yield
        except ClusterRefusal as error:
            kind = Unreachable if error.http_status >= _FAULT else EngineFailure
            raise kind(str(error), details={"status": error.http_status}) from error
        except ClusterError as error:
            raise Unreachable(str(error)) from error

    def check(self) -> Sequence[str]:
        """Have a pod started that finds nothing to do, and read what it writes into the workspace."""
        namespace = self._namespace
        with self._answers():
            for verb in ("create", "get", "delete"):
                if not self._cluster.may(verb, "jobs", namespace, group="batch"):
                    raise EngineFailure(
                        f"you may not {verb} jobs in the namespace {namespace} of {self._cluster.context}",
                        "ask its administrator for the role edit there",
                    )
        name = f"stoker-check-{secrets.token_hex(4)}"
        folder = private_folder(self._home / self._target.name / name)
        try:
            self._create(name, ["work", str(folder), "--idle", "3"], Definition(""))
            facts = self._wait_for_facts(name, folder)
        finally:
            with contextlib.suppress(EngineFailure):
                self._delete(name)
            remove_tree(folder, ignore_errors=True)
        return (
            f"Python {facts['python']} in {self._target.settings['image']}",
            f"pods in the namespace {namespace} of {self._cluster.context}",
            f"workspace: {self._workspace.root}, which the pods see by the claim {self._target.settings['claim']}",
        )

    def _wait_for_facts(self, name: str, folder: Path) -> dict[str, Any]:
        state: JobState | None = None

        def find_failure() -> EngineFailure | None:
            nonlocal state
            state = self._state(name)
            return self._unseen(name, state) if state is None or state.is_over else None

        facts = self.wait_for_facts(folder, _CHECK_S, find_failure)
        if facts is not None:
            return facts
        raise EngineFailure(
            f"a pod has not begun after {_CHECK_S:g} s: {state.reason if state else 'it is gone'}",
            f"kubectl -n {self._namespace} describe job {name}",
        )

    def _unseen(self, name: str, state: JobState | None) -> EngineFailure:
        """Return why a pod has ended before it could write into the workspace."""
        last = "" if state is None else state.reason
        with contextlib.suppress(EngineFailure), self._answers():
            for pod in self._pods(name):
                lines = list(self._cluster.log(self._namespace, pod["metadata"]["name"], lines=_LOG_LINES))
                last = next((line for line in reversed(lines) if line.strip()), last)
        settings = self._target.settings
        return EngineFailure(
            f"a pod of {settings['image']} could not begin with {self._workspace.root}: {last or 'it is gone'}",
            f"the claim {settings['claim']} has to hold {self._target.mounted_folder(self._workspace.root)} of this "
            f"machine, writable for the workspace's owner, and the image a Python: python: {self._python}",
        )

    def start(self, job: Job) -> None:
        """Create the Job of the attempt, unless there is one."""
        with as_failure("the attempt cannot be handed to a pod"):
            if has_agent(job):
                return
            name, folder = _name(job), self.worker_folder(job)
            try:
                state = self._state(name)
                if state is None and not (folder / CURRENT).exists():
                    self._assign(job, folder)
                    self._create(name, self._words(job, folder), job.record.definition)
            except Unreachable:
                # `observe` finds that it is absent still.
                return
            if state is not None and state.is_over and self.take_back(job):
                raise self._unseen(name, state)

    @staticmethod
    def _assign(job: Job, folder: Path) -> None:
        nodes = job.record.definition.nodes
        private_folder(folder)
        for node in range(nodes if nodes > 1 else 0):
            private_folder(folder / str(node))
        assign_attempt(job, folder / "next")

    @staticmethod
    def _words(job: Job, folder: Path) -> list[str]:
        if job.record.definition.nodes == 1:
            return ["work", str(folder), "--idle", "0"]
        options = ["--node", "$(JOB_COMPLETION_INDEX)", "--host", "$(HOST)"]
        return ["member", str(folder), str(job.place), *options]

    def _create(self, name: str, words: Sequence[str], definition: Definition) -> None:
        command = [self._python, str(self.agent_archive()), *words]
        content = job_object(name, self._namespace, self._target, command, self._workspace.root, definition)
        try:
            with self._answers():
                self._cluster.create(content)
        except EngineFailure as error:
            if error.failure.details.get("status") != _EXISTS:
                raise
        self.forget_answer()

    def observe_waiting(self, job: Job) -> AttemptState:
        """Ask the cluster about the pods of the attempt."""
        folder = self.worker_folder(job)
        try:
            state = self.ask_seldom(_name(job), self._state)
        except Unreachable as error:
            return AttemptState(Presence.PENDING, error.failure.message)
        if not (folder / "next").exists():
            reason = f"the pod has ended while the script began{_because(state)}"
            return beginning_state(job, folder, is_over=state is None or state.is_over, reason=reason)
        if state is None or state.is_over:
            return AttemptState(Presence.ABSENT)
        return AttemptState(Presence.PENDING, f"waits for a pod: {state.reason}" if state.reason else "")

    def observe_silent(self, job: Job, silent_s: float, reason: str) -> AttemptState:
        """Ask the cluster whether pods of the attempt are still there."""
        try:
            state = self.ask_seldom(_name(job), self._state)
        except EngineFailure as error:
            return AttemptState(Presence.UNREACHABLE, f"{reason}; {error.failure.message}")
        if state is not None and state.is_over:
            # Its pods have ended, and are not started again: nothing of the attempt is left.
            return AttemptState(Presence.GONE, f"{reason}{_because(state)}")
        if state is None and is_given_up(job, silent_s):
            return AttemptState(Presence.GONE, f"{reason}; its Job is gone")
        return AttemptState(Presence.UNREACHABLE, reason)

    def clean(self, job: Job) -> None:
        """Delete the Job of the attempt, and its working directory."""
        if not job.place.is_dir():
            return
        self._delete(_name(job))
        remove_tree(self.worker_folder(job), ignore_errors=True)
        super().clean(job)

    def take_back(self, job: Job) -> bool:
        """Take an attempt back that waits for a pod."""
        folder = self.worker_folder(job)
        return take_back(job, folder / "next", lambda: folder if (folder / CURRENT).exists() else None)

    def forget_worker(self, job: Job) -> None:
        """Delete the Job of an attempt that was taken back."""
        self._delete(_name(job))

    def worker_folder(self, job: Job) -> Path:
        """The folder of the worker of an attempt."""
        return self._home / self._target.name / _name(job)

    def _delete(self, name: str) -> None:
        with self._answers():
            self._cluster.delete(Reference("batch/v1", "Job", self._namespace, name))

    def _pods(self, name: str) -> list[dict[str, Any]]:
        return self._cluster.list("v1", "Pod", self._namespace, labels=f"{JOB_LABEL}={name}")

    def _state(self, name: str) -> JobState | None:
        """Return what the cluster says of a Job; None if there is none."""
        with self._answers():
            job = self._cluster.find(Reference("batch/v1", "Job", self._namespace, name))
            return None if job is None else state_of(job, self._pods(name))


def _because(state: JobState | None) -> str:
    return f"; Kubernetes: {state.reason}" if state is not None and state.reason else ""


def _name(job: Job) -> str:
    """Return the name of the attempt's Job, which is no longer than pods' names allow."""
    return f"stoker-{_NAME.sub('-', job.record.id.lower())[-40:].strip('-')}-{job.attempt}"
