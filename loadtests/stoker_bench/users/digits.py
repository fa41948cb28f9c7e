"""Real handwritten digits for the load tests: MNIST's test images from a folder, or scikit-learn's, enlarged."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from stoker.errors import OperatorError
from stoker.system.extras import how_to_install

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["Digits", "classes_in_answer", "read_digits"]


@dataclass(frozen=True)
class Digits:
    """Images and what they show.

    Attributes:
        rows: float32 [n, 784] in 0..1, white on black, row by row.
        labels: int64 [n], 0..9.
        source: Where they come from, in words.
    """

    rows: NDArray[np.float32]
    labels: NDArray[np.int64]
    source: str


def read_digits(mnist_folder: Path | None) -> Digits:
    """Read MNIST's test images (t10k-*, gzip or raw) from a folder, or scikit-learn's digits without one.

    Raises:
        OperatorError: If the folder lacks a file, or the training module or scikit-learn is not installed.
    """
    if find_spec("stoker_training") is None:
        raise OperatorError(f"the users' digits are read by stoker-training; {how_to_install('training')}")
    if mnist_folder is None:
        return _bundled()
    from stoker_training.digits import read_mnist_part

    images, labels = read_mnist_part(mnist_folder, "t10k")
    rows = images.reshape(len(images), -1).astype(np.float32) / np.float32(255)
    return Digits(rows, labels.astype(np.int64), "MNIST's test images")


def _bundled() -> Digits:
    from stoker_training.digits import bundled_digits

    try:
        rows, labels = bundled_digits()
    except ImportError as error:
        raise OperatorError(
            "scikit-learn's digits are not here: install scikit-learn, "
            "or give MNIST's IDX files with --mnist-dir FOLDER"
        ) from error
    return Digits(rows, labels, "scikit-learn's digits, 8x8 enlarged to 28x28 (not MNIST)")


def classes_in_answer(answer: object, rows: int) -> NDArray[np.int64]:
    """Return the class of each row from an answer: classes themselves, or outputs whose largest one tells it.

    Args:
        answer: The parsed JSON: a list, or an object whose first value is one.
        rows: How many rows were sent.

    Raises:
        ValueError: If the answer is neither.
    """
    if isinstance(answer, dict):
        answer = next(iter(answer.values()), None)
    try:
        values = np.asarray(answer, dtype=np.float64)
    except TypeError as error:
        raise ValueError(str(error)) from error
    if values.ndim == 0 or len(values) != rows:
        raise ValueError(f"an answer of shape {list(values.shape)} to {rows} rows")
    if values.ndim == 1:
        return values.astype(np.int64)
    classes: NDArray[np.int64] = values.reshape(rows, -1).argmax(axis=1)
    return classes
