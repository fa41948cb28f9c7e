"""The Azure scoring protocol's JSON: `{"data": [row, ...]}` in, a list with one entry per row out.

Decoding has two paths with the same result. On the fast one, simdjson flattens all numbers of an input into one
buffer, and the brackets alone prove that they were rows of the right shape. Everything that it cannot prove (other
keys, duplicate keys, booleans, any mistake) takes the careful path, which walks through Python lists and reports what
is wrong and where. Before both, rows of float32 are read in C++ if `stoker-native` is installed; bodies that it
refuses continue as if it were not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import orjson
import simdjson

from stoker.errors import InvalidInput, quoted_names
from stoker.settings.choices import WORDS, NonFinite
from stoker.tensors import Signature, TensorSpec
from stoker.wire.json_bodies import MAX_VALUES, check_values, dump, kind_of, parse_document, to_lists
from stoker.wire.nested_lists import (
    BUFFERS,
    KEPT_BYTES,
    elements_of,
    float32_rows_into,
    holds_structure,
    numbers,
    pattern,
    structure,
)
from stoker.wire.tables import data_of

_OPEN: Final = ord("[")
_FLOAT32: Final = np.dtype(np.float32)


class ScoringDecoder:
    """Decodes the scoring bodies of one signature. Not thread-safe: it reuses its parser's memory.

    Attributes:
        reads_natively: Whether `stoker-native` may read the rows.
    """

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        self._parser = simdjson.Parser()
        self._spec: TensorSpec | None = None
        self._columns: dict[str, TensorSpec] = {}
        self._native = float32_rows_into if _is_native(signature) else None
        self.reads_natively = self._native is not None
        if not all(spec.kind in BUFFERS for spec in signature.inputs):
            return
        if len(signature.inputs) == 1:
            self._spec = signature.inputs[0]
            self._buffer_type, self._buffer_dtype = BUFFERS[self._spec.kind]
            self._row_bytes = self._spec.row_bytes
            self._one_row = (1, *self._spec.shape)
        elif not any(holds_structure(spec.name) for spec in signature.inputs):
            # Otherwise brackets in the names would count as structure.
            self._columns = {spec.name: spec for spec in signature.inputs}

    def decode(self, body: bytes, row: memoryview | None = None) -> list[np.ndarray]:
        """Return per input an array `[rows, *row_shape]` of float32, float64, int64, uint64 or bool.

        Args:
            row: Memory for one row of the only input. If a single row was written there, the returned list is empty;
                otherwise the memory may have been overwritten all the same.
        """
        if self._spec is not None or self._columns:
            if len(body) > MAX_VALUES:
                check_values(body)
            if self.reads_natively and (rows := self.native_rows(body, row)) is not None:
                return rows
            arrays = self._decode_fast(body, self._spec)
            if len(body) > KEPT_BYTES:
                self._parser = simdjson.Parser()
            if arrays is not None:
                return arrays
        return decode_document(parse_document(body), self._signature)

    def native_rows(self, body: bytes, row: memoryview | None = None) -> list[np.ndarray] | None:
        """Read rows in C++, if `reads_natively`; None for bodies that `decode` has to read.

        The arguments are those of `decode`. Thread-safe. A long body is read without Python's interpreter lock.
        """
        assert self._native is not None
        assert self._spec is not None
        values = self._native(body, row, *self._spec.shape)
        if not values:
            return None if values is None else []
        rows = len(values) // self._row_bytes
        shape = self._one_row if rows == 1 else (rows, *self._spec.shape)
        return [np.ndarray(shape, _FLOAT32, values)]

    def _decode_fast(self, body: bytes, spec: TensorSpec | None) -> list[np.ndarray] | None:
        try:
            document: Any = self._parser.parse(body)
            if len(document) != 1:
                return None
            data: Any = document["data"]
            if spec is None:
                return self._decode_columns(body, data)
            count = len(data)
            if not count:
                return None
            values = memoryview(data.as_buffer(of_type=self._buffer_type))
            if values.nbytes != count * spec.elements * 8 or not _is_regular(body, data, count, spec.shape):
                return None
            return [np.ndarray((count, *spec.shape), self._buffer_dtype, values)]
        except (ValueError, TypeError, KeyError, AttributeError, RuntimeError):
            return None
        finally:
            # simdjson refuses to parse while anything refers to its last document.
            document = data = None

    def _decode_columns(self, body: bytes, data: Any) -> list[np.ndarray] | None:
        """Decode several inputs, each in a buffer of its own; None if their shapes cannot be proved."""
        if len(data) != len(self._columns):
            return None
        arrays: dict[str, np.ndarray] = {}
        patterns = []
        for name in data.keys():  # noqa: SIM118  # it is no dict
            if name in arrays:
                return None
            spec, rows = self._columns[name], data[name]
            count = len(rows)
            buffer_type, dtype = BUFFERS[spec.kind]
            values = memoryview(rows.as_buffer(of_type=buffer_type))
            if not count or values.nbytes != count * spec.elements * 8:
                return None
            arrays[name] = np.ndarray((count, *spec.shape), dtype, values)
            patterns.append(pattern((count, *spec.shape)))
        if len(set(map(len, arrays.values()))) > 1:
            return None
        if structure(body) != b",".join(patterns):
            return None
        return [arrays[name] for name in self._columns]


def _is_native(signature: Signature) -> bool:
    """Return whether the native reader supports the only input."""
    spec, *others = signature.inputs
    return not others and spec.dtype == "float32" and spec.elements > 0


def _is_regular(body: bytes, data: Any, count: int, shape: tuple[int, ...]) -> bool:
    """Return whether the numbers for `count` rows of `shape` were written as such rows."""
    if len(shape) != 1:
        return structure(body) == pattern((count, *shape))
    if count == 1:
        # The second opening bracket is the last one, and its row has all the numbers.
        second = body.find(b"[", body.find(b"[") + 1)
        return body.rfind(b"[") == second and len(data[0]) == shape[0]
    width = shape[0]
    opened = np.count_nonzero(np.frombuffer(body, np.uint8) == _OPEN)
    return bool(opened == count + 1) and all(len(row) == width for row in data)


def decode_document(document: Any, signature: Signature) -> list[np.ndarray]:
    """Do what `ScoringDecoder.decode` does for a parsed body; raises InvalidInput."""
    if not isinstance(document, dict):
        raise InvalidInput(f'Expected a JSON object with the key "data", got {kind_of(document)}.')
    if "data" in document:
        data = document["data"]
    elif "input_data" in document:
        data = data_of(document, signature.inputs)
    else:
        raise InvalidInput('The key "data" is missing; expected {"data": [row, ...]}.')
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
            f"missing: {', '.join(missing) or 'none'}; unknown: {quoted_names(unknown) or 'none'}."
        )
    arrays = [_rows(data[spec.name], spec, f'"{spec.name}"') for spec in signature.inputs]
    if len({len(array) for array in arrays}) > 1:
        raise InvalidInput.different_rows(zip(names, map(len, arrays), strict=True))
    return arrays


def _rows(data: Any, spec: TensorSpec, where: str) -> np.ndarray:
    expected = f"expected rows of {spec.describe_row()}"
    if not isinstance(data, list):
        raise InvalidInput(f"{where} must be a list of rows, got {kind_of(data)}; {expected}.")
    if not data:
        raise InvalidInput(f"{where} holds no rows; {expected}.")
    array = _array(data, spec)
    if array is not None:
        return array
    index = _first_misfit(data, spec)
    problem = _row_problem(data[index], spec.shape, spec.kind)
    if problem is None:
        raise InvalidInput(f"{where}: a number does not fit {spec.dtype}.")
    raise InvalidInput(f"{where}: {expected}, row {index} {problem}.")


def _array(rows: list[Any], spec: TensorSpec) -> np.ndarray | None:
    """Return rows as an array; None if one of them does not fit."""
    try:
        elements = elements_of(rows)
        if elements.shape[1:] != spec.shape:
            return None
        return numbers(elements, spec.kind).reshape(elements.shape)
    except (ValueError, TypeError, OverflowError):
        return None


def _first_misfit(rows: list[Any], spec: TensorSpec) -> int:
    """Return the index of the first row that does not fit; there is one."""
    low, high = 0, len(rows)
    # By bisection, because checking each of a million rows takes a second.
    while high - low > 1:
        middle = (low + high) // 2
        if _array(rows[low:middle], spec) is None:
            high = middle
        else:
            low = middle
    return low


def _row_problem(value: Any, shape: tuple[int, ...], kind: str) -> str | None:
    """Return what is wrong with a row, as the end of a sentence, or None."""
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
    if kind != "f" and isinstance(value, float):
        return f"has {value!r}, expected an integer"
    return "has a negative number" if kind == "u" and value < 0 else None


def encode_outputs(
    specs: Sequence[TensorSpec], outputs: Sequence[np.ndarray], non_finite: NonFinite = WORDS
) -> bytes:
    """Return the JSON of an answer: the rows of the only output, or an object of outputs by name.

    NaN and infinities are written as `NaN`, `Infinity` and `-Infinity` by default, as by the Azure server.
    """
    if len(outputs) == 1:
        return dump(outputs[0], non_finite)
    named = {spec.name: array for spec, array in zip(specs, outputs, strict=True)}
    return dump(named, non_finite)


def encode_each(rows: np.ndarray, non_finite: NonFinite = WORDS) -> list[bytes]:
    """Return for each row of `[rows, *row_shape]` the result of `encode_outputs` for that row alone."""
    text = orjson.dumps(rows, default=to_lists, option=orjson.OPT_SERIALIZE_NUMPY)
    if b"null" in text or not rows.size:
        return [dump(rows[index : index + 1], non_finite) for index in range(len(rows))]
    depth = rows.ndim - 1
    opening, closing = b"[" * (1 + depth), b"]" * (1 + depth)
    texts = text[1 + depth : -1 - depth].split(closing[1:] + b"," + opening[1:])
    return [opening + row + closing for row in texts]


def encode_texts(texts: Sequence[bytes]) -> bytes:
    """Join rows that are JSON texts into a list."""
    return b"[" + b",".join(texts) + b"]"
