"""The Azure scoring protocol's JSON: `{"data": [row, ...]}` in, a list with one entry per row out.

Decoding has two paths with the same verdict. The fast one lets simdjson flatten all numbers of the document
into one buffer and proves from the brackets alone that they were rows of the right shape. Whatever it
cannot prove (other keys, duplicate keys, several inputs, any mistake) goes to the careful one, which walks
Python lists and says what is wrong and where.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import orjson
import simdjson

from stoker.errors import BodyTooLarge, InvalidInput, MalformedBody
from stoker.tensors import Signature, TensorSpec

__all__ = [
    "ScoringDecoder",
    "check_slow",
    "check_text",
    "check_values",
    "decode_document",
    "encode_each",
    "encode_outputs",
    "encode_texts",
    "finite",
    "kind_of",
    "nesting_depth",
    "parse_document",
]

_MAX_DEPTH: Final = 100
_PIECE_BYTES: Final = 1 << 18
_MAX_VALUES: Final = 1 << 22
_MAX_WIDE_BYTES: Final = 48 << 20
_WIDE_LETTER: Final = re.compile(rb"[\xc4-\xf4]")
_MAX_SLOW_BYTES: Final = 16 << 20
_KEPT_BYTES: Final = 8 << 20
_BOM: Final = b"\xef\xbb\xbf"
_STRUCTURE: Final = b"[],"
_NOT_STRUCTURE: Final = bytes(byte for byte in range(256) if byte not in _STRUCTURE)
_BUFFERS: Final = {"f": ("d", np.float64), "i": ("i", np.int64), "u": ("u", np.uint64)}
_OPEN: Final = ord("[")


class ScoringDecoder:
    """Decodes the scoring bodies of one signature. Not thread-safe: it reuses its parser's memory."""

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        self._parser = simdjson.Parser()
        self._spec: TensorSpec | None = None
        if len(signature.inputs) == 1 and np.dtype(signature.inputs[0].dtype).kind in _BUFFERS:
            self._spec = signature.inputs[0]
            self._buffer_type, self._buffer_dtype = _BUFFERS[np.dtype(self._spec.dtype).kind]

    def decode(self, body: bytes) -> list[np.ndarray]:
        """Return per input an array `[rows, *row_shape]` of float64, int64, uint64 or bool.

        Raises:
            MalformedBody: The body is empty, not UTF-8, not JSON, nested too deeply, or holds NaN or infinities.
            InvalidInput: It has no `data`, no rows, or rows of the wrong shape or type; the message says
                what was expected and what came.
            BodyTooLarge: See `check_values`.
        """
        if self._spec is not None:
            if len(body) > _MAX_VALUES:
                check_values(body)
            rows = self._decode_fast(body, self._spec)
            if len(body) > _KEPT_BYTES:
                # A parser keeps the memory of its largest document, many times the document's.
                self._parser = simdjson.Parser()
            if rows is not None:
                return [rows]
        return decode_document(parse_document(body), self._signature)

    def _decode_fast(self, body: bytes, spec: TensorSpec) -> np.ndarray | None:
        try:
            document: Any = self._parser.parse(body)
            if len(document) != 1:
                return None
            data: Any = document["data"]
            count = len(data)
            if not count:
                return None
            numbers = memoryview(data.as_buffer(of_type=self._buffer_type))
            if numbers.nbytes != count * spec.elements * 8 or not _is_regular(body, data, count, spec.shape):
                return None
            return np.ndarray((count, *spec.shape), self._buffer_dtype, numbers)
        except (ValueError, TypeError, KeyError, AttributeError, RuntimeError):
            return None
        finally:
            # The parser refuses its next document while anything refers to the last one.
            document = data = None


def _is_regular(body: bytes, data: Any, count: int, shape: tuple[int, ...]) -> bool:
    """Whether as many numbers as `count` rows of `shape` have were written as such rows."""
    if len(shape) != 1:
        return body.translate(None, _NOT_STRUCTURE) == _pattern((count, *shape))
    if count == 1:
        # The second bracket that opens is the last one, and that row has all the numbers.
        second = body.find(b"[", body.find(b"[") + 1)
        return body.rfind(b"[") == second and len(data[0]) == shape[0]
    width = shape[0]
    opened = np.count_nonzero(np.frombuffer(body, np.uint8) == _OPEN)
    return bool(opened == count + 1) and all(len(row) == width for row in data)


def _pattern(shape: Sequence[int]) -> bytes:
    """The brackets and commas of a nested list of this shape."""
    pattern = b""
    for size in reversed(shape):
        pattern = b"[" + ((pattern + b",") * size)[:-1] + b"]"
    return pattern


def nesting_depth(body: bytes) -> int:
    """How deeply brackets and braces are nested in a JSON text, for bodies that nobody has parsed yet.

    Brackets inside strings count too: the result is an upper bound, which is enough to refuse a body.
    """
    codes = np.frombuffer(body, np.uint8)
    depth = deepest = 0
    # Piece by piece, for what is made of a whole body here would be many times as large.
    for start in range(0, len(codes), _PIECE_BYTES):
        # "[" and "{" differ from "]" and "}" by 2; both pairs map to one code with bit 5 cleared.
        folded = codes[start : start + _PIECE_BYTES] & 0xDF
        steps = (folded == 0x5B).astype(np.int32) - (folded == 0x5D)
        levels = np.cumsum(steps, dtype=np.int32)
        deepest = max(deepest, depth + int(levels.max()))
        depth += int(levels[-1])
    return deepest


def check_values(body: bytes) -> None:
    """Refuse JSON of so many values that what is made of them would take many times the body's memory.

    A number or a list counts once, a string three times, an object more often: once for some 50 bytes of memory.

    Raises:
        BodyTooLarge: There are more than four million; or a long text has a letter for which Python takes two or four
            bytes for each of its letters.
    """
    if len(body) <= _MAX_VALUES:
        return
    if len(body) > _MAX_WIDE_BYTES and not body.isascii() and _WIDE_LETTER.search(body):
        raise BodyTooLarge(
            f"JSON with letters beyond U+00FF is read up to {_MAX_WIDE_BYTES >> 20} MiB; send it in parts, or as "
            "binary data."
        )
    # What stands in strings counts too.
    count = sum(map(body.count, (b",", b"[", b":", b'"'))) + 3 * body.count(b"{")
    if count > _MAX_VALUES:
        raise BodyTooLarge(
            f"The request body holds more than {_MAX_VALUES} JSON values; send it in parts, or as binary data."
        )


def check_slow(body: bytes) -> None:
    """Refuse what only Python's own parser of JSON reads, if it is long: nobody else is served meanwhile.

    Raises:
        BodyTooLarge: It has more than 16 MiB.
    """
    if len(body) > _MAX_SLOW_BYTES:
        raise BodyTooLarge(
            f"JSON with the words NaN or Infinity, or with something behind it, is read up to "
            f"{_MAX_SLOW_BYTES >> 20} MiB; send it in parts, or as binary data."
        )


def decode_document(document: Any, signature: Signature) -> list[np.ndarray]:
    """`ScoringDecoder.decode` for a body that has been parsed; raises InvalidInput."""
    if not isinstance(document, dict):
        raise InvalidInput(f'Expected a JSON object with the key "data", got {kind_of(document)}.')
    if "data" not in document:
        raise InvalidInput('The key "data" is missing; expected {"data": [row, ...]}.')
    data = document["data"]
    if len(signature.inputs) == 1:
        return [_rows(data, signature.inputs[0], '"data"')]
    names = [spec.name for spec in signature.inputs]
    if not isinstance(data, dict):
        raise InvalidInput(
            f'"data" must be an object with the inputs {", ".join(names)}, got {kind_of(data)}.'
        )
    missing = [name for name in names if name not in data]
    unknown = [name for name in data if name not in names]
    if missing or unknown:
        raise InvalidInput(
            f'"data" must hold the inputs {", ".join(names)}; '
            f"missing: {', '.join(missing) or 'none'}; unknown: {', '.join(map(repr, unknown)) or 'none'}."
        )
    arrays = [_rows(data[spec.name], spec, f'"{spec.name}"') for spec in signature.inputs]
    if len({len(array) for array in arrays}) > 1:
        counts = ", ".join(f"{name} {len(array)}" for name, array in zip(names, arrays, strict=True))
        raise InvalidInput(f"All inputs must have the same number of rows, got: {counts}.")
    return arrays


def parse_document(body: bytes) -> Any:
    """Parse a JSON body that is nested at most 100 levels deep.

    Raises:
        MalformedBody: It is empty, not UTF-8, not JSON, nested too deeply, or holds NaN or infinities.
        BodyTooLarge: See `check_values`.
    """
    if not body:
        raise MalformedBody("The request body is empty.")
    if nesting_depth(body) > _MAX_DEPTH:
        raise MalformedBody(f"The request body is nested more than {_MAX_DEPTH} levels deep.")
    check_values(body)
    try:
        return orjson.loads(body.removeprefix(_BOM))
    except orjson.JSONDecodeError as error:
        check_text(body)
        if b"NaN" in body or b"Infinity" in body:
            raise MalformedBody(
                "The request body is not valid JSON: NaN and Infinity are not numbers."
            ) from None
        raise MalformedBody(f"Request body is not valid JSON: {error}") from None


def finite(number: str) -> float:
    """Read a number of a JSON text that may hold the token Infinity: digits must not mean it.

    Raises:
        ValueError: It is too large for a double.
    """
    value = float(number)
    if math.isinf(value):
        raise ValueError("a number is too large")
    return value


def check_text(body: bytes) -> None:
    """Raise MalformedBody unless the body is UTF-8."""
    if body.isascii():
        return
    try:
        body.decode()
    except UnicodeDecodeError as error:
        # The text of the Azure inference server.
        raise MalformedBody(f"Input cannot be decoded as UTF-8: {error}") from None


def _rows(data: Any, spec: TensorSpec, where: str) -> np.ndarray:
    expected = f"expected rows of {spec.describe_row()}"
    if not isinstance(data, list):
        raise InvalidInput(f"{where} must be a list of rows, got {kind_of(data)}; {expected}.")
    if not data:
        raise InvalidInput(f"{where} holds no rows; {expected}.")
    for index, row in enumerate(data):
        problem = _row_problem(row, spec.shape, np.dtype(spec.dtype).kind)
        if problem is not None:
            raise InvalidInput(f"{where}: {expected}, row {index} {problem}.")
    kind = np.dtype(spec.dtype).kind
    dtype = np.dtype(bool) if kind == "b" else np.dtype(_BUFFERS[kind][1])
    try:
        return np.array(data, dtype)
    except OverflowError:
        raise InvalidInput(f"{where}: a number does not fit {spec.dtype}.") from None


def _row_problem(value: Any, shape: tuple[int, ...], kind: str) -> str | None:
    """What is wrong with a row, as the end of a sentence, or None."""
    if not shape:
        return _number_problem(value, kind)
    if not isinstance(value, list):
        return f"has {kind_of(value)} where a list of {shape[0]} was expected"
    if len(value) != shape[0]:
        return f"has {len(value)}"
    for item in value:
        problem = _row_problem(item, shape[1:], kind)
        if problem is not None:
            return problem
    return None


def _number_problem(value: Any, kind: str) -> str | None:
    if kind == "b":
        return None if isinstance(value, bool) else f"has {kind_of(value)}, expected true or false"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"has {kind_of(value)}, expected a number"
    if kind == "f":
        return None if math.isfinite(value) else "has a number that is too large"
    if isinstance(value, float):
        return f"has {value!r}, expected an integer"
    return "has a negative number" if kind == "u" and value < 0 else None


def kind_of(value: Any) -> str:
    """Say in words what a JSON value is."""
    match value:
        case None:
            return "null"
        case bool():
            return json.dumps(value)
        case str():
            return "a string"
        case int() | float():
            return "a number"
        case list():
            return f"a list of {len(value)}"
        case _:
            return "an object"


def encode_outputs(specs: Sequence[TensorSpec], outputs: Sequence[np.ndarray]) -> bytes:
    """Return the answer's JSON: the rows of the only output, or an object of outputs by name.

    NaN and infinities are written as the tokens `NaN`, `Infinity` and `-Infinity`, as the Azure server does.
    """
    if len(outputs) == 1:
        return _dump(outputs[0])
    named = {spec.name: array for spec, array in zip(specs, outputs, strict=True)}
    text = orjson.dumps(named, default=_plain, option=orjson.OPT_SERIALIZE_NUMPY)
    if b"null" in text:
        return json.dumps({name: array.tolist() for name, array in named.items()}).encode()
    return text


def encode_each(rows: np.ndarray) -> list[bytes]:
    """Return for each row of `[rows, *row_shape]` what `encode_outputs` gives for that row alone."""
    text = orjson.dumps(rows, default=_plain, option=orjson.OPT_SERIALIZE_NUMPY)
    if b"null" in text or not rows.size:
        return [_dump(rows[index : index + 1]) for index in range(len(rows))]
    depth = rows.ndim - 1
    opening, closing = b"[" * depth, b"]" * depth
    texts = text[1 + depth : -1 - depth].split(closing + b"," + opening)
    return [b"[" + opening + row + closing + b"]" for row in texts]


def _dump(array: np.ndarray) -> bytes:
    text = orjson.dumps(array, default=_plain, option=orjson.OPT_SERIALIZE_NUMPY)
    # orjson writes what is not finite as null.
    return json.dumps(array.tolist()).encode() if b"null" in text else text


def _plain(value: Any) -> Any:
    # orjson takes only C-contiguous arrays of some dtypes.
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(type(value).__name__)


def encode_texts(texts: Sequence[bytes]) -> bytes:
    """Join rows that are JSON texts already into a list."""
    return b"[" + b",".join(texts) + b"]"
