"""The engine of machines that are reached by SSH.

What travels is kept there by content and sent once; the agent runs detached there, whatever becomes of the
connection; logs and lines are read on by offset. Nothing of the machine's is asked for but a shell and Python.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

from msgspec.structs import replace

from stoker.errors import EnvironmentUnusable
from stoker.settings.names import name_from_file
from stoker.settings.workspace import Workspace
from stoker.system.durable import private_folder
from stoker_runs.environments.requested import RequestedEnvironment, RunEnvironment
from stoker_runs.records.snapshots import SnapshotStore
from stoker_runs.records.states import FailureCode
from stoker_runs.targets.definitions import SPARK, SPARK_MODES, YARN, SshSettings, Target
from stoker_runs.targets.engine import (
    AttemptState,
    EngineFailure,
    Job,
    Presence,
    Say,
    Unreachable,
    attempt_state,
    start_content,
    write_start,
)
from stoker_runs.targets.local import RUN_FOLDERS, STARTED_BEFORE
from stoker_runs.targets.porter import Porter
from stoker_runs.targets.ssh.containers import RemoteContainers, RunContainer, has_container, keep_container
from stoker_runs.targets.ssh.link import Link
from stoker_runs.targets.ssh.transfer import (
    collect,
    is_collected,
    local_errors,
    poll_attempt,
    send_data,
    send_folder,
)

_RENEWALS: Final = 10
"""How often a lease is renewed in the time that it lasts."""
_AGAIN_S: Final = 2.0
_SPARK_SUBMIT: Final = "spark-submit"
_SPARK_VERSION: Final = re.compile(r"version ([0-9]+\.[0-9.]+)")


class SshEngine:
    """Runs attempts on a machine that SSH reaches."""

    def __init__(self, target: Target, workspace: Workspace) -> None:
        self._target = target
        self._environments_dir = workspace.environments_dir
        self._project = name_from_file(workspace.root.absolute().parent.name)
        self._settings = SshSettings.of(target, workspace.targets_dir)
        self._link = Link(self._settings)
        self.containers = (
            RemoteContainers(target, self._link, self._settings.host, workspace.environments_dir)
            if target.has_containers
            else None
        )
        self._has_been_reached = False
        self._renewed_s = -float("inf")
        self._ended_attempt = 0

    def check(self) -> Sequence[str]:
        """Log in, and return the resources of the machine."""
        facts, _ = self._link.ask(op="check", timeout_s=60.0)
        found, _ = self._link.ask(op="interpreters", timeout_s=60.0)
        versions = ", ".join(f"{major}.{minor}" for _, major, minor, _ in found["pythons"])
        return (
            f"Python {facts['python']} on {facts['host']} ({self._settings.host})",
            f"cores: {facts['cores']}",
            f"memory: {facts['memory_bytes'] / 1e9:.1f} GB",
            f"GPUs: {', '.join(facts['gpus']) or 'none'}",
            f"folder: {facts['folder']}, {facts['free_bytes'] / 1e9:.1f} GB free",
            f"environments of: Python {versions}; made by {'uv' if found['uv'] else 'venv and pip'}",
            *(() if self.containers is None else self.containers.check()),
            *((self._check_spark(),) if self._target.type == SPARK else ()),
        )

    def _check_spark(self) -> str:
        """Return the version of Spark and its master."""
        program = self._target.settings.get("spark_submit", _SPARK_SUBMIT)
        command = [program, "--version"]
        reply, output = self._link.ask(op="ask_command", command=command, timeout_s=60.0)
        found = _SPARK_VERSION.search(output.decode("utf-8", "replace") + str(reply["complaints"]))
        if reply["status"] != 0 or found is None:
            message = f"{program} cannot be run on {self._settings.host}: {str(reply['complaints']).strip()}"
            hint = "name the program with --spark-submit; is this machine the head node of a Spark cluster?"
            raise EngineFailure(message, hint)
        return f"Spark {found[1]}, master {self._target.settings.get('master', YARN)}"

    def discover_settings(self) -> Mapping[str, Any]:
        """Return cores and GPUs if the target's file does not limit them, and the host key for a fingerprint."""
        known = self._settings.host_key
        found = {"host_key": self._link.host_key()} if known.startswith("SHA256:") else {}
        if self._target.type == SPARK:
            return found
        facts, _ = self._link.ask(op="check", timeout_s=60.0)
        there = {"cores": int(facts["cores"]), "gpus": [str(number) for number in range(len(facts["gpus"]))]}
        return {**found, **{key: there[key] for key in there if key not in self._target.settings}}

    def prepare(self, job: Job, say: Say) -> None:
        """Provide environment and files on the machine, after earlier attempts were ended and collected."""
        with local_errors():
            private_folder(job.place)
        if (job.place / "start.json").exists():
            return

        try:
            self._patiently(job, lambda: self._prepared(job, say))
        except EnvironmentUnusable as error:
            hint = (
                "name another interpreter of that machine with --python, or none for the one that Stoker finds there"
                if job.record.definition.environment.get("kind") == "user"
                else "change the environment file, or name a date with --as-of at which its packages fitted together"
            )
            raise EngineFailure(str(error), hint, code=FailureCode.ENVIRONMENT_UNUSABLE) from error

    def _prepared(self, job: Job, say: Say) -> None:
        container = None if self.containers is None else self.prepare_container(self.containers, job, say)

        async def prepared(porter: Porter) -> None:
            await self._reached(porter)
            for earlier in range(1, job.attempt):
                await self._conclude(porter, replace(job, attempt=earlier))
            environment = (
                await self._environment(porter, job, say) if container is None else container.environment
            )
            await self._files(porter, job, say)
            self._stop_if_over(job)
            sent = {name: await send_data(porter, job, name, say) for name in job.record.definition.inputs}
            self._stop_if_over(job)
            shared = await self._shared_folder(porter, job)
            place = PurePosixPath(porter.folder, "runs", job.record.id, str(job.attempt))
            content = start_content(
                job,
                self._command(job, str(environment.interpreter)),
                place / "work",
                inputs={name: place / there for name, there in sent.items()},
                resume_from=_resumed_from(job, place),
                variables=environment.variables,
                lease_s=_lease_s(job),
                shared_directory=shared,
            )
            data = json.dumps(content).encode("ascii")
            await porter.ask(data, op="write", name="start.json", run=job.record.id, attempt=job.attempt)
            with local_errors():
                if container is not None:
                    keep_container(job, container, place, shared)
                write_start(job, content)

        self._link.call(prepared, timeout_s=None)

    def _command(self, job: Job, python: str) -> Sequence[str]:
        """Return the words before the script: Python, or what has spark-submit run it."""
        definition, settings = job.record.definition, self._target.settings
        if self._target.type != SPARK or definition.framework == "python":
            return [python]
        program, master = settings.get("spark_submit", _SPARK_SUBMIT), settings.get("master", YARN)
        packages = "" if definition.environment.get("kind") == "user" else "packages"
        mode = settings.get("deploy_mode", SPARK_MODES[0])
        return [python, "-m", "stoker_run.spark_submit", program, master, mode, packages]

    def prepare_container(self, containers: RemoteContainers, job: Job, say: Say) -> RunContainer | None:
        """Return how to start the container; None if that is impossible and the run works without one."""
        self._link.call(self._reached)
        try:
            return containers.prepared(job, say)
        except EngineFailure as error:
            failure, optional = error.failure, job.record.definition.container.get("optional")
            missing = (FailureCode.DOCKER_UNAVAILABLE, FailureCode.IMAGE_NOT_FOUND)
            if failure.code not in missing or not optional:
                raise
            say(
                f"a container is asked for, but the script runs without one: {failure.message}; {failure.hint}"
            )
            return None

    async def _reached(self, porter: Porter) -> None:
        await porter.ask(op="ping")
        self._has_been_reached = True

    async def _shared_folder(self, porter: Porter, job: Job) -> PurePosixPath | None:
        """Return the folder on the machine that runs of an experiment share, created if missing, or None."""
        base = self._target.settings.get("shared_directory")
        if base is None:
            return None
        folder = PurePosixPath(base, "local", self._project, job.record.experiment)
        return PurePosixPath((await porter.ask(op="home", name=str(folder)))[0]["path"])

    def _patiently(self, job: Job, work: Callable[[], None]) -> None:
        """Repeat long work after a lost connection. Do not wait for a machine that was never reached."""
        lost_after_s = job.record.definition.lost_after_s
        until_s = time.monotonic() + (lost_after_s if job.attempt > 1 else 0.0)
        while True:
            self._has_been_reached = False
            try:
                work()
            except Unreachable:
                if self._has_been_reached:
                    until_s = time.monotonic() + lost_after_s
                if time.monotonic() >= until_s:
                    raise
                time.sleep(_AGAIN_S)
                self._stop_if_over(job)
            else:
                return

    def _stop_if_over(self, job: Job) -> None:
        if job.attempt <= self._ended_attempt:
            raise EngineFailure("the run was told to end", code=FailureCode.INTERRUPTED)

    async def _environment(self, porter: Porter, job: Job, say: Say) -> RunEnvironment:
        from stoker_runs.targets.porter_environment import prepare_by_porter

        requested = RequestedEnvironment.from_json(job.record.definition.environment)
        gpus = job.record.definition.gpus or 0
        return await prepare_by_porter(
            porter, requested, job.folder.environment, self._environments_dir, say, gpus=gpus
        )

    async def _files(self, porter: Porter, job: Job, say: Say) -> None:
        tree = SnapshotStore(job.snapshots_dir).path(job.record.snapshot)
        self._stop_if_over(job)
        if not tree.is_dir():
            message = f"the snapshot {job.record.snapshot} is not in {job.snapshots_dir}"
            raise EngineFailure(message, "submit the script again", code=FailureCode.INTERNAL)
        await send_folder(porter, job, tree, "work", say, digest=job.record.snapshot)
        for name in RUN_FOLDERS:
            kept = job.folder.path / name
            if kept.is_dir() and not kept.is_symlink() and any(kept.iterdir()):
                await send_folder(porter, job, kept, f"work/{name}", say)
        if job.attempt == 1 and job.resume_from is not None:
            await send_folder(porter, job, job.resume_from, "resume", say)

    async def _conclude(self, porter: Porter, job: Job) -> None:
        """End the processes of an abandoned attempt, and collect its files."""
        if not job.place.is_dir() or is_collected(job):
            return
        await porter.ask(op="sweep", run=job.record.id, attempt=job.attempt)
        await collect(porter, job)
        await porter.ask(op="clean", run=job.record.id, attempt=job.attempt)

    def start(self, job: Job) -> None:
        """Start the agent on the machine. If the machine does not answer, `observe` finds out later."""
        if (job.place / "exit.json").exists():
            return

        if self.containers is not None and has_container(job):
            with contextlib.suppress(Unreachable):
                self.containers.start(job)
            return

        try:
            reply, _ = self._link.ask(op="start", run=job.record.id, attempt=job.attempt, timeout_s=60.0)
        except Unreachable:
            return
        if reply["status"] not in (0, STARTED_BEFORE):
            last = str(reply["said"]).strip().rpartition("\n")[2] or f"it ended with status {reply['status']}"
            raise EngineFailure(f"the agent cannot be started on {self._settings.host}: {last}")

    def observe(self, job: Job) -> AttemptState:
        """Return the state of the attempt, and append new log lines."""
        ended = job.place / "exit.json"
        if ended.exists():
            return attempt_state({"exit": json.loads(ended.read_bytes())})
        if not (job.place / "start.json").exists():
            return AttemptState(Presence.ABSENT)
        lease_s, now_s = _lease_s(job), time.monotonic()
        renewal = None
        if lease_s is not None and now_s - self._renewed_s > lease_s / _RENEWALS:
            renewal = time.time_ns() // 1_000_000

        async def seen(porter: Porter) -> AttemptState:
            return attempt_state((await poll_attempt(porter, job, renewal))[0])

        try:
            if self.containers is None:
                sight = self._link.call(seen)
            else:
                sight = self.containers.sight(job, lambda: self._link.call(seen))
        except EngineFailure as error:
            return AttemptState(Presence.UNREACHABLE, error.failure.message)
        if renewal is not None:
            self._renewed_s = now_s
        return sight

    def pull(self, job: Job, *, final: bool) -> None:
        """Copy all files when the processes have ended; until then `observe` copies new log lines."""
        if not final:
            return
        self._ended_attempt = max(self._ended_attempt, job.attempt)
        if (job.place / "start.json").exists() and not is_collected(job):
            self._link.call(lambda porter: collect(porter, job), timeout_s=None)

    def stop(self, job: Job, grace_s: float, reason: str) -> None:
        """Write the request to stop for the agent on the machine."""
        self._link.ask(op="stop", run=job.record.id, attempt=job.attempt, grace_s=grace_s, reason=reason)

    def clean(self, job: Job) -> None:
        """Kill the remaining processes of an attempt on the machine, and remove its folder."""
        self._ended_attempt = max(self._ended_attempt, job.attempt)
        if self.containers is not None:
            self.containers.remove(job)
        if (job.place / "start.json").exists() or self._has_been_reached:
            self._link.ask(op="clean", run=job.record.id, attempt=job.attempt, timeout_s=120.0)


def _lease_s(job: Job) -> float | None:
    """How long the script may run without contact: forever if no other attempt may follow."""
    definition = job.record.definition
    return definition.lost_after_s if definition.attempts > 1 or job.attempt > 1 else None


def _resumed_from(job: Job, place: PurePosixPath) -> PurePosixPath | None:
    if job.attempt > 1:
        return place / "work" / "outputs"
    return place / "resume" if job.resume_from is not None else None
