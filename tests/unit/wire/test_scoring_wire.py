"""The Azure scoring protocol's JSON, against a slow reference written here with the standard library."""

import json
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tests.puppets import STEADY

from stoker.errors import BodyTooLarge, InvalidInput, MalformedBody
from stoker.tensors import Signature, TensorSpec
from stoker.wire import scoring
from stoker.wire.json_bodies import nesting_depth, parse_document
from stoker.wire.scoring import ScoringDecoder, encode_each, encode_outputs, encode_texts

BOM = b"\xef\xbb\xbf"


def one_input(dtype: str, *shape: int) -> Signature:
    """A signature with one input."""
    return Signature((TensorSpec("x", dtype, shape),), (TensorSpec("y", "float32", (1,)),))


SIGNATURES = {
    str(signature): signature
    for signature in (
        *(one_input("float32", *shape) for shape in ((), (1,), (3,), (2, 2), (1, 1), (2, 1, 2), (0,))),
        one_input("float64", 4),
        one_input("float16", 2),
        *(one_input("int32", *shape) for shape in ((), (2,), (2, 2))),
        one_input("int64", 2),
        *(one_input("uint8", *shape) for shape in ((), (3,), (1, 2))),
        one_input("uint64", 2),
        *(one_input("bool", *shape) for shape in ((), (2,))),
        Signature(
            (TensorSpec("a", "float32", (2,)), TensorSpec("k", "int64", ()), TensorSpec("on", "bool", (1,))),
            (),
        ),
        Signature((TensorSpec("a", "float32", (2, 1)), TensorSpec("data", "uint8", (1,))), ()),
        Signature(
            (TensorSpec("a", "float32", ()), TensorSpec("k", "int64", ()), TensorSpec("on", "uint64", (2,))),
            (),
        ),
        Signature((TensorSpec("a[0],[", "float32", (1,)), TensorSpec("k", "float64", (1,))), ()),
    )
}


def plain_decoder(signature: Signature) -> ScoringDecoder:
    """A decoder without C++; test_native_rows.py compares the one with C++ to it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(scoring, "float32_rows_into", None)
        return ScoringDecoder(signature)


# As in a frontend, each decoder lives on from body to body.
DECODERS = {name: plain_decoder(signature) for name, signature in SIGNATURES.items()}
names = st.sampled_from(sorted(SIGNATURES))


class Refused(Exception):
    """The reference does not take the body."""


def reference(body: bytes, signature: Signature) -> list[Any]:
    """The nested lists of a body, one per input; slow and plain."""

    def no_constant(token: str) -> None:
        raise Refused(token)

    try:
        document = json.loads(body.removeprefix(BOM).decode(), parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        raise Refused(str(error)) from None
    if not isinstance(document, dict) or "data" not in document:
        raise Refused("no data")
    data = document["data"]
    if len(signature.inputs) == 1:
        return [reference_rows(data, signature.inputs[0])]
    if not isinstance(data, dict) or set(data) != {spec.name for spec in signature.inputs}:
        raise Refused("other inputs")
    columns = [reference_rows(data[spec.name], spec) for spec in signature.inputs]
    if len({len(rows) for rows in columns}) != 1:
        raise Refused("different numbers of rows")
    return columns


def reference_rows(data: Any, spec: TensorSpec) -> list[Any]:
    if not isinstance(data, list) or not data:
        raise Refused("no rows")
    kind = np.dtype(spec.dtype).kind
    return [reference_row(row, spec.shape, kind) for row in data]


def reference_row(value: Any, shape: Sequence[int], kind: str) -> Any:
    if not shape:
        return reference_number(value, kind)
    if not isinstance(value, list) or len(value) != shape[0]:
        raise Refused("another shape")
    return [reference_row(item, shape[1:], kind) for item in value]


def reference_number(value: Any, kind: str) -> Any:
    if kind == "b":
        if not isinstance(value, bool):
            raise Refused("no boolean")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Refused("no number")
    if kind == "f":
        if abs(value) > np.finfo(np.float64).max or not math.isfinite(value):
            raise Refused("no finite number")
        return float(value)
    low, high = (0, 2**64 - 1) if kind == "u" else (-(2**63), 2**63 - 1)
    if not isinstance(value, int) or not low <= value <= high:
        raise Refused("no integer of 64 bits")
    return value


def check_against_reference(name: str, body: bytes) -> None:
    """Decode a body; the result must be the reference's, or one of the two errors."""
    signature = SIGNATURES[name]
    try:
        decoded = DECODERS[name].decode(body)
    except (MalformedBody, InvalidInput):
        decoded = None
    try:
        expected = reference(body, signature)
    except Refused:
        assert decoded is None
        return
    if decoded is None:
        # Stricter than the standard library on purpose: depth, and escapes that are half a character.
        assert nesting_depth(body) > 100 or b"\\u" in body
        return
    assert len(decoded) == len(signature.inputs)
    for spec, array, rows in zip(signature.inputs, decoded, expected, strict=True):
        kind = np.dtype(spec.dtype).kind
        assert array.dtype == {"f": np.float64, "i": np.int64, "u": np.uint64, "b": np.bool_}[kind]
        assert array.shape == (len(rows), *spec.shape)
        assert array.tolist() == rows


def numbers(kind: str) -> st.SearchStrategy[Any]:
    """Numbers that an input of this kind takes."""
    match kind:
        case "b":
            return st.booleans()
        case "i":
            return st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3)
        case "u":
            return st.integers(0, 2**64 - 1) | st.integers(0, 3)
        case _:
            return st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**63), 2**64 - 1)


def nested(shape: Sequence[int], leaf: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Nested lists of this shape."""
    if not shape:
        return leaf
    return st.lists(nested(shape[1:], leaf), min_size=shape[0], max_size=shape[0])


@st.composite
def good_bodies(draw: st.DrawFn) -> tuple[str, bytes]:
    """A signature's name and a body that fits it, written with more or less white space and company."""
    name = draw(names)
    signature = SIGNATURES[name]
    count = draw(st.integers(1, 4))
    columns = {
        spec.name: draw(nested((count, *spec.shape), numbers(np.dtype(spec.dtype).kind)))
        for spec in signature.inputs
    }
    data = next(iter(columns.values())) if len(columns) == 1 else columns
    document = {"data": data}
    if draw(st.booleans()):
        document = {"id": "[{", **document, "global_parameters": {"data": [[1]]}}
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t: ")]))
    text = json.dumps(document, separators=separators).encode()
    return name, draw(st.sampled_from([b"", BOM, b" \n"])) + text + draw(st.sampled_from([b"", b"\r\n "]))


@STEADY
@given(good_bodies())
def test_good_bodies_are_read_as_the_reference_reads_them(case: tuple[str, bytes]) -> None:
    """The arrays hold the body's numbers for any shape, dtype, number of inputs and white space."""
    name, body = case
    reference(body, SIGNATURES[name])
    check_against_reference(name, body)


TOKENS = [
    b"[", b"]", b"[]", b"[[", b"]]", b"],[", b",", b"{", b"}", b"{}", b":", b'"', b'"data":', b'"data":[[1,2]],',
    b'"x":1,', b"null", b"true", b"false", b"0", b"1", b"-1", b"-", b".5", b"1.0", b"1e2", b"1e999", b"-1e400",
    b"123456789012345678901234567890", b"18446744073709551615", b"18446744073709551616", b"9223372036854775808",
    b"-9223372036854775809", b"NaN", b"Infinity", b"-Infinity", b'"1"', b'"\\ud800"', b"\xff", b"\x00", b"\xc3\xa9",
    BOM, b" ", b"\n", b"//", b"\\",
]  # fmt: skip
edits = st.tuples(st.integers(0, 400), st.integers(0, 6), st.sampled_from([b"", *TOKENS]))


@STEADY
@given(good_bodies(), st.lists(edits, min_size=1, max_size=4))
def test_mutated_bodies_are_never_misread(
    case: tuple[str, bytes], changes: list[tuple[int, int, bytes]]
) -> None:
    """A body that was cut, stuffed or bent is refused with one of two errors, or read as the reference reads it."""
    name, body = case
    for place, length, put in changes:
        start = place % (len(body) + 1)
        body = body[:start] + put + body[start + length :]
    check_against_reference(name, body)


odd_values = st.recursive(
    st.sampled_from([None, True, False, 0, 1, 2, -1, 1.5, 1e300, 10**30, 2**63, "", "[", "1"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["a", "k", "on", "data"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@STEADY
@given(names, odd_values)
@example("x float32[n,3] -> y float32[n,1]", [[], [1, 2, 3, 4, 5, 6]])
@example("x float32[n,3] -> y float32[n,1]", [[1, 2], [3, 4, 5, 6]])
@example("x float32[n,3] -> y float32[n,1]", [[1, 2, 3], [4, [5, 6]]])
@example("x float32[n,3] -> y float32[n,1]", [1, 2, 3])
@example("x float32[n,3] -> y float32[n,1]", [[[1, 2, 3]]])
@example("x float32[n,3] -> y float32[n,1]", [[[1], 2, 3]])
@example("x float32[n,3] -> y float32[n,1]", [[1, 2, 3], {"a": [4, 5, 6]}])
@example("x float32[n,1] -> y float32[n,1]", [1])
@example("x float32[n,1] -> y float32[n,1]", [[], 1])
@example("x float32[n,1] -> y float32[n,1]", [[[1]]])
@example("x float32[n,1,1] -> y float32[n,1]", [[1]])
@example("x float32[n,2,2] -> y float32[n,1]", [[[1], [2, 3, 4]]])
@example("x float32[n,2,2] -> y float32[n,1]", [[1, 2], [3, 4]])
@example("x float32[n,2,2] -> y float32[n,1]", [[[1, 2, 3], [4]]])
@example("x float32[n] -> y float32[n,1]", [[1]])
@example("x float32[n] -> y float32[n,1]", [[1, 2], 3])
@example("x float32[n] -> y float32[n,1]", [[], 1])
def test_odd_values_are_never_misread(name: str, data: Any) -> None:
    """Any JSON value in the place of the rows, ragged and wrongly nested lists above all."""
    check_against_reference(name, json.dumps({"data": data}).encode())


COLUMNS = "a float32[n], k int64[n], on uint64[n,2] -> "
odd_columns = st.lists(st.integers(0, 3) | odd_values, max_size=3)


@STEADY
@given(st.fixed_dictionaries({"a": odd_columns, "k": odd_columns, "on": odd_columns | odd_values}))
@example({"a": [1], "k": [2], "on": [[3], [4, 5]]})
@example({"a": [1, 2], "k": [1, 2], "on": [[1], [2, 3, 4]]})
@example({"a": [1, 2], "k": [1, 2], "on": [[[1, 2]], [3, 4]]})
@example({"a": [1, 2], "k": [1, 2], "on": [[1, 2], {"x": 3, "y": 4}]})
@example({"a": [[1], 2], "k": [1, 2], "on": [[1, 2], [3, 4]]})
@example({"a": [[1, 2]], "k": [1, 2], "on": [[1, 2], [3, 4]]})
@example({"a": [1, [], 2], "k": [1, 2, 3], "on": [[1, 2], [3, 4], [5, 6]]})
@example({"a": [1, 2], "k": [1], "on": [[1, 2], [3, 4]]})
@example({"a": [], "k": [], "on": []})
def test_odd_columns_are_never_misread(data: dict[str, Any]) -> None:
    """A fault in one input is found, with any other inputs beside it."""
    check_against_reference(COLUMNS, json.dumps({"data": data}).encode())


def test_a_column_that_comes_twice_is_read_once() -> None:
    """The last one counts, as for any parser of Python's."""
    body = b'{"data": {"a": [1], "k": [2], "on": [[3, 4]], "k": [5]}}'
    check_against_reference(COLUMNS, body)
    check_against_reference(COLUMNS, body.replace(b'"on": [[3, 4]], ', b""))


FAST = [
    name
    for name, signature in SIGNATURES.items()
    if all(spec.dtype != "bool" and spec.elements and "[" not in spec.name for spec in signature.inputs)
]


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("rows", [1, 2, 50])
def test_plain_bodies_take_the_fast_path(name: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual body, all inputs and nothing else, never becomes Python lists."""
    inputs = SIGNATURES[name].inputs
    monkeypatch.delattr(scoring, "decode_document")
    columns = {
        spec.name: np.arange(rows * spec.elements).reshape(rows, *spec.shape).tolist() for spec in inputs
    }
    backwards = dict(reversed(columns.items()))
    for data in (columns, backwards) if len(inputs) > 1 else columns.values():
        decoded = DECODERS[name].decode(json.dumps({"data": data}).encode())
        assert [array.tolist() for array in decoded] == list(columns.values())


@settings(STEADY, max_examples=100)
@given(good_bodies())
def test_both_paths_agree(case: tuple[str, bytes]) -> None:
    """The careful path gives the same arrays of the same dtypes."""
    name, body = case
    fast = DECODERS[name].decode(body)
    careful = scoring.decode_document(parse_document(body), SIGNATURES[name])
    for one, other in zip(fast, careful, strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert one.tolist() == other.tolist()


def test_arrays_outlive_the_next_bodies() -> None:
    """The parser's memory is reused; earlier arrays keep their contents, and decoding stays fast."""
    decoder = plain_decoder(one_input("float32", 3))
    kept = []
    for number in range(50):
        kept += decoder.decode(b'{"data": [[%d, 2, 3], [4, 5, 6]]}' % number)
        with pytest.raises(InvalidInput):
            decoder.decode(b'{"data": [[1, 2], [3]]}')
        with pytest.raises(MalformedBody):
            decoder.decode(b'{"data": [[1, 2')
    assert [array[0, 0] for array in kept] == list(range(50))


TWO_NUMBERS = one_input("float32", 2)
SEVERAL = SIGNATURES["a float32[n,2], k int64[n], on bool[n,1] -> "]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "The request body is empty."),
        (b'{"data": [[1, 2', "not valid JSON"),
        (b'{"data": [[1, 2]]} tail', "not valid JSON"),
        (b"{'data': [[1, 2]]}", "not valid JSON"),
        (b'{"data": [[1, 2],]}', "not valid JSON"),
        (b'{"data": [[01, 2]]}', "not valid JSON"),
        (b'{"data": [[NaN]]}', "NaN and Infinity are not numbers"),
        (b'{"data": [[-Infinity]]}', "NaN and Infinity are not numbers"),
        (b'{"data": [[1e999]]}', "infinity"),
        (b'{"data": ["\xff"]}', "decode byte 0xff in position 11: invalid start byte"),
        ('{"data": [[1]]}'.encode("utf-16"), "Input cannot be decoded as UTF-8"),
    ],
)
def test_body_that_is_no_json_is_malformed(body: bytes, message: str) -> None:
    """The error says how the text is cut, bent, or not text at all."""
    with pytest.raises(MalformedBody) as refused:
        plain_decoder(TWO_NUMBERS).decode(body)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("signature", "body", "message"),
    [
        (TWO_NUMBERS, b"[[1, 2]]", 'Expected a JSON object with the key "data", got a list of 1'),
        (TWO_NUMBERS, b"1", "got a number"),
        (TWO_NUMBERS, b'"data"', "got a string"),
        (TWO_NUMBERS, b'{"input": []}', 'The key "data" is missing'),
        (TWO_NUMBERS, b'{"data": {}}', "a list of rows, got an object; expected rows of 2 numbers"),
        (TWO_NUMBERS, b'{"data": null}', "got null"),
        (TWO_NUMBERS, b'{"data": true}', "got true"),
        (TWO_NUMBERS, b'{"data": []}', '"data" holds no rows; expected rows of 2 numbers.'),
        (TWO_NUMBERS, b'{"data": [1, 2]}', "row 0 has a number where a list of 2 was expected"),
        (TWO_NUMBERS, b'{"data": [[1,2],[1,2],[1,2],[1]]}', "expected rows of 2 numbers, row 3 has 1."),
        (TWO_NUMBERS, b'{"data": [[1,2],[1,"2"]]}', "row 1 has a string, expected a number"),
        (TWO_NUMBERS, b'{"data": [[1,2],[1,true]]}', "row 1 has true, expected a number"),
        (TWO_NUMBERS, b'{"data": [[1,2],[1,null]]}', "row 1 has null, expected a number"),
        (one_input("float32", 784), b'{"data": [[1,2]]}', "expected rows of 784 numbers, row 0 has 2."),
        (one_input("float32", 2, 2), b'{"data": [[[1,2],[3]]]}', "rows of 2 × 2 numbers, row 0 has 1."),
        (one_input("float32"), b'{"data": [1, [2]]}', "rows of one number, row 1 has a list of 1"),
        (one_input("int32", 2), b'{"data": [[1, 1.5]]}', "2 integers, row 0 has 1.5, expected an integer"),
        (one_input("int64"), b'{"data": [9223372036854775808]}', "a number does not fit int64"),
        (one_input("int64"), b'{"data": [%d]}' % 10**30, "expected an integer"),
        (one_input("uint8"), b'{"data": [-1]}', "row 0 has a negative number"),
        (one_input("bool", 1), b'{"data": [[1]]}', "row 0 has a number, expected true or false"),
        (SEVERAL, b'{"data": [[1]]}', "an object with the inputs a, k, on, got a list of 1"),
        (SEVERAL, b'{"data": {"a": [], "K": []}}', "missing: k, on; unknown: 'K'"),
        (SEVERAL, b'{"data": {"a": [[1,2]], "k": [1,2], "on": [[true]]}}', "got: a 1, k 2, on 1"),
        (SEVERAL, b'{"data": {"a": [[1,2]], "k": [1.5], "on": [[true]]}}', '"k": expected rows of one'),
    ],
)
def test_body_that_does_not_fit_the_model_is_invalid(signature: Signature, body: bytes, message: str) -> None:
    """The error of each mistake names the expected and the received form."""
    with pytest.raises(InvalidInput) as refused:
        plain_decoder(signature).decode(body)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("body", "rows"),
    [
        (b'{"data": [[1, 2]], "data": [[3, 4], [5, 6]]}', [[3, 4], [5, 6]]),
        (b'{"data": [[1, 2], [3, 4]], "data": [[5, 6]]}', [[5, 6]]),
        (b'{"data": "no", "data": [[5, 6]]}', [[5, 6]]),
        (b'{"\\u0064ata": [[5, 6]]}', [[5, 6]]),
        (b'{"DATA": 1, "data": [[5, 6]], "": {}}', [[5, 6]]),
        (BOM + b'{"data": [[5, 6]]}', [[5, 6]]),
        (b'{"data": [[1e300, -1E-400]]}', [[1e300, 0]]),
        (b'{"data": [[%d, 1.7976931348623157e308]]}' % 10**30, [[1e30, 1.7976931348623157e308]]),
        (b'{"data": [[-0.0, 9007199254740993]]}', [[0, 9007199254740992]]),
    ],
)
def test_unusual_json_is_read(body: bytes, rows: list[list[float]]) -> None:
    """Duplicate keys (the last one counts), escaped and other keys, a byte order mark, extreme numbers."""
    (array,) = plain_decoder(one_input("float32", 2)).decode(body)
    assert array.tolist() == rows


DEEP = 100_000


@pytest.mark.parametrize(
    "body",
    [
        b"[" * DEEP,
        b'{"data": ' + b"[" * DEEP + b"]" * DEEP + b"}",
        b'{"data": [[1, 2]], "x": ' + b"[" * DEEP + b"]" * DEEP + b"}",
        b'{"a":' * DEEP,
        b'{"a":' * DEEP + b"1" + b"}" * DEEP,
        b'{"x": "' + b"]" * DEEP + b'", "data": ' + b"[" * DEEP + b"]" * DEEP + b"}",
        b'{"data": [[1, 2]], "x": ' + b'[{"a":' * DEEP + b"1" + b"}]" * DEEP + b"}",
    ],
    ids=["open", "data", "beside", "objects", "closed objects", "hidden by a string", "mixed"],
)
@pytest.mark.parametrize("signature", [TWO_NUMBERS, one_input("bool", 2), SEVERAL], ids=str)
def test_deep_nesting_is_refused_at_once(signature: Signature, body: bytes) -> None:
    """100,000 brackets cost milliseconds and no stack."""
    decoder = plain_decoder(signature)
    begun_s = time.thread_time()
    with pytest.raises(MalformedBody):
        decoder.decode(body)
    assert time.thread_time() - begun_s < 1


OUTPUT_DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOAT_DTYPES = ["float16", "float32", "float64"]


@STEADY
@given(
    st.sampled_from([*OUTPUT_DTYPES, *FLOAT_DTYPES]).flatmap(
        lambda dtype: arrays(dtype, st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(1, 2)))
    )
)
def test_answers_round_trip(output: np.ndarray) -> None:
    """A caller reads back the model's numbers bit for bit, NaN and infinities included."""
    text = encode_outputs([TensorSpec("y", output.dtype.name, output.shape[1:])], [output])
    read = np.array(json.loads(text), output.dtype).reshape(output.shape)
    np.testing.assert_array_equal(read, output)
    assert len(json.loads(text)) == len(output)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_non_finite_numbers_are_written_as_by_azure(dtype: str) -> None:
    """NaN and infinities are the tokens that Python's json writes and reads."""
    output = np.array([[np.nan, np.inf, -np.inf, 0.5]], dtype)
    assert encode_outputs([TensorSpec("y", dtype, (4,))], [output]) == b"[[NaN, Infinity, -Infinity, 0.5]]"


@STEADY
@given(
    st.sampled_from([*OUTPUT_DTYPES, *FLOAT_DTYPES]).flatmap(
        lambda dtype: arrays(
            dtype,
            st.builds(
                lambda rows, row: (rows, *row), st.integers(1, 3), st.lists(st.integers(0, 3), max_size=3)
            ),
        )
    )
)
def test_rows_written_together_equal_rows_written_alone(output: np.ndarray) -> None:
    """One pass over the rows of many callers gives each the bytes that it would have got by itself."""
    spec = TensorSpec("y", output.dtype.name, output.shape[1:])
    alone = [encode_outputs([spec], [output[index : index + 1]]) for index in range(len(output))]
    assert encode_each(output) == alone


def test_float32_answers_are_short() -> None:
    """A float32 is written with the digits that it has, not with those of its double."""
    output = np.array([0.1, 1 / 3], np.float32)
    assert encode_outputs([TensorSpec("y", "float32", ())], [output]) == b"[0.1,0.33333334]"


def test_several_outputs_are_an_object() -> None:
    """Outputs go by their names, in the model's order, also where one of them is not finite."""
    specs = [TensorSpec("null", "float32", (1,)), TensorSpec("on", "bool", ())]
    for number, token in ((0.5, 0.5), (np.nan, "NaN")):
        outputs = [np.array([[number], [2]], np.float32), np.array([True, False])]
        read = json.loads(encode_outputs(specs, outputs), parse_constant=str)
        assert list(read) == ["null", "on"]
        assert read == {"null": [[token], [2.0]], "on": [True, False]}


def test_answers_need_not_be_contiguous() -> None:
    """A view of the arena and a transposed array are written like any other."""
    arena = np.arange(24, dtype=np.float32).reshape(6, 4)
    specs = [TensorSpec("y", "float32", (2,))]
    for view in (arena[::2, :2], arena[:2, :2].T, arena[1:2, 1:3], arena[:, :2].astype(np.float16)[::3]):
        assert json.loads(encode_outputs(specs, [view])) == view.tolist()


def test_json_rows_are_joined() -> None:
    """Texts of rows become one list without being parsed."""
    assert json.loads(encode_texts([b'{"a":1}', b"[2]", b'"3"'])) == [{"a": 1}, [2], "3"]
    assert encode_texts([b"1"]) == b"[1]"


@pytest.mark.parametrize("signature", [TWO_NUMBERS, SEVERAL], ids=str)
def test_more_values_than_memory_allows_are_refused(signature: Signature) -> None:
    """Before a parser that needs a dozen bytes for each of them has seen them."""
    with pytest.raises(BodyTooLarge, match="4194304 JSON values"):
        plain_decoder(signature).decode(b'{"data": [' + b"0," * (1 << 22) + b"0]}")
