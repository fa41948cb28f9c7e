"""Reading IDX files, sound and damaged."""

from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest

from stoker.errors import OperatorError
from stoker.wire.row_files import read_idx

IMAGES = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
RAW = bytes((0, 0, 8, 3)) + struct.pack(">III", 2, 3, 4) + IMAGES.tobytes()
# Without the time of day, which would make names of tests differ from one run to the next.
ZIPPED = gzip.compress(RAW, mtime=0)


@pytest.mark.parametrize("content", [RAW, ZIPPED], ids=["raw", "gzip"])
@pytest.mark.parametrize("name", ["images", "images.gz"])
def test_raw_and_gzip_files_are_read_under_any_name(tmp_path, content, name):
    """Compression is recognised by the file's first bytes, so a wrong ending does no harm."""
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
