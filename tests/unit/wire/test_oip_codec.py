"""The codec with a memory of repeated requests gives the results of the decoder and the encoder."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.puppets import STEADY

from stoker.errors import StokerError
from stoker.sequence_steps import SequenceStep
from stoker.tensors import ModelTensors, TensorInfo
from stoker.wire.oip_codec import InferCodec
from stoker.wire.oip_requests import InferRequest, WantedOutput, decode_infer
from stoker.wire.oip_responses import encode_infer

TENSORS = ModelTensors(
    (TensorInfo("x", "float32", (-1, 3)), TensorInfo("k", "int64", (-1,))),
    (TensorInfo("y", "float32", (-1, 2)), TensorInfo("words", "string", (-1,))),
    batched=True,
)
X = np.arange(6, dtype=np.float32).reshape(2, 3)
K = np.array([7, 8])
OUTPUTS = {"y": X[:, :2], "words": np.array([b"a", b"bc"], object)}


def request(order: str = "xk", *, json_input: str = "", **fields: Any) -> tuple[bytes, int]:
    """A request for both inputs, in this order, one of them as JSON perhaps; and the length of its JSON."""
    arrays = {"x": X, "k": K}
    inputs: list[dict[str, Any]] = []
    for name in order:
        array = arrays[name]
        entry: dict[str, Any] = {
            "name": name, "shape": list(array.shape), "datatype": {"x": "FP32", "k": "INT64"}[name],
        }  # fmt: skip
        if name == json_input:
            entry["data"] = array.reshape(-1).tolist()
        else:
            entry["parameters"] = {"binary_data_size": array.nbytes}
        inputs.append(entry)
    text = json.dumps({**fields, "inputs": inputs}).encode()
    data = b"".join(arrays[name].tobytes() for name in order if name != json_input)
    return text + data, len(text)


def outcome(decode: Any, *arguments: Any) -> Any:
    """The decoder's result in a comparable form, or its error."""
    try:
        decoded = decode(*arguments)
    except StokerError as error:
        return type(error), str(error)
    arrays = {name: (array.tolist(), array.dtype) for name, array in decoded.inputs.items()}
    return decoded.id, arrays, decoded.wanted, decoded.timeout_ns


def assert_same(codec: InferCodec, body: bytes, json_bytes: int | None) -> None:
    """Decode twice, the second time perhaps from memory."""
    expected = outcome(decode_infer, "m", TENSORS, body, json_bytes)
    assert outcome(codec.decode, body, json_bytes) == expected
    assert outcome(codec.decode, body, json_bytes) == expected


@pytest.mark.parametrize("order", ["xk", "kx"])
@pytest.mark.parametrize("json_input", ["", "x", "k"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"id": "a-1"},
        {"id": 'with "quotes"'},
        {"id": "ü"},
        {"id": 5},
        {"parameters": {"timeout": 5, "binary_data_output": True}},
        {"outputs": [{"name": "y", "parameters": {"classification": 1}}]},
        {"inputs": []},
    ],
    ids=str,
)
def test_requests_are_decoded_as_ever(order: str, json_input: str, fields: dict[str, Any]) -> None:
    """A request decoded from memory equals one decoded anew."""
    assert_same(InferCodec("m", "1", TENSORS), *request(order, json_input=json_input, **fields))


def test_other_data_and_another_id_are_of_that_request() -> None:
    """Only equal parts are remembered: ids and numbers belong to each request, also in a known form."""
    codec = InferCodec("m", "1", TENSORS)
    first, json_bytes = request(id="a")
    second = first[:json_bytes].replace(b'"a"', b'"b"') + (2 * X).tobytes() + (K + 1).tobytes()
    longer = first[:json_bytes].replace(b'"a"', b'"abc"') + first[json_bytes:]
    without = b"{" + first[len(b'{"id": "a", ') : json_bytes] + first[json_bytes:]
    for body, length in (
        (first, json_bytes),
        (second, json_bytes),
        (longer, json_bytes + 2),
        (without, json_bytes - len(b'"id": "a", ')),
    ):
        assert_same(codec, body, length)
    assert codec.decode(second, json_bytes).id == "b"
    np.testing.assert_array_equal(codec.decode(second, json_bytes).inputs["x"], 2 * X)


def test_remembered_form_without_its_brace_is_no_request() -> None:
    """The rest of a remembered request is no JSON by itself."""
    codec = InferCodec("m", "1", TENSORS)
    body, json_bytes = request(id="a")
    codec.decode(body, json_bytes)
    cut = len(b'{"id": "a", ')
    assert_same(codec, body[cut:], json_bytes - cut)


@pytest.mark.parametrize("change", [-1, 1])
def test_a_known_form_with_other_sizes_is_refused(change: int) -> None:
    """Missing or superfluous bytes are found behind a form that is remembered, too."""
    codec = InferCodec("m", "1", TENSORS)
    body, json_bytes = request()
    codec.decode(body, json_bytes)
    assert_same(codec, body[:change] if change < 0 else body + b"x", json_bytes)


@STEADY
@given(st.lists(st.tuples(st.integers(0, 400), st.binary(max_size=3)), max_size=3), st.integers(0, 400))
def test_changed_bytes_make_no_difference(changes: list[tuple[int, bytes]], json_bytes: int) -> None:
    """Behind a remembered form, a request that differs in some bytes, or in its length, reads as it does alone."""
    codec = InferCodec("m", "1", TENSORS)
    body, length = request(id="a")
    codec.decode(body, length)
    for place, put in changes:
        body = body[:place] + put + body[place + len(put) :]
    assert_same(codec, body, length)
    assert_same(codec, body, json_bytes)


@pytest.mark.parametrize("identifier", ["", "a", 'ü "'])
@pytest.mark.parametrize("y", [X[:, :2], X[:1, :2], X[:0, :2], X[:, :2].astype(np.float16)], ids=str)
@pytest.mark.parametrize(
    "wanted",
    [
        (WantedOutput("y", True),),
        (WantedOutput("y", False),),
        (WantedOutput("y", True, 1),),
        (WantedOutput("y", True), WantedOutput("words", True)),
        (WantedOutput("words", True), WantedOutput("y", False)),
    ],
    ids=str,
)
def test_answers_are_encoded_as_ever(
    wanted: tuple[WantedOutput, ...], y: np.ndarray, identifier: str
) -> None:
    """An answer from memory has the same bytes for each choice of outputs."""

    def encoded(encode: Any) -> Any:
        try:
            return encode(InferRequest(identifier, {}, wanted), {**OUTPUTS, "y": y})
        except StokerError as error:
            return type(error), str(error)

    codec = InferCodec("m", "1", TENSORS)
    expected = encoded(lambda request, outputs: encode_infer("m", "1", request, outputs, batched=True))
    assert [encoded(codec.encode) for _ in range(2)] == [expected] * 2


def test_requests_of_sequences_are_read_each_time() -> None:
    """Each names its own sequence, so the memory of others is not used."""
    codec = InferCodec("m", "1", dataclasses.replace(TENSORS, sequences=True))
    for name in (7, 7, 8, None, 8, None):
        parameters = {} if name is None else {"sequence_id": name}
        body, json_bytes = request(parameters=parameters)
        assert codec.decode(body, json_bytes).sequence == (None if name is None else SequenceStep(name))
