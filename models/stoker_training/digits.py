"""Handwritten digits from a folder of MNIST's four files or Keras's download, else digits drawn by a program."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from msgspec import Struct

from stoker.errors import OperatorError
from stoker.wire.row_files import Bytes, find_idx, read_idx
from stoker_training.drawn_digits import draw_digits

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

_SIDE = 28
_CLASSES = 10
_NO_FOLDER = "is not a folder; --data takes the folder that holds the four IDX files"
_TAKES = "--data takes the four IDX files of MNIST"


def check_mnist_files(folder: Path) -> None:
    """Make sure that the four files are there, without reading them."""
    if not folder.is_dir():
        raise OperatorError(f"{folder} {_NO_FOLDER}")
    for part in ("train", "t10k"):
        for kind in ("images-idx3", "labels-idx1"):
            stem, _, suffix = kind.partition("-")
            find_idx(folder, f"{part}-{stem}", f"{suffix}-ubyte", _TAKES)


def read_mnist_part(folder: Path, part: Literal["train", "t10k"]) -> tuple[Bytes, Bytes]:
    """Read the images and labels of one part of MNIST, the training or the test part, from a folder.

    Returns:
        Images uint8[n, 28, 28] and labels uint8[n].

    Raises:
        OperatorError: The folder or a file is missing or damaged, or the two files do not fit each other.
    """
    if not folder.is_dir():
        raise OperatorError(f"{folder} {_NO_FOLDER}")
    images_path = find_idx(folder, f"{part}-images", "idx3-ubyte", _TAKES)
    labels_path = find_idx(folder, f"{part}-labels", "idx1-ubyte", _TAKES)
    images, labels = read_idx(images_path, dimensions=3), read_idx(labels_path, dimensions=1)
    if images.shape[1:] != (_SIDE, _SIDE):
        height, width = images.shape[1:]
        raise OperatorError(f"{images_path} holds images of {height}x{width} pixels, not {_SIDE}x{_SIDE}")
    if len(images) != len(labels):
        raise OperatorError(
            f"{images_path} holds {len(images)} images, but {labels_path.name} holds {len(labels)} labels"
        )
    if labels.max() >= _CLASSES:
        raise OperatorError(f"{labels_path} holds the label {labels.max()}; labels are 0 to {_CLASSES - 1}")
    return images, labels


_CONNECT_S = 8.0
_STALL_S = 5.0
_DRAWN_TRAIN_ROWS, _DRAWN_TEST_ROWS = 20_000, 2_000
_DRAWN_SEED = 1
_LEAST_TRAIN_ROWS = 12

_Part = tuple[Bytes, Bytes]
"""Images uint8[n, 28, 28] and labels uint8[n]."""


class Digits(Struct, frozen=True):
    """Rows of 784 grey values in 0..1 (white on black, row by row) and their classes.

    Attributes:
        train_rows: float32[n, 784].
        train_classes: int64[n].
        test_rows: float32[m, 784].
        test_classes: int64[m].
    """

    train_rows: NDArray[np.float32]
    train_classes: NDArray[np.int64]
    test_rows: NDArray[np.float32]
    test_classes: NDArray[np.int64]
    source: str


def load_digits(folder: Path | None, say: Callable[[str], None]) -> Digits:
    """Load the digits from `folder`, else from Keras's download, else draw them.

    A folder that was asked for is never replaced by something else. `say` gets the lines for the operator.
    """
    if folder is not None:
        train, test = read_mnist_part(folder, "train"), read_mnist_part(folder, "t10k")
        if len(train[0]) < _LEAST_TRAIN_ROWS:
            raise OperatorError(
                f"{folder} holds {len(train[0])} training images; at least {_LEAST_TRAIN_ROWS} are needed"
            )
        return _digits(train, test, "MNIST (IDX files)")
    try:
        train, test = _download()
    except DownloadFailedError as error:
        say(
            f"MNIST could not be downloaded ({error}), so the digits are drawn by a program: accuracies do not "
            "compare with MNIST's. To train on MNIST, give its four IDX files with --data."
        )
        return _drawn()
    return _digits(train, test, "MNIST (downloaded by keras.datasets.mnist)")


class DownloadFailedError(Exception):
    """Keras's download came to nothing; the message says why."""


def _digits(train: _Part, test: _Part, source: str) -> Digits:
    return Digits(
        _rows(train[0]), train[1].astype(np.int64), _rows(test[0]), test[1].astype(np.int64), source
    )


def _rows(images: Bytes) -> NDArray[np.float32]:
    return images.reshape(len(images), -1).astype(np.float32) / np.float32(255)


def _download() -> tuple[_Part, _Part]:
    """Keras's own download, given up when it does not get going.

    It runs in a daemon thread, because a name lookup cannot be interrupted. Once the connection stands, Keras
    writes the file; from then on each read has `_STALL_S` seconds, and the whole may take its time.

    Raises:
        DownloadFailedError: No connection, a stalled or broken one, or not the file that Keras expects.
    """
    from stoker_training.frameworks import keras

    outcome: list[tuple[_Part, _Part] | Exception] = []

    def fetch() -> None:
        try:
            outcome.append(keras.datasets.mnist.load_data())
        except Exception as error:  # noqa: BLE001  Keras raises bare Exception, urllib and numpy their own
            outcome.append(error)

    before = _downloaded_bytes()
    thread = threading.Thread(target=fetch, name="mnist-download", daemon=True)
    default_timeout_s = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_STALL_S)
    try:
        thread.start()
        give_up = time.monotonic() + _CONNECT_S
        while thread.is_alive():
            thread.join(0.1)
            if thread.is_alive() and time.monotonic() > give_up and _downloaded_bytes() == before:
                raise DownloadFailedError(f"no connection within {_CONNECT_S:.0f} s")
    finally:
        socket.setdefaulttimeout(default_timeout_s)
    if isinstance(outcome[0], Exception):
        raise DownloadFailedError(str(outcome[0])) from outcome[0]
    return outcome[0]


def _downloaded_bytes() -> list[int]:
    """Sizes of Keras's file in its two places (it takes the second where the first cannot be written)."""
    caches = (
        Path(os.environ.get("KERAS_HOME", Path.home() / ".keras")),
        Path(tempfile.gettempdir(), ".keras"),
    )
    return [_bytes_of(cache / "datasets" / "mnist.npz") for cache in caches]


def _bytes_of(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def _drawn() -> Digits:
    rows, classes = draw_digits(_DRAWN_TRAIN_ROWS + _DRAWN_TEST_ROWS, _DRAWN_SEED)
    cut = _DRAWN_TRAIN_ROWS
    return Digits(
        rows[:cut], classes[:cut], rows[cut:], classes[cut:], "digits drawn by a program (not MNIST)"
    )
