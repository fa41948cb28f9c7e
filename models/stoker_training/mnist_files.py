"""MNIST as it is published: two parts, each a file of images and one of labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from stoker.errors import OperatorError
from stoker.idx import Bytes, find_idx, read_idx

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["check_mnist_files", "read_mnist_part"]

_SIDE = 28
_CLASSES = 10
_NO_FOLDER = "is not a folder; --data takes the folder that holds the four IDX files"
_TAKES = "--data takes the four IDX files of MNIST"


def check_mnist_files(folder: Path) -> None:
    """Make sure that the four files are there, without reading them.

    Raises:
        OperatorError: The folder or a file is missing.
    """
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
