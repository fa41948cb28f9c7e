"""Rows of float32 that are read in C++: bit for bit what simdjson and numpy make of them, or left to those."""

from __future__ import annotations

import json
import random
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.interpreter_lock import releases_interpreter_lock

from stoker.errors import StokerError
from stoker.tensors import Signature, TensorSpec
from stoker.wire import scoring
from stoker.wire.native import SWITCH
from stoker.wire.scoring import ScoringDecoder

stoker_native = pytest.importorskip(
    "stoker_native", reason="stoker-native is not installed: no C++ compiler was found"
)

SHAPES = {"row": (3,), "image": (2, 2, 1), "number": ()}


def signature(*shape: int) -> Signature:
    return Signature((TensorSpec("x", "float32", shape),), (TensorSpec("y", "float32", (1,)),))


def decoders(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> tuple[ScoringDecoder, ScoringDecoder]:
    """One with the native reader, and one without."""
    monkeypatch.setattr(scoring, "float32_rows_into", stoker_native.float32_rows_into)
    native = ScoringDecoder(signature(*shape))
    monkeypatch.setattr(scoring, "float32_rows_into", None)
    return native, ScoringDecoder(signature(*shape))


def read(body: bytes, *row_shape: int) -> bytes | None:
    """The numbers of a body, none of which is written elsewhere."""
    values: bytes | None = stoker_native.float32_rows_into(body, None, *row_shape)
    return values


def result(decoder: ScoringDecoder, body: bytes, row_shape: tuple[int, ...] | None = None) -> Any:
    """The bits stored in the rows of the model, or the error.

    With a shape, the decoder gets memory of a row and writes there.
    """
    row = None if row_shape is None else np.full((1, *row_shape), np.nan, np.float32)
    try:
        (array,) = decoder.decode(body, None if row is None else memoryview(row.reshape(-1)).cast("B")) or [
            row
        ]
    except StokerError as error:
        return type(error), str(error)
    try:
        with np.errstate(over="raise"):
            return array.shape, array.astype(np.float32).tobytes()
    except FloatingPointError:
        return "too large"


def _of_bits(chance: random.Random) -> str:
    value = struct.unpack("<d", chance.randbytes(8))[0]
    return repr(value) if value - value == 0 else "1.5"


def _between_floats(chance: random.Random) -> str:
    """The middle of two floats: exact as a double, rounded to the even one as a float."""
    low = np.float32(chance.uniform(-1e6, 1e6))
    return repr((float(low) + float(np.nextafter(low, np.float32(np.inf)))) / 2)


NUMBERS: dict[str, Callable[[random.Random], str]] = {
    "shortest": lambda chance: repr(chance.random()),
    "any bits": _of_bits,
    "between floats": _between_floats,
    "pixels": lambda chance: str(chance.randrange(256) / 255),
    "integers": lambda chance: str(chance.randrange(-(2**70), 2**70) >> chance.randrange(70)),
    "many digits": lambda chance: f"{chance.uniform(-1, 1):.{chance.randrange(1, 30)}f}",
    "exponents": lambda chance: (
        f"{chance.randrange(10 ** chance.randrange(1, 24))}e{chance.randrange(-60, 40):+d}"
    ),
    "small": lambda chance: f"-0.{'0' * chance.randrange(50)}{chance.randrange(10**9)}E0",
}


@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_are_those_of_the_other_reader(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each to the last bit, however it is written; hardly one is left to the other."""
    chance = random.Random(kind)
    native, plain = decoders((), monkeypatch)
    taken = 0
    for _ in range(1000):
        body = f'{{"data": [{NUMBERS[kind](chance)}]}}'.encode()
        taken += read(body) is not None
        assert result(native, body) == result(native, body, ()) == result(plain, body), body
    assert taken > (150 if kind == "any bits" else 500)


SHORT: dict[str, Callable[[random.Random], str]] = {
    "decimals": lambda chance: f"{chance.uniform(-9.9, 9.9):.{chance.randrange(1, 9)}f}",
    "whole": lambda chance: str(
        chance.randrange(-(10 ** chance.randrange(9)), 10 ** chance.randrange(9) + 1)
    ),
    "zeros": lambda chance: chance.choice(("0", "-0", "0.0", "-0.0", "0.00000000", "-0.00000001")),
}


@pytest.mark.parametrize("kind", SHORT)
def test_short_numbers_of_long_lists_are_those_of_the_other_reader(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are read by their separators, with longer ones and spaces between them, to the last bit."""
    chance = random.Random(kind)
    native, plain = decoders((40,), monkeypatch)
    for longs in (0, 1, 8, 40):
        kinds = [SHORT[kind]] * 40 + [*NUMBERS.values()] * longs
        for _ in range(100):
            rows = [
                [chance.choice(kinds)(chance) for _ in range(40)] for _ in range(chance.choice((1, 1, 3)))
            ]
            comma = chance.choice((",", ",", ", ", " ,", ",\n  "))
            body = f'{{"data":[{",".join(f"[{comma.join(row)}]" for row in rows)}]}}'.encode()
            assert longs or read(body, 40) is not None, body
            assert result(native, body) == result(native, body, (40,)) == result(plain, body), body


def test_damaged_long_lists_have_one_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a byte of a list of short numbers is lost, doubled, or another one."""
    chance = random.Random(40)
    native, plain = decoders((40,), monkeypatch)
    numbers = [SHORT[chance.choice([*SHORT])](chance) for _ in range(40)]
    whole = f'{{"data":[[{",".join(numbers)}]]}}'.encode()
    for place in range(len(whole)):
        for piece in (b"", whole[place : place + 1] * 2, *(b"%c" % byte for byte in b"[],. -0:;e\0\xac")):
            body = whole[:place] + piece + whole[place + 1 :]
            assert result(native, body) == result(native, body, (40,)) == result(plain, body), body


@pytest.mark.parametrize("name", SHAPES)
def test_both_readers_have_one_result(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For bodies that fit, and for those that have lost, doubled or changed some bytes."""
    chance = random.Random(name)
    shape = SHAPES[name]
    native, plain = decoders(shape, monkeypatch)

    def lists(sizes: tuple[int, ...]) -> Any:
        if not sizes:
            return chance.choice((0, -1, 2.5, 1e-3, 255, 1e39, -0.0))
        return [lists(sizes[1:]) for _ in range(sizes[0])]

    for _ in range(1500):
        rows = lists((chance.choice((0, 1, 1, 2, 5)), *shape))
        body = bytearray(json.dumps({"data": rows}, indent=chance.choice((None, None, 1))).encode())
        for _ in range(chance.choice((0, 1, 1, 2))):
            start = chance.randrange(len(body))
            piece = body[start : start + chance.choice((1, 1, 8))]
            changed = chance.choice(
                (b"", piece + piece, b"[", b"]", b",", b"7", b".", b"-", b"e", b"\0", b"\xc3", b" ")
            )
            body[start : start + len(piece)] = changed
        whole = bytes(body)
        assert result(native, whole) == result(native, whole, shape) == result(plain, whole), whole


@pytest.mark.parametrize(
    "body",
    [
        b'{"data": [[1, 2, 3]]}',
        b' {\n"data" :\t[ [1 ,2,  3.5e0 ] , [0.5,\r\n-2E-3, 1e+4]\n] } ',
        b'{"data":[[0.1234567890123456,12345678.12345678,0.00000001],[1,2,3]]}',
    ],
)
def test_rows_are_taken(body: bytes) -> None:
    """With the spaces that JSON may have, and digits eight at a time."""
    values = read(body, 3)
    assert values is not None
    expected = np.array(json.loads(body)["data"]).astype(np.float32)
    assert np.frombuffer(values, np.float32).tolist() == expected.ravel().tolist()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[[1,2,3]]",
        b'{"data": []}',
        b'{"data": [[]]}',
        b'{"data": [[1,2,3]], "x": 1}',
        b'{"data": [[1,2,3]], "data": [[1,2,3]]}',
        b'{"other": [[1,2,3]]}',
        b'{"data": [[1,2],[3,4,5,6]]}',
        b'{"data": [1,2,3]}',
        b'{"data": [[[1,2,3]]]}',
        b'{"data": [[1,2,true]]}',
        b'{"data": [[1,2,"3"]]}',
        b'{"data": [[1,2,NaN]]}',
        b'{"data": [[1,2,03]]}',
        b'{"data": [[1,2,.3]]}',
        b'{"data": [[1,2,3.]]}',
        b'{"data": [[1,2,+3]]}',
        b'{"data": [[1,2,3e]]}',
        b'{"data": [[1,2,1e39]]}',
        b'{"data": [[1,2,1e999999999999]]}',
        b'{"data": [[1,2,1234567890123456789]]}',
        b'{"data": [[1,2,3]]}\0',
        b'{"data": [[1,2,3]]} {}',
        b'\xef\xbb\xbf{"data": [[1,2,3]]}',
    ],
)
def test_other_bodies_are_left_to_other_readers(body: bytes) -> None:
    """The fast reader gives None for each."""
    assert read(body, 3) is None


def test_its_arguments_are_checked() -> None:
    """A fault of the caller's raises; sizes that nothing can have are no body's."""
    with pytest.raises(TypeError):
        stoker_native.float32_rows_into()
    with pytest.raises(TypeError):
        stoker_native.float32_rows_into(b"{}")
    with pytest.raises(TypeError):
        stoker_native.float32_rows_into("{}", None, 3)
    with pytest.raises(ValueError, match="1 or more"):
        read(b'{"data": [[1]]}', 0)
    with pytest.raises(OverflowError):
        read(b'{"data": [[1]]}', 1 << 70)
    assert read(b'{"data": [[1]]}', 1 << 62, 1 << 62) is None


@pytest.mark.parametrize(
    ("memory", "kind"),
    [
        (memoryview(bytearray(12)), ValueError),
        (memoryview(bytearray(4)), ValueError),
        (memoryview(bytearray(16))[1:9], ValueError),
        (memoryview(bytes(8)), BufferError),
        (8, TypeError),
    ],
)
def test_memory_that_is_no_row_is_refused(memory: object, kind: type[Exception]) -> None:
    """It has the size of a row, lies as floats do, and may be written; nothing is written beside it."""
    with pytest.raises(kind):
        stoker_native.float32_rows_into(b'{"data": [[1, 2]]}', memory, 2)


def test_single_row_is_written_in_place() -> None:
    """Only that memory is written; several rows, and rows of another size, come back as without memory."""
    rows = np.full((3, 2), -1, np.float32)
    middle = memoryview(rows.reshape(-1)).cast("B")[8:16]
    assert stoker_native.float32_rows_into(b'{"data": [[1, 2], [3, 4]]}', middle, 2) == read(
        b'{"data": [[1, 2], [3, 4]]}', 2
    )
    assert stoker_native.float32_rows_into(b'{"data": [[1, 2, 3]]}', middle, 2) is None
    assert (rows == -1).all()
    assert stoker_native.float32_rows_into(b'{"data": [[1, 2]]}', middle, 2) == b""
    assert rows.tolist() == [[-1, -1], [1, 2], [-1, -1]]
    middle.release()


def test_a_variable_leaves_it_out() -> None:
    """The server then runs as without the package."""
    code = "from stoker.wire import nested_lists as it, resizing; print(it.float32_rows_into, "
    code += "resizing.resize_rgb, it.native_rows_note())"
    for value, word in (("0", "None None rows are read by simdjson"), ("1", "in C++")):
        run = subprocess.run(
            [sys.executable, "-c", code], env={SWITCH: value}, capture_output=True, text=True, check=True
        )
        assert word in run.stdout


def test_note_says_why_rows_are_not_read_in_c_plus_plus(tmp_path: Path) -> None:
    """The package without its extension is there after an installation without a compiler."""
    code = "from stoker.wire import nested_lists, resizing; print(resizing.resize_rgb, "
    code += "nested_lists.native_rows_note())"
    (tmp_path / "stoker_native").mkdir()
    package = Path(stoker_native.__file__).read_bytes()
    (tmp_path / "stoker_native" / "__init__.py").write_bytes(package)
    process = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert process.stdout.startswith("None rows are read by simdjson: there was no C++17 compiler when")


def test_long_bodies_are_read_without_the_interpreter_lock() -> None:
    """Another thread runs while a long body is read."""
    body = b'{"data": [[' + b"1, " * 200_000 + b"1]]}"
    assert releases_interpreter_lock(lambda: read(body, 200_001))
