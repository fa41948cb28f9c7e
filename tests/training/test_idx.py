"""Reading IDX files, sound and damaged."""

from __future__ import annotations

import gzip
import shutil
import struct

import numpy as np
import pytest

from stoker.errors import OperatorError
from stoker_training.idx import read_idx, read_mnist_part

IMAGES = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
RAW = bytes((0, 0, 8, 3)) + struct.pack(">III", 2, 3, 4) + IMAGES.tobytes()
# Without the time of day, which would make names of tests differ from one run to the next.
ZIPPED = gzip.compress(RAW, mtime=0)


@pytest.mark.parametrize("content", [RAW, ZIPPED], ids=["raw", "gzip"])
@pytest.mark.parametrize("name", ["images", "images.gz"])
def test_raw_and_gzip_files_read_the_same_whatever_their_name(tmp_path, content, name):
    """Compression is told by the file's first bytes, so a wrong ending does no harm."""
    path = tmp_path / name
    path.write_bytes(content)
    np.testing.assert_array_equal(read_idx(path, dimensions=3), IMAGES)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "starts with nothing"),
        (b"PNG\r\n" + RAW, "is not an IDX file"),
        (bytes((0, 0, 8, 1)) + RAW[4:], "starts with 00000801, expected 00000803"),
        (bytes((0, 0, 13, 3)) + RAW[4:], "starts with 00000d03"),
        (RAW[:10], "header has 10 of 16 bytes"),
        (RAW[:-1], "announces 24 values, the file holds 23"),
        (RAW + b"\0", "announces 24 values, the file holds 25"),
        (RAW[:4] + struct.pack(">III", 0, 3, 4), "is empty"),
        (ZIPPED[:-9], "damaged gzip file"),
        (ZIPPED[:20] + b"\xff" * 20, "damaged gzip file"),
        (ZIPPED[:-8] + b"\0" * 8, "damaged gzip file"),
    ],
)
def test_a_damaged_file_is_refused_with_the_reason(tmp_path, content, reason):
    """Every kind of damage ends in one sentence that names the file, not in wrong images."""
    path = tmp_path / "images"
    path.write_bytes(content)
    with pytest.raises(OperatorError, match=reason) as error:
        read_idx(path, dimensions=3)
    assert str(path) in str(error.value)


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
