"""The readable part of a run folder: metrics, history as JSON and as a picture, a sample request."""

from __future__ import annotations

import json
from importlib.metadata import version
from platform import python_version
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from stoker_training.digits import Digits
    from stoker_training.fitting import Fit

__all__ = [
    "confusion_matrix",
    "library_versions",
    "mean_cross_entropy",
    "write_history",
    "write_json",
    "write_sample",
]

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
