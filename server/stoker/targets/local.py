"""The engine of this machine: the attempt's folder is where the agent works, so nothing has to travel."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from stoker.environments.asked import AskedEnvironment, RunEnvironment, user_managed
from stoker.errors import EnvironmentUnusable, SubmissionRefused
from stoker.runs.failures import FailureCode, RunFailure
from stoker.runs.snapshots import SnapshotStore
from stoker.system.durable import private_folder
from stoker.targets.definitions import Target
from stoker.targets.engine import EngineFailure, Job, Presence, Say, Sight
from stoker.targets.start_file import start_content, write_start
from stoker.workspace import Workspace
from stoker_run import observing

__all__ = ["LocalEngine"]

_STARTED_BEFORE: Final = 3
_RUN_FOLDERS: Final = ("outputs", "logs")


class LocalEngine:
    """Runs attempts on this machine.

    Args:
        target: The compute target.
        workspace: Whose runs they are; its environments are used.
    """

    def __init__(self, target: Target, workspace: Workspace) -> None:
        self._target = target
        self._workspace = workspace

    def check(self) -> Sequence[str]:
        """Say what this machine has for runs."""
        capacity = self._target.capacity
        facts = observing.check()
        gpus = ", ".join(capacity.gpus) if capacity is not None and capacity.gpus else "none"
        cores = facts["cores"] if capacity is None else capacity.cores
        return (
            f"Python {facts['python']} on {facts['host']}",
            f"cores: {cores}",
            f"memory: {facts['memory_bytes'] / 1e9:.1f} GB",
            f"GPUs: {gpus}",
        )

    def prepare(self, job: Job, say: Say) -> None:
        """Make the environment, and a working directory with the files of the snapshot."""
        with _as_failure("the run cannot be prepared"):
            private_folder(job.place)
            if (job.place / "start.json").exists():
                return
            try:
                built = self._environment(job, say)
            except EnvironmentUnusable as error:
                raise EngineFailure(_unusable(error)) from error
            work = self._working_directory(job)
            resume_from = work / "outputs" if job.attempt > 1 else job.resume_from
            content = start_content(
                job,
                [str(built.interpreter)],
                work,
                resume_from=resume_from,
                variables={**built.variables, **_variables_of(built.interpreter)},
            )
            write_start(job, content)

    def _environment(self, job: Job, say: Say) -> RunEnvironment:
        asked = AskedEnvironment.from_json(job.record.definition.environment)
        if asked.kind == "user":
            return user_managed(asked, job.folder.environment)
        # Not above: the libraries that read environment files take longer to import than all the rest.
        from stoker.environments.run_environment import prepared_for_run

        return prepared_for_run(asked, job.folder.environment, self._workspace.environments_dir, say)

    def _working_directory(self, job: Job) -> Path:
        """A copy of the snapshot, with what earlier attempts have left in `outputs/` and `logs/`."""
        work, staged = job.place / "work", job.place / "work.new"
        if not work.is_dir():
            shutil.rmtree(staged, ignore_errors=True)
            try:
                SnapshotStore(job.snapshots_dir).restore(job.record.snapshot, staged)
            except SubmissionRefused as error:
                raise EngineFailure(RunFailure(FailureCode.INTERNAL, str(error))) from error
            staged.rename(work)
        for name in _RUN_FOLDERS:
            kept = job.folder.path / name
            if not (work / name).exists() and kept.is_dir() and not kept.is_symlink():
                kept.rename(work / name)
        return work

    def start(self, job: Job) -> None:
        """Start the agent in a session of its own."""
        with _as_failure("the agent cannot be started"):
            # Installed here, it begins a little faster than from its zip.
            command = [sys.executable, "-I", "-m", "stoker_run", "start", str(job.place), "--detach"]
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
            )
        if done.returncode not in (0, _STARTED_BEFORE):
            said = (done.stderr.strip().splitlines() or [f"it ended with status {done.returncode}"])[-1]
            raise EngineFailure(
                RunFailure(FailureCode.TARGET_UNUSABLE, f"the agent cannot be started: {said}")
            )

    def observe(self, job: Job) -> Sight:
        """Read what the agent has written, and whether it holds its lock."""
        seen = observing.observe(job.place)
        if seen["exit"] is not None:
            return Sight(Presence.ENDED, started_ms=_whole(seen["exit"].get("started_ms")), exit=seen["exit"])
        if seen["alive"]:
            beat, agent = seen["heartbeat"] or {}, seen["agent"] or {}
            # The log of the first process is made when it is.
            has_begun = "log_0.txt" in seen["sizes"]
            began_ms = _whole(agent.get("started_ms")) if has_begun else None
            return Sight(Presence.ALIVE, str(beat.get("problem") or ""), began_ms)
        return Sight(Presence.ABSENT if seen["agent"] is None else Presence.GONE)

    def pull(self, job: Job, *, final: bool) -> None:
        """Move what the script has written to the run's folder, once nothing of it runs any more."""
        if not final:
            return
        with _as_failure("the run's files cannot be moved to its folder"):
            for name in _RUN_FOLDERS:
                _move(job.place / "work" / name, job.folder.path / name)

    def stop(self, job: Job, grace_s: float, reason: str) -> None:
        """Leave word for the agent."""
        with _as_failure("the agent cannot be told to end the script"):
            observing.stop(job.place, grace_s, reason)

    def clean(self, job: Job) -> None:
        """Kill what is left of an attempt that has ended, and remove its working directory."""
        if not job.place.is_dir():
            return
        with _as_failure("what is left of the run cannot be removed"):
            observing.sweep(job.place)
            for name in ("work", "work.new", "agent"):
                shutil.rmtree(job.place / name, ignore_errors=True)


def _variables_of(interpreter: Path) -> dict[str, str]:
    """What is other than in this process in the variables of one that an interpreter runs."""
    if interpreter == Path(sys.executable):
        return {}
    from stoker.environments.interpreters import variables_for

    wanted = variables_for(interpreter, os.environ)
    return {name: value for name, value in wanted.items() if os.environ.get(name) != value}


def _move(written: Path, place: Path) -> None:
    """Put a folder in the place of one that is empty or not there; what lies in that already is kept beside it."""
    if written.is_symlink() or not written.is_dir():
        return
    if place.is_dir():
        for entry in place.iterdir():
            if not (written / entry.name).exists():
                entry.rename(written / entry.name)
        shutil.rmtree(place)
    written.rename(place)


@contextlib.contextmanager
def _as_failure(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        failure = RunFailure(FailureCode.TARGET_UNUSABLE, f"{what}: {error.strerror or error}{where}")
        raise EngineFailure(failure) from error


def _unusable(error: EnvironmentUnusable) -> RunFailure:
    return RunFailure(
        FailureCode.ENVIRONMENT_UNUSABLE,
        str(error),
        "change the environment file, name a date with --as-of at which its packages fitted together, or take "
        "today's versions with --environment relaxed",
    )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
