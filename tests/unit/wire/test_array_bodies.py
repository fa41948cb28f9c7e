"""Bodies that are one array: `.npy` files."""

import io
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.puppets import STEADY

from stoker.errors import InvalidInput, MalformedBody, RequestError
from stoker.tensors import TensorInfo
from stoker.wire.array_bodies import decode_npy, encode_npy

ROWS = TensorInfo("x", "float32", (-1, 2))
WORDS = TensorInfo("words", "string", (-1,))


def npy(array: np.ndarray, version: tuple[int, int] = (1, 0)) -> bytes:
    """An array as numpy writes it."""
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version, allow_pickle=False)
    return file.getvalue()


def with_header(header: str | bytes, content: bytes = b"", version: int = 1) -> bytes:
    """A file with this header."""
    text = header if isinstance(header, bytes) else header.encode()
    return (
        b"\x93NUMPY"
        + bytes([version, 0])
        + struct.pack("<H" if version == 1 else "<I", len(text))
        + text
        + content
    )


def test_dtype_of_the_same_kind_is_cast() -> None:
    """Integers and wider floats are cast to the model's dtype; others are refused."""
    assert decode_npy(npy(np.array([[0.5, 2]], "<f8")), ROWS).tolist() == [[0.5, 2]]
    assert decode_npy(npy(np.array([[1, 2]], np.uint8)), ROWS).tolist() == [[1, 2]]
    small = TensorInfo("x", "int8", (-1,))
    assert decode_npy(npy(np.array([-128, 127])), small).tolist() == [-128, 127]
    with pytest.raises(InvalidInput, match="does not fit int8"):
        decode_npy(npy(np.array([128])), small)
    with pytest.raises(InvalidInput, match="too large for float32"):
        decode_npy(npy(np.array([[1e300, 0]])), ROWS)
    with pytest.raises(InvalidInput, match="got float32"):
        decode_npy(npy(np.array([1], np.float32)), small)


def test_bytes_of_booleans_become_true_unless_zero() -> None:
    """Each byte becomes 0 or 1."""
    flags = TensorInfo("x", "bool", (-1,))
    array = decode_npy(npy(np.frombuffer(b"\0\1\xff", bool)), flags)
    assert array.view(np.uint8).tolist() == [0, 1, 1]


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_files_are_read(version: tuple[int, int], order: Any) -> None:
    """Both versions, either order of the axes, and the other byte order."""
    array = np.arange(6, dtype=">f8").reshape(3, 2)
    read = decode_npy(npy(np.array(array, order=order), version), ROWS)
    assert (read.dtype, read.tolist()) == (np.float32, array.tolist())


@STEADY
@given(st.data())
def test_npy_array_survives_the_round_trip(data: st.DataObject) -> None:
    """Arrays of every numeric dtype and shape are read and written bit for bit."""
    dtype = data.draw(st.sampled_from(["bool", "int8", "uint16", "int64", "float16", "float32", "float64"]))
    array = data.draw(hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0)))
    info = TensorInfo("x", dtype, (-1,) * array.ndim)
    read = decode_npy(npy(array), info)
    assert (read.dtype, read.shape) == (array.dtype, array.shape)
    assert read.tobytes() == array.tobytes()
    again = np.load(io.BytesIO(encode_npy(array)), allow_pickle=False)
    assert (again.dtype, again.shape, again.tobytes()) == (array.dtype, array.shape, array.tobytes())


@pytest.mark.parametrize("words", [np.array(["é", "bc"]), np.array([b"\xc3\xa9", b"bc"])])
def test_strings_are_read_from_npy(words: np.ndarray) -> None:
    """Numpy's texts and bytes are both strings of the model."""
    assert decode_npy(npy(words), WORDS).tolist() == ["é".encode(), b"bc"]


GOOD = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2)}"


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"", "is no .npy file"),
        (b"\x93NUMPY\1\0", "is no .npy file"),
        (with_header(GOOD, bytes(8), version=2).replace(b"NUMPY\2", b"NUMPY\3"), "is no .npy file"),
        (with_header(GOOD, bytes(8))[:40], "is no .npy file"),
        (with_header(GOOD + " " * 10_000, bytes(8)), "is no .npy file"),
        (with_header(GOOD, bytes(7)), "has 8 bytes, the body has 7"),
        (with_header("(" * 9_000), "is no .npy file"),
        (with_header("-" * 9_000 + "1"), "is no .npy file"),
        (with_header(b"\xff\0\0\0"), "is no .npy file"),
        (with_header("__import__('os')"), "is no .npy file"),
        (with_header("[   ]"), "is no .npy file"),
        (with_header("{'descr': '<f4'}"), "is no .npy file"),
        (with_header(GOOD.replace("(1, 2)", "[1, 2]")), "is no .npy file"),
        (with_header(GOOD.replace("(1, 2)", "(1, -2)")), "The shape"),
        (with_header(GOOD.replace("(1, 2)", "(1, True)")), "The shape"),
        (with_header(GOOD.replace("(1, 2)", "(1, 10**9)")), "is no .npy file"),
        (with_header(GOOD.replace("(1, 2)", "(140737488355328, 2)")), "too many axes or elements"),
        (with_header(GOOD.replace("False", "0")), "is no .npy file"),
        (with_header(GOOD.replace("<f4", "|O")), "are not read"),
        (with_header(GOOD.replace("<f4", "|S0")), "are not read"),
        (with_header(GOOD.replace("<f4", "<f3")), "is no .npy file"),
        (with_header(GOOD.replace("<f4", "<M8[s]")), "are not read"),
        (with_header(GOOD.replace("'<f4'", "[('a', '<f4')]")), "are not read"),
        (with_header(GOOD.replace("'<f4'", "7")), "is no .npy file"),
    ],
)
def test_body_that_is_no_npy_file_is_malformed(body: bytes, complaint: str) -> None:
    """Damaged headers, objects and pickles are refused."""
    with pytest.raises(MalformedBody, match=complaint):
        decode_npy(body, ROWS)


@pytest.mark.parametrize(
    ("array", "info"),
    [
        (np.zeros((1, 3), np.float32), ROWS),
        (np.zeros((1, 2), bool), ROWS),
        (np.zeros((1, 2), "S3"), ROWS),
        (np.zeros(2, np.float32), WORDS),
        (np.zeros((1, 2), "U3"), WORDS),
    ],
)
def test_an_array_that_does_not_fit_is_refused(array: np.ndarray, info: TensorInfo) -> None:
    """Of another shape or kind."""
    with pytest.raises(InvalidInput):
        decode_npy(npy(array), info)


def test_strings_that_are_no_unicode_are_malformed() -> None:
    """Numpy's texts are numbers of four bytes, and not all of those are letters."""
    header = "{'descr': '<U1', 'fortran_order': False, 'shape': (1,)}"
    for code in (0xD800, 0x110000, 0xFFFFFFFF):
        with pytest.raises(MalformedBody, match="no Unicode"):
            decode_npy(with_header(header, struct.pack("<I", code)), WORDS)


@STEADY
@given(
    st.one_of(
        st.binary(max_size=64),
        st.binary(max_size=200).map(lambda header: with_header(header, bytes(8))),
        st.builds(
            lambda descr, shape, order, content: with_header(
                repr({"descr": descr, "fortran_order": order, "shape": shape}), content
            ),
            st.one_of(st.text(max_size=5), st.sampled_from(["<f4", ">i8", "|b1", "|S3", "<U2", "|V4"])),
            st.one_of(st.tuples(), st.lists(st.integers(-1, 1 << 50), max_size=4).map(tuple)),
            st.booleans(),
            st.binary(max_size=32),
        ),
    )
)
def test_random_bytes_give_an_array_or_a_refusal(body: bytes) -> None:
    """The array has the model's dtype, and the refusal is the caller's error."""
    for info in (ROWS, WORDS, TensorInfo("x", "int8", ())):
        try:
            array = decode_npy(body, info)
        except RequestError:
            continue
        assert info.fits(array.shape)
        assert array.dtype == (object if info.dtype == "string" else info.dtype)
