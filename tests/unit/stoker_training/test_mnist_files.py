"""Reading a part of MNIST from a folder, whole and not."""

from __future__ import annotations

import shutil
import struct

import numpy as np
import pytest

from stoker.errors import OperatorError
from stoker_training.digits import read_mnist_part


def test_a_folder_is_read_part_by_part(tiny_mnist):
    """Images and labels of a part come together, with the sizes of their headers."""
    images, labels = read_mnist_part(tiny_mnist, "train")
    assert (images.shape, labels.shape) == ((240, 28, 28), (240,))
    assert labels[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]


def test_a_missing_file_is_named(tiny_mnist, tmp_path):
    """The operator learns which file to fetch, under the names it may have."""
    shutil.copytree(tiny_mnist, tmp_path, dirs_exist_ok=True)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(
        OperatorError, match=r"neither t10k-labels-idx1-ubyte\.gz nor t10k-labels-idx1-ubyte;"
    ):
        read_mnist_part(tmp_path, "t10k")


def test_a_missing_folder_is_named(tmp_path):
    """A mistyped --data says that the folder is not there."""
    with pytest.raises(OperatorError, match="nowhere is not a folder"):
        read_mnist_part(tmp_path / "nowhere", "train")


@pytest.mark.parametrize(
    ("name", "shape", "value", "reason"),
    [
        ("t10k-labels-idx1-ubyte", (59,), 0, "holds 60 images, but t10k-labels-idx1-ubyte holds 59 labels"),
        ("t10k-labels-idx1-ubyte", (60,), 10, "holds the label 10; labels are 0 to 9"),
        ("t10k-images-idx3-ubyte", (60, 8, 8), 0, "images of 8x8 pixels, not 28x28"),
    ],
)
def test_files_that_do_not_fit_each_other_are_refused(tiny_mnist, tmp_path, name, shape, value, reason):
    """Sound files of another data set or of different lengths are not trained on."""
    shutil.copytree(tiny_mnist, tmp_path, dirs_exist_ok=True)
    header = bytes((0, 0, 8, len(shape))) + struct.pack(f">{len(shape)}I", *shape)
    (tmp_path / name).write_bytes(header + np.full(shape, value, np.uint8).tobytes())
    with pytest.raises(OperatorError, match=reason):
        read_mnist_part(tmp_path, "t10k")
