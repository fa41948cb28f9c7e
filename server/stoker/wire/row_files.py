"""Files of rows that need no library: the IDX format of MNIST, and the first line of CSV files."""

from __future__ import annotations

import gzip
import struct
import zlib
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from stoker.errors import OperatorError

if TYPE_CHECKING:
    from pathlib import Path

_UNSIGNED_BYTE = 0x08
_GZIP_MAGIC = b"\x1f\x8b"

Bytes = NDArray[np.uint8]


def find_idx(folder: Path, stem: str, suffix: str, takes: str) -> Path:
    """Find a file of MNIST under one of its usual names: some mirrors write a dot for the last dash.

    Args:
        stem: What its name begins with, such as `train-images`.
        suffix: What it ends with, such as `idx3-ubyte`; a compressed file has `.gz` behind that.
        takes: The end of the error message: which option takes the file.
    """
    names = [f"{stem}{joint}{suffix}{compressed}" for compressed in (".gz", "") for joint in "-."]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise OperatorError(f"{folder} has neither {names[0]} nor {names[2]}; {takes}")


def read_idx(path: Path, *, dimensions: int) -> Bytes:
    """Read one IDX file of unsigned bytes, gzip-compressed or not (told by its first bytes, not its name)."""
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


def _read_bytes(path: Path) -> bytes:
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if content[:2] == _GZIP_MAGIC else content
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise OperatorError(f"{path} is a damaged gzip file: {error}") from error
    except OSError as error:
        raise OperatorError(f"{path} cannot be read: {error.strerror}") from error


def warn_of_numbered_header(file: Path, line: str) -> str | None:
    """Return a warning if the first line numbers the columns, as pandas writes them; else None."""
    cells = [cell.strip() for cell in line.split(",")]
    if cells != [str(number) for number in range(len(cells))]:
        return None
    shown = ",".join(cells if len(cells) <= 4 else (*cells[:3], "…", cells[-1]))
    return (
        f"{file}: the first line, {shown}, is scored as a row; if it has the names of the columns, take it out, or "
        "write the file without it (pandas: to_csv(header=False, index=False))"
    )
