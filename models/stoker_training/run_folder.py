"""The run folder: complete or absent, with metrics, history as JSON and as a picture, and a sample request."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import TYPE_CHECKING, Any

import numpy as np

from stoker.errors import OperatorError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from stoker_training.digits import Digits
    from stoker_training.fitting import Fit

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
"""The folder that Python makes beside an imported score.py."""


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
    """Make sure that `folder` can be made, before a training of minutes ends with that it cannot."""
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


_CLASSES = 10
_LIBRARIES = ("stoker", "tensorflow", "keras", "tf2onnx", "onnx", "numpy")


def confusion_matrix(classes: NDArray[np.int64], predicted: NDArray[np.int64]) -> list[list[int]]:
    """Count the rows by true class (first index) and predicted class (second index): int[10][10]."""
    counts = np.bincount(classes * _CLASSES + predicted, minlength=_CLASSES**2)
    matrix: list[list[int]] = counts.reshape(_CLASSES, _CLASSES).tolist()
    return matrix


def mean_cross_entropy(logits: NDArray[np.float32], classes: NDArray[np.int64]) -> float:
    """Mean of -log softmax(logits)[class], in nats: logits float32[n, 10], classes int64[n]."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    log_sum = np.log(np.exp(shifted).sum(axis=1))
    return float(np.mean(log_sum - shifted[np.arange(len(classes)), classes]))


def library_versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that shaped the run."""
    import onnxruntime

    return {
        "python": python_version(),
        **{library: version(library) for library in _LIBRARIES},
        "onnxruntime": onnxruntime.__version__,
    }


def write_json(content: dict[str, Any], path: Path) -> None:
    """Write `content` as indented JSON with strict numbers (NaN is an error)."""
    path.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def write_sample(digits: Digits, path: Path) -> None:
    """Write the first test image as a scoring request: `{"data": [[784 numbers in 0..1]]}`."""
    rows = [[round(float(value), 4) for value in digits.test_rows[0]]]
    path.write_text(json.dumps({"data": rows}) + "\n", encoding="utf-8")


def write_history(fit: Fit, folder: Path) -> None:
    """Write `history.json` and `history.png`: loss and accuracy of each epoch, training and validation."""
    # The Figure class draws without pyplot's global state and without a display.
    from matplotlib.figure import Figure

    write_json(
        {"epochs": len(fit.history["loss"]), "best_epoch": fit.best_epoch, **fit.history},
        folder / "history.json",
    )
    epochs = range(1, len(fit.history["loss"]) + 1)
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    for axes, name in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
        axes.plot(epochs, fit.history[name], marker=".", label="training")
        axes.plot(epochs, fit.history[f"val_{name}"], marker=".", label="validation")
        axes.axvline(fit.best_epoch, color="grey", linewidth=0.8, linestyle=":", label="kept")
        axes.set(xlabel="epoch", ylabel=name)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend()
    figure.savefig(folder / "history.png", dpi=120)
