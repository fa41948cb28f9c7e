"""Where the digits come from, and what happens when they cannot be had."""

from __future__ import annotations

import shutil
import socket
import threading

import numpy as np
import pytest

from stoker.errors import OperatorError
from stoker_training import digits


def unexpected(*_):
    raise AssertionError("a folder that was given must never be replaced by another source")


@pytest.fixture
def no_network(monkeypatch):
    """Keras's download fails at once."""

    def fail():
        raise digits.DownloadFailedError("no route to host")

    monkeypatch.setattr(digits, "_download", fail)


def test_a_given_folder_is_read_as_rows_in_0_to_1(tiny_mnist, monkeypatch):
    """Images become float32 rows of 784 values in 0..1 beside int64 classes."""
    monkeypatch.setattr(digits, "_download", unexpected)
    loaded = digits.load_digits(tiny_mnist, say=unexpected)
    assert (loaded.train_rows.shape, loaded.train_rows.dtype) == ((240, 784), np.float32)
    assert (loaded.test_classes.shape, loaded.test_classes.dtype) == ((60,), np.int64)
    assert loaded.test_rows[3, 28 * 10 + 4] == 1.0
    assert 0 <= loaded.train_rows.min() < loaded.train_rows.max() == 1
    assert loaded.source == "MNIST (IDX files)"


def test_a_given_folder_without_the_files_is_an_error_not_a_fallback(tmp_path, monkeypatch):
    """--data never falls back silently to other images."""
    monkeypatch.setattr(digits, "_download", unexpected)
    monkeypatch.setattr(digits, "draw_digits", unexpected)
    with pytest.raises(OperatorError, match="train-images-idx3-ubyte"):
        digits.load_digits(tmp_path, say=unexpected)


def test_too_few_images_to_train_on_are_refused(tiny_mnist, tmp_path):
    """A set from which no validation part can be split is refused with the number that is needed."""
    shutil.copytree(tiny_mnist, tmp_path, dirs_exist_ok=True)
    for name, end in (("images-idx3-ubyte", 16 + 11 * 784), ("labels-idx1-ubyte", 8 + 11)):
        content = (tmp_path / f"t10k-{name}").read_bytes()
        (tmp_path / f"train-{name}.gz").write_bytes(content[:4] + (11).to_bytes(4, "big") + content[8:end])
    with pytest.raises(OperatorError, match="holds 11 training images; at least 12 are needed"):
        digits.load_digits(tmp_path, say=unexpected)


def test_digits_are_drawn_and_named_so_without_a_download(no_network, monkeypatch):
    """The operator reads why, and that these digits are not MNIST; so does the source in the metrics."""
    monkeypatch.setattr(digits, "_DRAWN_TRAIN_ROWS", 70)
    monkeypatch.setattr(digits, "_DRAWN_TEST_ROWS", 30)
    lines: list[str] = []
    loaded = digits.load_digits(None, lines.append)
    (line,) = lines
    assert "no route to host" in line
    assert "drawn by a program" in line
    assert "not MNIST" in loaded.source
    assert (len(loaded.train_rows), len(loaded.test_rows)) == (70, 30)


@pytest.mark.tensorflow
def test_keras_download_is_used_when_it_works(tiny_mnist, monkeypatch):
    """Keras's arrays become the digits, and the source says where they came from."""
    from stoker_training.frameworks import keras

    given = digits.read_mnist_part(tiny_mnist, "train"), digits.read_mnist_part(tiny_mnist, "t10k")
    monkeypatch.setattr(keras.datasets.mnist, "load_data", lambda: given)
    loaded = digits.load_digits(None, unexpected)
    assert loaded.source == "MNIST (downloaded by keras.datasets.mnist)"
    np.testing.assert_array_equal(loaded.test_rows, digits.load_digits(tiny_mnist, unexpected).test_rows)


@pytest.mark.tensorflow
def test_a_download_that_does_not_get_going_is_given_up(monkeypatch):
    """A name lookup that hangs holds the training up for a bounded time, and sockets keep their time-out."""
    from stoker_training.frameworks import keras

    released = threading.Event()
    monkeypatch.setattr(keras.datasets.mnist, "load_data", released.wait)
    monkeypatch.setattr(digits, "_CONNECT_S", 0.0)
    monkeypatch.setattr(digits, "_DRAWN_TRAIN_ROWS", 70)
    before = socket.getdefaulttimeout()
    lines: list[str] = []
    try:
        loaded = digits.load_digits(None, lines.append)
    finally:
        released.set()
    assert "no connection within" in lines[0]
    assert "not MNIST" in loaded.source
    assert socket.getdefaulttimeout() == before


@pytest.mark.tensorflow
def test_a_download_under_way_is_waited_for(tiny_mnist, monkeypatch):
    """Once bytes arrive, a slow download is not given up."""
    from stoker_training.frameworks import keras

    given = digits.read_mnist_part(tiny_mnist, "train"), digits.read_mnist_part(tiny_mnist, "t10k")
    looked, arrived = iter(range(1000)), threading.Event()

    def growing_file():
        looks = next(looked)
        if looks == 3:
            arrived.set()
        return [looks]

    def slow_download():
        arrived.wait()
        return given

    monkeypatch.setattr(keras.datasets.mnist, "load_data", slow_download)
    monkeypatch.setattr(digits, "_downloaded_bytes", growing_file)
    monkeypatch.setattr(digits, "_CONNECT_S", 0.0)
    assert digits.load_digits(None, unexpected).source.startswith("MNIST (downloaded")
