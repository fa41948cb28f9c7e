"""Infer requests of flat lists of numbers, read by simdjson: as the careful decoder reads them, or not at all."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.puppets import STEADY

from stoker.errors import StokerError
from stoker.tensors import ModelTensors, TensorInfo
from stoker.wire.oip_codec import InferCodec, NumberLists
from stoker.wire.oip_requests import decode_infer

TENSORS = ModelTensors(
    (TensorInfo("x", "float32", (-1, 2)), TensorInfo("k", "int32", (-1,)), TensorInfo("u", "uint8", (-1, 1))),
    (TensorInfo("y", "float32", (-1, 2)),),
    batched=True,
)
PLAIN = {
    "inputs": [
        {"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [1, 2.5, -3e2, 0.1]},
        {"name": "k", "datatype": "INT32", "shape": [2], "data": [7, -8]},
        {"name": "u", "datatype": "UINT8", "shape": [2, 1], "data": [0, 255]},
    ]
}
CODEC = InferCodec("m", "1", TENSORS)


def outcome(decode: Any, *arguments: Any) -> Any:
    """The bits that a decoder returns, or its error."""
    try:
        decoded = decode(*arguments)
    except StokerError as error:
        return type(error), str(error)
    arrays = {name: (array.tobytes(), array.dtype, array.shape) for name, array in decoded.inputs.items()}
    return decoded.id, arrays, decoded.wanted, decoded.timeout_ns, decoded.tier


def assert_same(body: bytes) -> None:
    """Both decoders come to the same result, in the same words."""
    assert outcome(CODEC.decode, body, None) == outcome(decode_infer, "m", TENSORS, body, None)


def test_lists_of_numbers_are_read_without_making_objects() -> None:
    """The fast reader takes a plain request and gives the careful decoder's result."""
    body = json.dumps({"id": "a", **PLAIN, "parameters": {"timeout": 5}, "outputs": [{"name": "y"}]}).encode()
    assert NumberLists(TENSORS).read(body) is not None
    assert_same(body)


NUMBERS = st.one_of(
    st.floats(width=64),
    st.integers(-(1 << 70), 1 << 70),
    st.sampled_from([True, None, "1", [1], [], {}, -0.0, 255, 256, -1, 1e39, 0.5]),
)
MEMBERS: dict[str, Any] = {
    "data": st.lists(NUMBERS, max_size=5) | st.lists(st.lists(NUMBERS, max_size=2), max_size=3) | NUMBERS,
    "shape": st.lists(st.integers(-1, 3), max_size=3) | st.sampled_from([None, "[2]", 2, [2.0], [[2]]]),
    "datatype": st.sampled_from(["FP32", "INT32", "BYTES", 1, "["]),
    "name": st.sampled_from(["x", "k", "[", "z", 1]),
    "parameters": st.sampled_from([{}, {"binary_data_size": 4}, {"a": [1]}, 7, {"b": {"c": 1}}]),
}


@settings(STEADY, max_examples=250)
@given(st.integers(0, 2), st.lists(st.sampled_from(sorted(MEMBERS)), max_size=2, unique=True), st.data())
def test_both_ways_to_read_a_request_agree(place: int, changed: list[str], data: st.DataObject) -> None:
    """For any members of an input, the result or the error and its words are equal."""
    request = json.loads(json.dumps(PLAIN))
    for name in changed:
        request["inputs"][place][name] = data.draw(MEMBERS[name], label=name)
    assert_same(json.dumps(request).encode())


TEXT = json.dumps(PLAIN).encode()


@pytest.mark.parametrize(
    "body",
    [
        b" " + TEXT,
        b"\xef\xbb\xbf" + TEXT,
        TEXT + b"x",
        TEXT[:-1],
        b"",
        b"[]",
        b"{}",
        b'{"inputs": 1}',
        b'{"inputs": []}',
        b'{"inputs": [1]}',
        TEXT.replace(b'"shape": [2]', b'"shape": [2], "shape": [3]'),
        TEXT.replace(b'"data": [7, -8]', b'"data": [7, -8], "data": [1, 2]'),
        TEXT[:-1] + b', "inputs": []}',
        TEXT[:-1] + b', "id": 5}',
        TEXT[:-1] + b', "id": "[[["}',
        TEXT[:-1] + b', "outputs": 5}',
        TEXT[:-1] + b', "outputs": [{"name": "y", "parameters": {"binary_data": true}}]}',
        TEXT[:-1] + b', "parameters": [1]}',
        TEXT[:-1] + b', "parameters": ' + b'{"a":' * 120 + b"1" + b"}" * 121,
        TEXT[:-1] + b', "id": "\\ud800"}',
        TEXT[:-1] + b', "id": "\xff"}',
        TEXT.replace(b"[7, -8]", b"[[7], [-8]]"),
        TEXT.replace(b"[7, -8]", b"[[7, -8], []]"),
        TEXT.replace(b"[7, -8]", b"[-0, 00]"),
        TEXT.replace(b"[7, -8]", b"[-0, 9223372036854775808]"),
        TEXT.replace(b"2.5", b"1e400"),
        TEXT.replace(b"2.5", b"NaN"),
        TEXT.replace(b"2.5", b"4e38"),
        TEXT.replace(b"2.5", b"18446744073709551616"),
        TEXT.replace(b"2.5", b"9007199254740993"),
    ],
)  # fmt: skip
def test_unusual_request_is_read_as_by_the_careful_decoder(body: bytes) -> None:
    """Requests at the edge of JSON and the protocol are decoded as by the careful decoder."""
    assert_same(body)


def test_a_body_does_not_hinder_the_next() -> None:
    """The parser's memory is used again after any body."""
    lists = NumberLists(TENSORS)
    for body in (TEXT, TEXT[:-1], TEXT.replace(b"2.5", b"true"), TEXT):
        lists.read(body)
    assert lists.read(TEXT) is not None


def test_a_model_with_other_inputs_too_has_its_requests_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its requests has an input that the fast reader cannot read, so that tries no other input."""
    texts = TensorInfo("s", "string", (-1,))
    tensors = ModelTensors((*TENSORS.inputs, texts), TENSORS.outputs, batched=True)
    text_input = {"name": "s", "datatype": "BYTES", "shape": [2], "data": ["a", "b"]}
    body = json.dumps({"inputs": [*PLAIN["inputs"], text_input]}).encode()
    parsed: list[bytes] = []
    monkeypatch.setattr(NumberLists, "_read", lambda _, body: parsed.append(body))
    InferCodec("m", "1", TENSORS).decode(TEXT, None)
    assert parsed == [TEXT]
    decoded = InferCodec("m", "1", tensors).decode(body, None)
    assert decoded.inputs["s"].tolist() == [b"a", b"b"]
    assert parsed == [TEXT]
