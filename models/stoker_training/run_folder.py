"""The run folder: complete or not there at all."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.errors import OperatorError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ARTEFACTS", "METRICS", "WRITTEN_BY", "check_target", "check_writable", "replacing"]

METRICS = "metrics.json"
WRITTEN_BY = "stoker train"
ARTEFACTS = frozenset(
    {
        METRICS,
        "history.json",
        "history.png",
        "model",
        "model.onnx",
        "sample_input.json",
        "saved_model",
        "score.py",
    }
)
"""Everything that a run folder holds, by name."""
_COMPILED = "__pycache__"
"""What Python leaves beside score.py where somebody has imported it."""


def check_target(folder: Path) -> None:
    """Make sure that `folder` may become the run folder: it is absent, empty, or an earlier training's.

    Raises:
        OperatorError: It is something else, holds files that a training did not write, or cannot be replaced.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise OperatorError(f"{folder} is not a folder; choose another one with --output")
    if folder.is_mount():
        raise OperatorError(
            f"{folder} is a mount point and cannot be replaced; choose a folder inside it with --output"
        )
    present = {entry.name for entry in folder.iterdir()}
    if present and not _is_run_folder(folder):
        raise OperatorError(
            f"{folder} is neither empty nor the run folder of a training; choose another one with --output"
        )
    if foreign := present - ARTEFACTS - {_COMPILED}:
        raise OperatorError(
            f"{folder} holds {', '.join(sorted(foreign))}, which this training would delete; "
            "move it away, or choose another folder with --output"
        )


def check_writable(folder: Path) -> None:
    """Make sure that `folder` can be made, before a training of minutes ends with that it cannot.

    Raises:
        OperatorError: Nothing can be written where it would be.
    """
    folder = folder.resolve()
    nearest = next(parent for parent in folder.parents if parent.exists())
    try:
        Path(tempfile.mkdtemp(prefix=f".{folder.name}.incomplete-", dir=nearest)).rmdir()
    except OSError as error:
        raise OperatorError(
            f"the run folder {folder} cannot be written: {error.strerror}; choose another one with --output"
        ) from error


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """Give a temporary folder beside `folder` to write into; it takes that name when the block ends well.

    When the block raises, the temporary folder is deleted and `folder` stays as it was.

    Raises:
        OperatorError: `check_target` refuses `folder`, or a file or folder cannot be written.
    """
    folder = folder.resolve()
    check_target(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=f".{folder.name}.incomplete-", dir=folder.parent))
        try:
            yield building
            _publish(building, folder)
        finally:
            shutil.rmtree(building, ignore_errors=True)
    except OSError as error:
        raise OperatorError(f"the run folder {folder} could not be written: {error}") from error


def _is_run_folder(folder: Path) -> bool:
    try:
        metrics = json.loads((folder / METRICS).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(metrics, dict) and metrics.get("written_by") == WRITTEN_BY


def _publish(building: Path, folder: Path) -> None:
    building.chmod(0o777 & ~_umask())
    check_target(folder)
    if not folder.exists():
        building.rename(folder)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.replaced-", dir=folder.parent))
    folder.rename(aside)
    try:
        building.rename(folder)
    except OSError:
        aside.rename(folder)
        raise
    shutil.rmtree(aside)


def _umask() -> int:
    """The process's mask can be read only by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
