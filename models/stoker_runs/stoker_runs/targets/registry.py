"""The engine for each type of compute target."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from stoker.environments.requested import AskedEnvironment, RunEnvironment, user_managed
from stoker.errors import EnvironmentUnusable, InvalidSettings
from stoker.system.durable import private_folder
from stoker.system.extras import how_to_install
from stoker.workspace import Workspace
from stoker_run import observing
from stoker_runs.records.failures import FailureCode, RunFailure
from stoker_runs.targets.definitions import AMLCOMPUTE, DOCKER, LOCAL, SSH, Target
from stoker_runs.targets.engine import Engine, EngineFailure, Job, Say, Sight
from stoker_runs.targets.on_this_machine import (
    as_failure,
    collect,
    environment_failure,
    remove_work,
    shared_folder,
    tell_to_end,
    working_directory,
)
from stoker_runs.targets.sights import sight_of
from stoker_runs.targets.start_file import start_content, write_start

__all__ = ["LocalEngine", "engine_of", "no_compiler_for_libraries"]


# The engine of this machine: the agent works in the attempt's folder, so nothing has to be copied.


_STARTED_BEFORE: Final = 3


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
        with as_failure("the run cannot be prepared"):
            private_folder(job.place)
            if (job.place / "start.json").exists():
                return
            asked = AskedEnvironment.from_json(job.record.definition.environment)
            try:
                built = self._environment(asked, job, say)
            except EnvironmentUnusable as error:
                raise EngineFailure(environment_failure(error, asked)) from error
            self._say_of_gpus(job, built, say)
            work = working_directory(job)
            resume_from = work / "outputs" if job.attempt > 1 else job.resume_from
            content = start_content(
                job,
                [str(built.interpreter)],
                work,
                resume_from=resume_from,
                shared_directory=shared_folder(self._target.settings, job, self._workspace),
                variables={**built.variables, **_variables_of(built.interpreter)},
            )
            write_start(job, content)

    def _say_of_gpus(self, job: Job, built: RunEnvironment, say: Say) -> None:
        gpus = job.record.definition.gpus
        if not gpus:
            return
        # Not above: few runs hold GPUs.
        from stoker.environments.check import frameworks_without_gpus

        def ask(command: Sequence[str]) -> str:
            return subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
            ).stdout

        for line in frameworks_without_gpus(gpus, built.packages, ask):
            say(line)

    def _environment(self, asked: AskedEnvironment, job: Job, say: Say) -> RunEnvironment:
        if asked.kind == "user":
            return user_managed(asked, job.folder.environment)
        # Not above: the libraries that read environment files take longer to import than all the rest.
        from stoker_runs.run_environment import prepared_for_run

        gpus = job.record.definition.gpus or 0
        return prepared_for_run(asked, job.folder.environment, self._workspace.environments_dir, say, gpus)

    def start(self, job: Job) -> None:
        """Start the agent in a session of its own."""
        with as_failure("the agent cannot be started"):
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
        return sight_of(observing.observe(job.place))

    def pull(self, job: Job, *, final: bool) -> None:
        """Move what the script has written to the run's folder, once nothing of it runs any more."""
        if final:
            collect(job)

    def stop(self, job: Job, grace_s: float, reason: str) -> None:
        """Leave a message for the agent."""
        tell_to_end(job, grace_s, reason)

    def clean(self, job: Job) -> None:
        """Kill what is left of an attempt that has ended, and remove its working directory."""
        if not job.place.is_dir():
            return
        with as_failure("what is left of the run cannot be removed"):
            observing.sweep(job.place)
            remove_work(job)


def _variables_of(interpreter: Path) -> dict[str, str]:
    """Variables that an interpreter's processes have with other values than this process."""
    if interpreter == Path(sys.executable):
        return {}
    from stoker.environments.interpreters import variables_for

    wanted = variables_for(interpreter, os.environ)
    return {name: value for name, value in wanted.items() if os.environ.get(name) != value}


@contextlib.contextmanager
def no_compiler_for_libraries() -> Iterator[None]:
    """Have `ctypes` look for libraries where the system's loader finds them, and nowhere else.

    asyncssh asks for one by two names when it is imported. Where it is missing, `ctypes` has a compiler and a linker
    make programs to find it: eight processes, for which each run would wait.
    """
    import ctypes.util

    ways = [name for name in ("_findLib_gcc", "_findLib_ld") if hasattr(ctypes.util, name)]
    before = {name: getattr(ctypes.util, name) for name in ways}
    for name in ways:
        setattr(ctypes.util, name, lambda _: None)
    try:
        yield
    finally:
        for name in ways:
            setattr(ctypes.util, name, before[name])


def _ssh(target: Target, workspace: Workspace) -> Engine:
    try:
        # Not above: runs on this machine need no SSH.
        with no_compiler_for_libraries():
            from stoker_runs.targets.ssh.engine import SshEngine
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "asyncssh":
            raise
        raise InvalidSettings(
            f"the compute target {target.name} needs asyncssh, which is not installed; {how_to_install('ssh')}"
        ) from error
    return SshEngine(target, workspace)


def _container(target: Target, workspace: Workspace) -> Engine:
    # Not above: runs on this machine need nothing of it.
    from stoker_runs.targets.container import ContainerEngine

    return ContainerEngine(target, workspace)


_ENGINES: Final[Mapping[str, Callable[[Target, Workspace], Engine]]] = {
    AMLCOMPUTE: LocalEngine,
    LOCAL: LocalEngine,
    DOCKER: _container,
    SSH: _ssh,
}


def engine_of(target: Target, workspace: Workspace) -> Engine:
    """Return a new engine of a compute target."""
    return _ENGINES[target.type](target, workspace)
