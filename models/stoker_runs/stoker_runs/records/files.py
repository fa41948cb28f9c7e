"""The files of a run under the names that users and the SDK know: Azure's for logs, the script's own for the rest.

Symbolic links are not followed.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from stoker.errors import SubmissionRefused
from stoker_run.trees import files_below
from stoker_runs.records.folder import RunFolder

__all__ = ["copy_files", "find_file", "log_file", "run_files"]

_LOG: Final = re.compile(r"log_([0-9]+)\.txt", re.ASCII)
_PROCESS_FILES: Final = ("process_info.json", "process_status.json")
_NAMES_SHOWN: Final = 20


def run_files(folder: RunFolder) -> Mapping[str, Path]:
    """Return the path of each file of a run by name, in alphabetical order; while it runs, those that exist."""
    return dict(sorted(_files(folder)))


def _files(folder: RunFolder) -> Iterator[tuple[str, Path]]:
    if (build_log := folder.environment / "build.log").is_file():
        yield "azureml-logs/20_image_build_log.txt", build_log
    attempts = folder.attempts()
    for number in attempts:
        files = folder.attempt(number) / "files"
        yield from ((name, path) for name, path in _below(files))
    if attempts:
        current = folder.attempt(attempts[-1])
        yield from _logs(current)
        for name in ("outputs", "logs"):
            yield from ((f"{name}/{inner}", path) for inner, path in _below(current / "work" / name))
    for name, place in (("outputs", folder.outputs), ("logs", folder.logs)):
        yield from ((f"{name}/{inner}", path) for inner, path in _below(place))


def _logs(attempt: Path) -> Iterator[tuple[str, Path]]:
    if not attempt.is_dir():
        return
    logs = {int(found[1]): entry for entry in attempt.iterdir() if (found := _LOG.fullmatch(entry.name))}
    for rank, path in logs.items():
        suffix = f"_{rank}" if len(logs) > 1 else ""
        yield f"azureml-logs/70_driver_log{suffix}.txt", path
    if 0 in logs:
        yield "user_logs/std_log.txt", logs[0]
    for name in _PROCESS_FILES:
        if (attempt / name).is_file():
            yield f"azureml-logs/{name}", attempt / name


def _below(folder: Path) -> Iterator[tuple[str, Path]]:
    if folder.is_symlink():
        return
    for path in files_below(folder):
        if path.is_file() and not path.is_symlink():
            yield path.relative_to(folder).as_posix(), path


def log_file(folder: RunFolder, attempt: int, rank: int = 0) -> Path:
    """The output of one process of an attempt; the file may not exist yet."""
    return folder.attempt(attempt) / f"log_{rank}.txt"


def find_file(folder: RunFolder, name: str) -> Path:
    """Return the file or folder of a run with this name.

    Raises:
        SubmissionRefused: There is no such file; the message lists those that exist.
    """
    clean = name.strip("/")
    files = run_files(folder)
    if clean in files:
        return files[clean]
    below = [path for known, path in files.items() if known.startswith(f"{clean}/")]
    if clean and below:
        depth = (
            next(known for known in files if known.startswith(f"{clean}/"))[len(clean) + 1 :].count("/") + 1
        )
        return below[0].parents[depth - 1]
    shown = ", ".join(list(files)[:_NAMES_SHOWN]) or "none"
    more = f" and {len(files) - _NAMES_SHOWN} more" if len(files) > _NAMES_SHOWN else ""
    raise SubmissionRefused(f"the run {folder.id} has no file {name!r}; it has: {shown}{more}")


def copy_files(folder: RunFolder, prefix: str, place: Path) -> list[str]:
    """Copy the files of a run whose names have this prefix into a folder; returns their names.

    Raises:
        OSError: A file cannot be written.
    """
    copied = []
    for name, path in run_files(folder).items():
        if name.startswith(prefix):
            target = place / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            copied.append(name)
    return copied
