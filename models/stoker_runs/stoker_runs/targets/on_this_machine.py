"""What engines share whose agents work in the attempts' folders on this machine, so that nothing has to be copied."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from stoker.environments.requested import AskedEnvironment
from stoker.errors import EnvironmentUnusable, SubmissionRefused
from stoker.names import name_from_file
from stoker.workspace import Workspace
from stoker_run import observing
from stoker_run.trees import Tree, remove_tree
from stoker_runs.records.failures import FailureCode, RunFailure
from stoker_runs.records.snapshots import SnapshotStore
from stoker_runs.targets.engine import EngineFailure, Job, Presence, Sight
from stoker_runs.targets.sights import sight_of

__all__ = [
    "as_failure",
    "collect",
    "environment_failure",
    "remove_work",
    "shared_folder",
    "sight_of_files",
    "tell_to_end",
    "working_directory",
]

_RUN_FOLDERS: Final = ("outputs", "logs")


def working_directory(job: Job) -> Path:
    """A copy of the snapshot, with what earlier attempts have left in `outputs/` and `logs/`."""
    work, staged = job.place / "work", job.place / "work.new"
    if not work.is_dir():
        remove_tree(staged, ignore_errors=True)
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


def shared_folder(settings: Mapping[str, Any], job: Job, workspace: Workspace) -> Path | None:
    """The folder that all runs of an experiment share, made if missing; None where the target has none."""
    base = settings.get("shared_directory")
    if base is None:
        return None
    project = name_from_file(workspace.root.absolute().parent.name)
    folder = Path(base).expanduser() / "local" / project / job.record.experiment
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def sight_of_files(job: Job) -> Sight | None:
    """The state by the agent's files and lock; None if there is neither an agent nor a report of its end."""
    seen = sight_of(observing.observe(job.place))
    return None if seen.presence in (Presence.ABSENT, Presence.GONE) else seen


def tell_to_end(job: Job, grace_s: float, reason: str) -> None:
    """Leave a message for the agent."""
    with as_failure("the agent cannot be told to end the script"):
        observing.stop(job.place, grace_s, reason)


def collect(job: Job) -> None:
    """Move what the script has written to the run's folder, once nothing of it runs any more."""
    with as_failure("the run's files cannot be moved to its folder"):
        for name in _RUN_FOLDERS:
            # A script in a container writes here too, and its links mean folders of this machine.
            if Tree(job.place).is_folder(f"work/{name}"):
                _move(job.place / "work" / name, job.folder.path / name)


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
    for name in ("work", "work.new", "agent", "home"):
        remove_tree(job.place / name, ignore_errors=True)
    for name in ("stoker_run.zip", "oom"):
        (job.place / name).unlink(missing_ok=True)


@contextlib.contextmanager
def as_failure(what: str) -> Iterator[None]:
    """Turn errors of the system into failures of the target."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        failure = RunFailure(FailureCode.TARGET_UNUSABLE, f"{what}: {error.strerror or error}{where}")
        raise EngineFailure(failure) from error


def environment_failure(error: EnvironmentUnusable, asked: AskedEnvironment) -> RunFailure:
    """The failure of a run whose packages or interpreter cannot be provided."""
    hint = (
        "name another interpreter (--python, or pythonLocation of a .compute file), or none for that of Stoker"
        if asked.kind == "user"
        else "change the environment file, name a date with --as-of at which its packages fitted together, or take "
        "today's versions with --environment relaxed"
    )
    return RunFailure(FailureCode.ENVIRONMENT_UNUSABLE, str(error), hint)
