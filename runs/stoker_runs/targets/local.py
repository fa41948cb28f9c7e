"""The engine of this machine, and what it shares with containers: the agent works in the attempt's folder.

Nothing has to be copied.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from stoker.environments.trial import frameworks_without_gpus
from stoker.errors import EnvironmentUnusable
from stoker.models.mirrors import mirrors_dir
from stoker.settings.names import name_from_file
from stoker.settings.workspace import Workspace
from stoker.system.durable import private_folder
from stoker_base.trees import Tree, remove_tree
from stoker_run import observing
from stoker_runs.environments.requested import RequestedEnvironment, RunEnvironment, use_interpreter
from stoker_runs.errors import SubmissionRefused
from stoker_runs.records.snapshots import SnapshotStore, data_digests, data_seen
from stoker_runs.records.states import FailureCode
from stoker_runs.targets.definitions import Target
from stoker_runs.targets.engine import (
    AttemptState,
    EngineFailure,
    Job,
    Presence,
    Say,
    attempt_state,
    start_content,
    write_start,
)

RUN_FOLDERS: Final = ("outputs", "logs")


def working_directory(job: Job) -> Path:
    """Copy the snapshot, with the `outputs/` and `logs/` of earlier attempts; return the folder."""
    work, staged = job.place / "work", job.place / "work.new"
    if not work.is_dir():
        remove_tree(staged, ignore_errors=True)
        try:
            SnapshotStore(job.snapshots_dir).restore(job.record.snapshot, staged)
        except SubmissionRefused as error:
            raise EngineFailure(str(error), code=FailureCode.INTERNAL) from error
        staged.rename(work)
    for name in RUN_FOLDERS:
        kept = job.folder.path / name
        if not (work / name).exists() and kept.is_dir() and not kept.is_symlink():
            kept.rename(work / name)
    return work


def check_fetched_data(job: Job, workspace: Workspace) -> None:
    """Make sure that data from addresses is as it was at the submission: a fetch for others may have replaced it.

    Raises:
        EngineFailure: It has changed, or is gone.
    """
    cache, inputs = mirrors_dir(workspace), job.record.definition.inputs
    fetched = {name: path for name, path in inputs.items() if Path(path).is_relative_to(cache)}
    try:
        now = data_digests(fetched, data_seen(job.snapshots_dir))
    except SubmissionRefused as error:
        raise EngineFailure(str(error), "submit the script again", code=FailureCode.INPUT_CHANGED) from error
    for name, digest in now.items():
        if digest != job.record.data.get(name, digest):
            raise EngineFailure(
                f"the input {name} was fetched again since the run was submitted, and has changed",
                "submit the script again",
                code=FailureCode.INPUT_CHANGED,
            )


def shared_folder(settings: Mapping[str, Any], job: Job, workspace: Workspace) -> Path | None:
    """Return the folder that runs of an experiment share, created if missing; None if the target has none."""
    base = settings.get("shared_directory")
    if base is None:
        return None
    project = name_from_file(workspace.root.absolute().parent.name)
    folder = Path(base).expanduser() / "local" / project / job.record.experiment
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def attempt_state_of_files(job: Job) -> AttemptState | None:
    """Return the state from the agent's files and lock; None if there is no agent and no report."""
    seen = attempt_state(observing.observe(job.place))
    return None if seen.presence in (Presence.ABSENT, Presence.GONE) else seen


def request_stop(place: Path, grace_s: float, reason: str) -> None:
    """Write the request to stop into the attempt's folder, which the agent reads."""
    with as_failure("the agent cannot be told to end the script"):
        observing.stop(place, grace_s, reason)


def collect(job: Job, *, is_over: bool = True) -> None:
    """Move the script's outputs and logs to the run's folder.

    Args:
        is_over: Whether none of its processes is left. Else the folders are copied.
    """
    with as_failure("the run's files cannot be moved to its folder"):
        for name in RUN_FOLDERS:
            # A script in a container writes here too, and its links mean folders of this machine.
            if Tree(job.place).is_folder(f"work/{name}"):
                written = job.place / "work" / name
                _move(written if is_over else _copy(written), job.folder.path / name)


def _copy(written: Path) -> Path:
    """Copy a folder beside it, without what is neither a folder, a file nor a link; return the copy."""

    def special(folder: str, names: list[str]) -> list[str]:
        paths = [Path(folder, name) for name in names]
        return [path.name for path in paths if not (path.is_symlink() or path.is_dir() or path.is_file())]

    copied = written.with_name(f"{written.name}.copied")
    remove_tree(copied)
    shutil.copytree(written, copied, symlinks=True, ignore=special)
    return copied


def _move(written: Path, place: Path) -> None:
    """Move a folder to a place that is empty or does not exist; existing content there is kept beside it."""
    if place.is_dir():
        for entry in place.iterdir():
            if not os.path.lexists(written / entry.name):
                entry.rename(written / entry.name)
        remove_tree(place)
    written.rename(place)


def remove_work(job: Job) -> None:
    """Remove the working directory, and the agent's own files."""
    for name in ("work", "work.new", "ranks", "agent", "home"):
        remove_tree(job.place / name, ignore_errors=True)
    for name in ("stoker_run.zip", "oom"):
        (job.place / name).unlink(missing_ok=True)


@contextlib.contextmanager
def as_failure(problem: str) -> Iterator[None]:
    """Turn errors of the system into failures of the target."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise EngineFailure(f"{problem}: {error.strerror or error}{where}") from error


def environment_failure(error: EnvironmentUnusable, requested: RequestedEnvironment) -> EngineFailure:
    """The failure of a run whose packages or interpreter cannot be provided."""
    hint = (
        "name another interpreter (--python, or pythonLocation of a .compute file), or none for that of Stoker"
        if requested.kind == "user"
        else "change the environment file, name a date with --as-of at which its packages fitted together, or take "
        "today's versions with --environment relaxed"
    )
    return EngineFailure(str(error), hint, code=FailureCode.ENVIRONMENT_UNUSABLE)


def prepare_attempt(
    job: Job,
    workspace: Workspace,
    environment: Callable[[RequestedEnvironment], RunEnvironment],
    shared_directory: Callable[[], Path | None] = lambda: None,
    lease_s: float | None = None,
) -> None:
    """Write what the agent needs into the attempt's folder, in which it works.

    Args:
        environment: Builds or finds the environment.
        shared_directory: Returns the folder that runs of the experiment share, or None.
        lease_s: How long the script may go on without a word from the runner; None is for ever.

    Raises:
        EngineFailure: The environment or the files cannot be provided.
    """
    with as_failure("the run cannot be prepared"):
        private_folder(job.place)
        if (job.place / "start.json").exists():
            return
        check_fetched_data(job, workspace)
        requested = RequestedEnvironment.from_json(job.record.definition.environment)
        try:
            built = environment(requested)
        except EnvironmentUnusable as error:
            raise environment_failure(error, requested) from error
        work = working_directory(job)
        content = start_content(
            job,
            [str(built.interpreter)],
            work,
            resume_from=work / "outputs" if job.attempt > 1 else job.resume_from,
            shared_directory=shared_directory(),
            variables=built.variables,
            lease_s=lease_s,
        )
        write_start(job, content)


STARTED_BEFORE: Final = 3


class LocalEngine:
    """Runs attempts on this machine."""

    def __init__(self, target: Target, workspace: Workspace) -> None:
        self._target = target
        self._workspace = workspace

    def check(self) -> Sequence[str]:
        """Return the resources of this machine."""
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
        """Build the environment, and copy the snapshot to a working directory."""

        def environment(requested: RequestedEnvironment) -> RunEnvironment:
            built = self._environment(requested, job, say)
            for line in frameworks_without_gpus(
                job.record.definition.gpus or 0,
                built.packages,
                lambda command: _run_program(command).stdout,
            ):
                say(line)
            return with_variables(built)

        shared = self._target.settings
        prepare_attempt(
            job, self._workspace, environment, lambda: shared_folder(shared, job, self._workspace)
        )

    def _environment(self, requested: RequestedEnvironment, job: Job, say: Say) -> RunEnvironment:
        if requested.kind == "user":
            return use_interpreter(requested, job.folder.environment)
        # Not above: the libraries that read environment files take longer to import than all the rest.
        from stoker_runs.run_environment import prepare_environment

        gpus = job.record.definition.gpus or 0
        return prepare_environment(
            requested, job.folder.environment, self._workspace.environments_dir, say, gpus
        )

    def start(self, job: Job) -> None:
        """Start the agent in a session of its own."""
        with as_failure("the agent cannot be started"):
            # Installed here, it begins a little faster than from its zip.
            command = [sys.executable, "-I", "-m", "stoker_run", "start", str(job.place), "--detach"]
            done = _run_program(command)
        if done.returncode not in (0, STARTED_BEFORE):
            complaint = (done.stderr.strip().splitlines() or [f"it ended with status {done.returncode}"])[-1]
            raise EngineFailure(f"the agent cannot be started: {complaint}")

    def observe(self, job: Job) -> AttemptState:
        """Read what the agent has written, and whether it holds its lock."""
        return attempt_state(observing.observe(job.place))

    def pull(self, job: Job, *, final: bool) -> None:
        """Move the script's outputs and logs to the run's folder when its processes have ended."""
        if final:
            collect(job)

    def stop(self, job: Job, grace_s: float, reason: str) -> None:
        """Write the request to stop into the attempt's folder, which the agent reads."""
        request_stop(job.place, grace_s, reason)

    def clean(self, job: Job) -> None:
        """Kill the remaining processes of an ended attempt, and remove its working directory."""
        if not job.place.is_dir():
            return
        with as_failure("what is left of the run cannot be removed"):
            observing.sweep(job.place)
            remove_work(job)


def _run_program(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a program without input, and keep its output whatever its bytes."""
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )


def with_variables(built: RunEnvironment) -> RunEnvironment:
    """Return an environment with the variables that its interpreter needs with other values than this process has."""
    if built.interpreter == Path(sys.executable):
        return built
    from stoker.environments.variables import variables_for

    wanted = variables_for(built.interpreter, os.environ)
    changed = {name: value for name, value in wanted.items() if os.environ.get(name) != value}
    return replace(built, variables={**built.variables, **changed})
