"""The IDX format of the MNIST files: a big-endian header, then unsigned bytes.

Format: two zero bytes, a type code (0x08 for unsigned bytes), the number of dimensions, one big-endian
uint32 for each dimension, then the values in C order (LeCun, Cortes and Burges, "The MNIST database").
"""

from __future__ import annotations

import gzip
import struct
import zlib
from math import prod
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from stoker.errors import OperatorError

if TYPE_CHECKING:
    from pathlib import Path


__all__ = ["Bytes", "read_idx", "read_mnist_part"]

_UNSIGNED_BYTE = 0x08
_GZIP_MAGIC = b"\x1f\x8b"
_SIDE = 28
_CLASSES = 10

Bytes = NDArray[np.uint8]


def read_mnist_part(folder: Path, part: Literal["train", "t10k"]) -> tuple[Bytes, Bytes]:
    """Read the images and labels of one part of MNIST, the training or the test part, from a folder.

    Returns:
        Images uint8[n, 28, 28] and labels uint8[n].

    Raises:
        OperatorError: The folder or a file is missing or damaged, or the two files do not fit each other.
    """
    if not folder.is_dir():
        raise OperatorError(
            f"{folder} is not a folder; --data takes the folder that holds the four IDX files"
        )
    images_path = _find(folder, f"{part}-images", "idx3-ubyte")
    labels_path = _find(folder, f"{part}-labels", "idx1-ubyte")
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


def read_idx(path: Path, *, dimensions: int) -> Bytes:
    """Read one IDX file of unsigned bytes, gzip-compressed or not (told by its first bytes, not its name).

    Raises:
        OperatorError: The file cannot be read, is damaged, empty, or has another number of dimensions.
    """
    content = _read_bytes(path)
    header = struct.calcsize(f">BBBB{dimensions}I")
    magic = bytes((0, 0, _UNSIGNED_BYTE, dimensions))
    if content[:4] != magic:
        raise OperatorError(
            f"{path} is not an IDX file of {dimensions}-dimensional bytes: it starts with "
            f"{content[:4].hex() or 'nothing'}, expected {magic.hex()}"
        )
    if len(content) < header:
        raise OperatorError(f"{path} is cut short: its header has {len(content)} of {header} bytes")
    shape = struct.unpack_from(f">{dimensions}I", content, 4)
    if len(content) - header != prod(shape):
        raise OperatorError(
            f"{path} is damaged: its header announces {prod(shape)} values, "
            f"the file holds {len(content) - header}"
        )
    if shape[0] == 0:
        raise OperatorError(f"{path} is empty: it holds no images and no labels")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _find(folder: Path, stem: str, suffix: str) -> Path:
    """The file under one of its usual names: some mirrors write a dot for the last dash."""
    names = [f"{stem}{joint}{suffix}{compressed}" for compressed in (".gz", "") for joint in "-."]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise OperatorError(
        f"{folder} has neither {names[0]} nor {names[2]}; --data takes the four IDX files of MNIST"
    )


def _read_bytes(path: Path) -> bytes:
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if content[:2] == _GZIP_MAGIC else content
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise OperatorError(f"{path} is a damaged gzip file: {error}") from error
    except OSError as error:
        raise OperatorError(f"{path} cannot be read: {error.strerror}") from error
