"""Whole requests as rows: packing named tensors, and their JSON."""

import io
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes
from tests.puppets import STEADY, numbers

from stoker.errors import BodyTooLarge, InvalidInput, MalformedBody
from stoker.tensors import NUMERIC_DTYPES, ModelTensors, Signature, TensorInfo, TensorSpec
from stoker.wire import packed
from stoker.wire.array_bodies import decode_npy
from stoker.wire.oip_tensors import checked_shape
from stoker.wire.packed import check_string_count, join_strings, pack, signature_of, split_strings, unpack
from stoker.wire.tensor_json import as_tensor, decode_tensors, encode_tensors

SHAPES = array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)


@st.composite
def strings(draw: st.DrawFn) -> np.ndarray:
    """An array of byte strings."""
    shape = draw(SHAPES)
    array = np.empty(math.prod(shape), object)
    array[:] = draw(st.lists(st.binary(max_size=9), min_size=array.size, max_size=array.size))
    return array.reshape(shape)


TENSORS = st.one_of(
    st.sampled_from(sorted(NUMERIC_DTYPES)).flatmap(lambda dtype: numbers(dtype, SHAPES)), strings()
)


@STEADY
@given(st.dictionaries(st.text(max_size=5), TENSORS, max_size=4))
def test_packed_tensors_come_back(tensors: dict[str, np.ndarray]) -> None:
    """Names, order, dtypes, shapes and contents survive, bit for bit."""
    back = unpack(pack(tensors))
    assert list(back) == list(tensors)
    for name, array in tensors.items():
        assert (back[name].dtype, back[name].shape) == (array.dtype, array.shape)
        assert back[name].tolist() == array.tolist() or back[name].tobytes() == array.tobytes()


def test_row_names_its_signature() -> None:
    """The name follows the tensors, which stay unchanged; it is empty for the default signature."""
    tensors = {"x": np.arange(3, dtype=np.int8)}
    for name in ("", "embed", "é"):
        row = pack(tensors, name)
        assert signature_of(row) == signature_of(memoryview(row)) == name
        assert unpack(row)["x"].tolist() == [0, 1, 2]


def test_views_are_packed_as_they_look() -> None:
    """Neither strides nor byte order of the sender matter."""
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    for view in (array.T, array[::2, 1:], array[:, 0]):
        assert unpack(pack({"x": view}))["x"].tolist() == view.tolist()


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (b"", 1),
        (b"\0\0\0\0", 0),
        (b"\1\0\0\0", 1),
        (b"\1\0\0", 1),
        (b"\1\0\0\0a\0", 1),
        (b"\xff\xff\xff\xffa", 1),
        (b"\1\0\0\0a\1\0\0\0b", 1),
    ],
)
def test_strings_that_do_not_add_up_are_refused(data: bytes, count: int) -> None:
    """Too few, too many, or cut off."""
    with pytest.raises(ValueError, match="string"):
        split_strings(data, count)


@settings(STEADY, max_examples=100)
@given(st.lists(st.binary(max_size=20), max_size=6))
def test_strings_round_trip(elements: list[bytes]) -> None:
    """Lengths go before contents, so any bytes may be inside."""
    array = np.empty(len(elements), object)
    array[:] = elements
    assert split_strings(join_strings(array), len(elements)).tolist() == elements


WORDS = TensorInfo("words", "string", (-1, -1))
IDS = TensorInfo("ids", "int32", (-1,))
WEIGHTS = TensorInfo("weights", "float32", (-1, 2))


def body(value: object) -> bytes:
    """A scoring body."""
    return json.dumps({"data": value}).encode()


def model(*inputs: TensorInfo, batched: bool = True) -> ModelTensors:
    """A model with these inputs."""
    return ModelTensors(inputs, (), batched)


def test_the_only_input_needs_no_name() -> None:
    """Its tensor is the value of "data"; the shape is that of the lists."""
    (array,) = decode_tensors(body([[1, 2.5], [3, 4]]), model(WEIGHTS)).values()
    assert (array.dtype, array.tolist()) == (np.float32, [[1, 2.5], [3, 4]])
    named = decode_tensors(body({"weights": [[1, 2]]}), model(WEIGHTS))
    assert named["weights"].tolist() == [[1, 2]]


def test_very_many_strings_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four bytes make one, and taking millions apart would keep a frontend from everything else."""
    monkeypatch.setattr(packed, "_MAX_STRINGS", 6)
    words, numbers = TensorInfo("words", "string", (-1, -1)), TensorInfo("x", "float32", (-1, -1))
    check_string_count(6)
    assert checked_shape("m", words, "BYTES", [2, 3]) == (2, 3)
    assert checked_shape("m", numbers, "FP32", [2, 4]) == (2, 4)
    file = io.BytesIO()
    np.save(file, np.array([["a"] * 4] * 2))
    for refused in (
        lambda: checked_shape("m", words, "BYTES", [2, 4]),
        lambda: decode_npy(file.getvalue(), words),
    ):
        with pytest.raises(BodyTooLarge, match="8 strings are more than the 6 that are read at once"):
            refused()


def test_empty_arrays_have_bounded_sizes() -> None:
    """A hundred bytes could ask for an answer of terabytes otherwise: one row for each of nothing."""
    tokens = TensorInfo("tokens", "int64", (-1, -1))
    for shape in ([1 << 20, 0], [0, 0], [0, 3]):
        assert checked_shape("m", tokens, "INT64", shape) == tuple(shape)
    file = b"{'descr': '<i8', 'fortran_order': False, 'shape': (1048577, 0), }"
    body = b"\x93NUMPY\x01\x00" + len(file).to_bytes(2, "little") + file
    for refused in (
        lambda: checked_shape("m", tokens, "INT64", [(1 << 20) + 1, 0]),
        lambda: checked_shape("m", tokens, "INT64", [0, 1 << 40]),
        lambda: decode_npy(body, tokens),
    ):
        with pytest.raises(MalformedBody, match="too many"):
            refused()


def test_scalars_and_strings_are_tensors() -> None:
    """A model without a batch axis may take a number; strings are held as bytes."""
    scalar = TensorInfo("rate", "int64", ())
    arrays = decode_tensors(body({"rate": 16000, "words": [["é", ""]]}), model(scalar, WORDS, batched=False))
    assert arrays["rate"].shape == ()
    assert arrays["rate"] == 16000
    assert arrays["words"].tolist() == [["é".encode(), b""]]


def test_bytes_come_as_base64_where_a_string_may_stand() -> None:
    """An encoded image is no text; other texts than base64 are refused, and all in protocols without such a form."""
    arrays = decode_tensors(body([["a", {"b64": "/9j/"}], [{"b64": ""}, "b"]]), model(WORDS))
    assert arrays["words"].tolist() == [[b"a", b"\xff\xd8\xff"], [b"", b"b"]]
    for wrong in ({"b64": "no base_64"}, {"b64": "é"}, {"b64": "/9==/9"}, {"b64": "/"}):
        with pytest.raises(InvalidInput, match="Unable to base64 decode a value of words"):
            decode_tensors(body([[wrong]]), model(WORDS))
    for other in ({"b64": 1}, {"b64": "", "more": 1}, None):
        with pytest.raises(InvalidInput, match="words: expected strings as words"):
            decode_tensors(body([["a", other]]), model(WORDS))
    with pytest.raises(InvalidInput, match="weights: expected numbers"):
        decode_tensors(body([[1, {"b64": ""}]]), model(WEIGHTS))
    with pytest.raises(InvalidInput, match="words: expected strings as words"):
        as_tensor([[{"b64": ""}]], WORDS)


@pytest.mark.parametrize(
    ("inputs", "value", "complaint"),
    [
        ((WEIGHTS,), [[1, 2], [3]], "ragged"),
        ((WEIGHTS,), [[1, 2, 3]], "got the shape [1, 3]"),
        ((WEIGHTS,), [1, 2], "got the shape [2]"),
        ((WEIGHTS,), [["a", "b"]], "expected numbers"),
        ((WEIGHTS,), [[True, 2]], "expected numbers"),
        ((WEIGHTS,), [[None, 2]], "expected numbers"),
        ((WEIGHTS,), [[1e39, 2]], "too large for float32"),
        ((WEIGHTS,), [], "got the shape [0]"),
        ((IDS,), [1.5], "expected integers"),
        ((IDS,), [2**31], "does not fit int32"),
        ((IDS,), [2**70], "expected integers"),
        ((IDS,), [], "no rows"),
        ((IDS,), 3, "got the shape []"),
        ((WORDS,), [["a"], ["b", "c"]], "ragged"),
        ((WORDS,), [["a", 1]], "expected strings"),
        ((WORDS,), [["a", ["b"]]], "ragged"),
        ((IDS, WEIGHTS), {"ids": [1]}, "the inputs ids, weights"),
        ((IDS, WEIGHTS), {"ids": [1], "weights": [[1, 2]], "x": 1}, "the inputs ids, weights"),
        ((IDS, WEIGHTS), [1], "got a list of 1"),
        ((IDS, WEIGHTS), {"ids": [1, 2], "weights": [[1, 2]]}, "same number of rows, got: ids 2, weights 1"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    inputs: tuple[TensorInfo, ...], value: object, complaint: str
) -> None:
    """The message names the expected tensor and the received one."""
    with np.errstate(over="raise"), pytest.raises(InvalidInput) as refused:
        decode_tensors(body(value), model(*inputs))
    assert complaint in str(refused.value)


@pytest.mark.parametrize("text", [b"", b"{", b'{"data": NaN}', b"\xff"])
def test_a_body_that_is_no_json_is_malformed(text: bytes) -> None:
    """As for models of rows."""
    with pytest.raises(MalformedBody):
        decode_tensors(text, model(WEIGHTS))


@pytest.mark.parametrize("text", [b"[]", b"{}", b'{"inputs": []}'])
def test_a_body_without_data_is_refused(text: bytes) -> None:
    """The key is named."""
    with pytest.raises(InvalidInput, match='"data"'):
        decode_tensors(text, model(WEIGHTS))


def test_outputs_are_lists_by_name() -> None:
    """One output alone, several by their names; scalars, strings and NaN too."""
    words = np.empty(2, object)
    words[:] = ["é".encode(), b"\xff"]
    outputs = {"y": np.array([[1, np.nan]], np.float32), "words": words, "rate": np.array(3)}
    assert json.loads(encode_tensors(outputs), parse_constant=str) == {
        "y": [[1, "NaN"]],
        "words": ["é", "\ufffd"],
        "rate": 3,
    }
    assert encode_tensors({"y": np.array([[1, 2]], np.float16)}) == b"[[1.0,2.0]]"
    assert encode_tensors({"words": words[:1]}) == '["é"]'.encode()


def test_a_signature_of_rows_tells_its_tensors() -> None:
    """The batch axis comes first, before the axes of the row."""
    rows = Signature((TensorSpec("x", "float32", (2, 3)),), (TensorSpec("y", "int64", ()),))
    assert rows.model_tensors == ModelTensors(
        (TensorInfo("x", "float32", (-1, 2, 3)),), (TensorInfo("y", "int64", (-1,)),), batched=True
    )
    tensors = Signature((), (), takes="tensors", tensors=model(WORDS))
    assert Signature.from_json(json.loads(json.dumps(tensors.to_json()))) == tensors
