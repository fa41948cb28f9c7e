"""A tiny set of digits in MNIST's file format, and one run folder trained on it."""

from __future__ import annotations

import gzip
import struct
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from pathlib import Path

TRAIN_ROWS = 240
TEST_ROWS = 60


def idx_bytes(array):
    """The IDX file of a uint8 array."""
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def tiny_images(rows, rng):
    """Noise with one bright bar a class, which every network learns in one epoch."""
    labels = np.arange(rows, dtype=np.uint8) % 10
    images = rng.integers(0, 80, (rows, 28, 28), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[4 + 2 * label : 6 + 2 * label, 4:24] = 255
    return images, labels


@pytest.fixture(scope="session")
def tiny_mnist(tmp_path_factory) -> Path:
    """A folder with the four IDX files: the training part compressed, the test part raw."""
    folder = tmp_path_factory.mktemp("mnist")
    rng = np.random.default_rng(0)
    for part, rows in (("train", TRAIN_ROWS), ("t10k", TEST_ROWS)):
        images, labels = tiny_images(rows, rng)
        for name, array in ((f"{part}-images-idx3-ubyte", images), (f"{part}-labels-idx1-ubyte", labels)):
            if part == "train":
                (folder / f"{name}.gz").write_bytes(gzip.compress(idx_bytes(array), mtime=0))
            else:
                (folder / name).write_bytes(idx_bytes(array))
    return folder


@pytest.fixture(scope="session")
def test_rows(tiny_mnist):
    """The test images as a caller would send them: float32[60, 784] in 0..1."""
    content = (tiny_mnist / "t10k-images-idx3-ubyte").read_bytes()[16:]
    return np.frombuffer(content, np.uint8).reshape(TEST_ROWS, 784).astype(np.float32) / np.float32(255)


@pytest.fixture(scope="session")
def logged():
    """The lines that `trained` has logged: (name, value, epoch) each."""
    return []


@pytest.fixture(scope="session")
def trained(tiny_mnist, tmp_path_factory, logged):
    """One training of the mlp: (result, the lines that it said). Tests must not change its folder."""
    from stoker_training import TrainingSpec, train

    lines: list[str] = []
    output = tmp_path_factory.mktemp("run") / "outputs"
    spec = TrainingSpec(network="mlp", epochs=1, seed=7, output=output, data=tiny_mnist)
    result = train(spec, lines.append, lambda *line: logged.append(line), "mnist_1_0000000a")
    return result, lines
