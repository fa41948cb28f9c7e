"""The Open Inference Protocol's infer requests and answers, as bytes."""

import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.puppets import STEADY, numbers

from stoker.errors import InvalidInput, MalformedBody, RequestError
from stoker.sequence_steps import SequenceStep
from stoker.tensors import NUMERIC_DTYPES, ModelTensors, TensorInfo
from stoker.wire.datatypes import DATATYPES
from stoker.wire.oip_requests import InferRequest, WantedOutput, decode_infer
from stoker.wire.oip_requests import tier as read_tier
from stoker.wire.oip_responses import classify, encode_infer

X = TensorInfo("x", "float32", (-1, 2))
IDS = TensorInfo("ids", "int64", (-1,))
WORDS = TensorInfo("words", "string", (-1,))
Y = TensorInfo("y", "float32", (-1, 3))
Z = TensorInfo("z", "string", (-1,))
BOTH = ("y", "z")


def model(*inputs: TensorInfo, batched: bool = True) -> ModelTensors:
    """A model with these inputs and the outputs y and z."""
    return ModelTensors(inputs, (Y, Z), batched)


def tensor(info: TensorInfo, shape: list[int], **more: Any) -> dict[str, Any]:
    """An input of a request."""
    return {"name": info.name, "shape": shape, "datatype": DATATYPES[info.dtype], **more}


def decode(tensors: ModelTensors, *inputs: dict[str, Any], binary: bytes = b"", **more: Any) -> InferRequest:
    """Decode a request with these inputs; with binary data if there is any."""
    text = json.dumps({"inputs": list(inputs), **more}).encode()
    return decode_infer("m", tensors, text + binary, len(text) if binary else None)


@pytest.mark.parametrize("data", [[1, 2, 3, 4], [[1, 2], [3, 4]]])
def test_data_is_flat_or_nested(data: list[Any]) -> None:
    """Both mean the same, in row-major order."""
    request = decode(model(X), tensor(X, [2, 2], data=data), id="42")
    assert request.id == "42"
    assert request.inputs["x"].dtype == np.float32
    assert request.inputs["x"].tolist() == [[1, 2], [3, 4]]
    assert [wanted.name for wanted in request.wanted] == ["y", "z"]
    assert not any(wanted.binary for wanted in request.wanted)


def test_json_and_binary_inputs_mix() -> None:
    """The bytes behind the JSON belong to the inputs that say how many, in their order."""
    words = struct.pack("<I", 2) + "é".encode() + struct.pack("<I", 0)
    request = decode(
        model(X, IDS, WORDS),
        tensor(WORDS, [2], parameters={"binary_data_size": len(words)}),
        tensor(IDS, [2], data=[7, 2**62]),
        tensor(X, [2, 2], parameters={"binary_data_size": 16}),
        binary=words + np.array([1, 2, 3, 4], "<f4").tobytes(),
    )
    assert list(request.inputs) == ["x", "ids", "words"]
    assert request.inputs["x"].tolist() == [[1, 2], [3, 4]]
    assert request.inputs["ids"].tolist() == [7, 2**62]
    assert request.inputs["words"].tolist() == ["é".encode(), b""]


def test_a_batch_of_no_rows_is_taken() -> None:
    """An empty tensor is legal."""
    assert decode(model(X), tensor(X, [0, 2], data=[])).inputs["x"].shape == (0, 2)


def test_numbers_that_are_not_finite_are_taken() -> None:
    """Clients write them as the tokens of JavaScript."""
    text = b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[NaN,-Infinity]}]}'
    array = decode_infer("m", model(X), text, None).inputs["x"]
    np.testing.assert_array_equal(array, [[np.nan, -np.inf]])


def test_halves_of_letters_are_refused_beside_such_tokens() -> None:
    """The parser that knows the tokens reads them, and no answer could repeat them; whole letters are letters."""
    text = b'{"id":"%s","inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[NaN,1]}]}'
    for half in (rb"\ud83d", rb"\uDE00", rb"\ude00\ud83d"):
        with pytest.raises(MalformedBody, match="surrogates"):
            decode_infer("m", model(X), text % half, None)
    assert decode_infer("m", model(X), text % rb"\ud83d\ude00", None).id == "😀"


def test_a_raw_body_is_the_only_input() -> None:
    """No JSON at all: a batch of one, whose free size follows from the length; all outputs come as binary."""
    free = TensorInfo("x", "float32", (-1, -1, 2))
    request = decode_infer("m", model(free), np.arange(4, dtype="<f4").tobytes(), 0)
    assert request.inputs["x"].tolist() == [[[0, 1], [2, 3]]]
    assert request.wanted == tuple(WantedOutput(name, binary=True) for name in BOTH)
    assert decode_infer("m", model(WORDS), b"abc", 0).inputs["words"].tolist() == [b"abc"]


@pytest.mark.parametrize(
    ("tensors", "body"),
    [
        (model(X, IDS), b"12345678"),
        (model(X), b"1234567"),
        (model(X), b""),
        (model(TensorInfo("x", "float32", (-1, -1, -1))), b"1234"),
        (model(TensorInfo("w", "string", (-1, 2))), b"ab"),
        (model(TensorInfo("x", "float32", (-1, -1, 0))), b"1234"),
    ],
)
def test_a_raw_body_that_does_not_fit_is_refused(tensors: ModelTensors, body: bytes) -> None:
    """It has no shape of its own, so one input with one free size is all there can be."""
    with pytest.raises(RequestError):
        decode_infer("m", tensors, body, 0)


def test_requested_outputs_have_order_and_form() -> None:
    """They have the caller's order, and parameters of one output win over those of all."""
    request = decode(
        model(X),
        tensor(X, [1, 2], data=[1, 2]),
        parameters={"binary_data_output": True, "timeout": 1500, "sequence_id": 0},
        outputs=[
            {"name": "z"},
            {"name": "y", "parameters": {"binary_data": False, "classification": 2}},
        ],
    )
    assert request.wanted == (WantedOutput("z", binary=True), WantedOutput("y", binary=False, classes=2))
    assert request.timeout_ns == 1_500_000
    all_outputs = decode(
        model(X), tensor(X, [1, 2], data=[1, 2]), outputs=[], parameters={"binary_data_output": True}
    )
    assert all_outputs.wanted == tuple(WantedOutput(name, binary=True) for name in BOTH)


GOOD = tensor(X, [1, 2], data=[1, 2])


@pytest.mark.parametrize(
    ("request_", "complaint"),
    [
        ({"inputs": []}, "expected 1 inputs but got 0 inputs for model 'm'"),
        ({}, "'inputs' must be a list"),
        ({"inputs": [1]}, "'inputs' must be a list"),
        ({"inputs": [GOOD], "id": 42}, "'id' must be a string"),
        ({"inputs": [GOOD, GOOD]}, "given twice"),
        ({"inputs": [{**GOOD, "name": "no"}]}, "unexpected inference input 'no' for model 'm'"),
        ({"inputs": [{**GOOD, "name": 3}]}, "unexpected inference input 3"),
        ({"inputs": [{**GOOD, "datatype": "FP64"}]}, "data-type is 'FP64', but model 'm' expects 'FP32'"),
        ({"inputs": [{**GOOD, "shape": [1, 3]}]}, "Expected [-1,2], got [1,3]"),
        ({"inputs": [{**GOOD, "shape": [-1, 2]}]}, "non-negative integers"),
        ({"inputs": [{**GOOD, "shape": [True, 2]}]}, "non-negative integers"),
        ({"inputs": [{**GOOD, "shape": [1.0, 2]}]}, "non-negative integers"),
        ({"inputs": [{**GOOD, "shape": [2**62, 2]}]}, "too many elements"),
        ({"inputs": [{**GOOD, "shape": [2, 2]}]}, "Shape does not match true shape of 'data' field"),
        ({"inputs": [{**GOOD, "data": [[1, 2], [3, 4]]}]}, "got the shape [2, 2]"),
        ({"inputs": [{**GOOD, "data": 1}]}, "must be a list"),
        ({"inputs": [{**GOOD, "data": ["a", "b"]}]}, "expected numbers"),
        ({"inputs": [{**GOOD, "data": [None, 1]}]}, "expected numbers"),
        ({"inputs": [{**GOOD, "parameters": {"binary_data_size": 8}}]}, "only one of the following fields"),
        ({"inputs": [tensor(X, [1, 2])]}, "only one of the following fields"),
        ({"inputs": [tensor(X, [1, 2], parameters={"binary_data_size": 8})]}, "8 additional bytes"),
        ({"inputs": [tensor(X, [1, 2], parameters={"binary_data_size": -1})]}, "non-negative integer"),
        ({"inputs": [tensor(X, [1, 2], parameters={"binary_data_size": True})]}, "non-negative integer"),
        ({"inputs": [tensor(X, [1, 2], parameters={"shared_memory_region": "r"})]}, "shared memory"),
        ({"inputs": [GOOD], "parameters": {"triton_x": 1}}, "reserved"),
        ({"inputs": [GOOD], "parameters": []}, "'parameters' must be an object"),
        ({"inputs": [GOOD], "parameters": {"sequence_id": 3}}, "keeps state"),
        ({"inputs": [GOOD], "parameters": {"timeout": -1}}, "microseconds"),
        ({"inputs": [GOOD], "parameters": {"priority": "1"}}, "'priority' must be a number"),
        ({"inputs": [GOOD], "parameters": {"binary_data_output": 1}}, "must be true or false"),
        ({"inputs": [GOOD], "outputs": {}, "id": "a"}, None),
        ({"inputs": [GOOD], "outputs": {"name": "y"}}, "'outputs' must be a list"),
        ({"inputs": [GOOD], "outputs": [{"name": "no"}]}, "unexpected inference output 'no' for model 'm'"),
        ({"inputs": [GOOD], "outputs": [{"name": "y"}, {"name": "y"}]}, "asked for twice"),
        (
            {"inputs": [GOOD], "outputs": [{"name": "y", "parameters": {"classification": -1}}]},
            "non-negative integer",
        ),
        ([GOOD], "must be an object"),
    ],
)
def test_invalid_request_is_refused_in_triton_s_words(request_: Any, complaint: str | None) -> None:
    """Each mistake has its message, Triton's where clients may know it."""
    text = json.dumps(request_).encode()
    if complaint is None:
        assert decode_infer("m", model(X), text, None).wanted
        return
    with pytest.raises(RequestError) as refused:
        decode_infer("m", model(X), text, None)
    assert complaint in str(refused.value)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[" * 200_000, b'{"inputs": NaNN}', b"[1] 2"])
def test_body_that_is_no_json_is_malformed(text: bytes) -> None:
    """Deep and broken JSON alike is malformed."""
    with pytest.raises(MalformedBody):
        decode_infer("m", model(X), text, None)


@pytest.mark.parametrize("json_bytes", [-1, 10**9])
def test_a_json_length_beyond_the_body_is_refused(json_bytes: int) -> None:
    """The words are Triton's."""
    with pytest.raises(MalformedBody, match=r"inference header size should be in range \(0, 2\)"):
        decode_infer("m", model(X), b"{}", json_bytes)


@pytest.mark.parametrize("extra", [-1, 1])
def test_binary_sizes_must_add_up(extra: int) -> None:
    """One byte too few or too many is an error, not a shifted tensor."""
    with pytest.raises(MalformedBody):
        decode(model(X), tensor(X, [1, 2], parameters={"binary_data_size": 8}), binary=bytes(8 + extra))
    with pytest.raises(MalformedBody, match="has 9 bytes"):
        decode(model(X), tensor(X, [1, 2], parameters={"binary_data_size": 9}), binary=bytes(9))


@pytest.mark.parametrize(
    ("dtype", "data", "complaint"),
    [
        ("float16", [1.0], "send it as binary"),
        ("int8", [128], "does not fit int8"),
        ("uint8", [-1], "does not fit uint8"),
        ("int32", [1.0], "expected integers"),
        ("bool", [2], "expected booleans"),
        ("string", [1], "expected strings"),
    ],
)
def test_elements_are_of_the_datatype(dtype: str, data: list[Any], complaint: str) -> None:
    """Nothing is wrapped, rounded or guessed."""
    info = TensorInfo("a", dtype, (-1,))
    with pytest.raises(InvalidInput, match=complaint):
        decode(model(info), tensor(info, [1], data=data))


def test_booleans_may_be_numbers() -> None:
    """Some clients write 0 and 1."""
    info = TensorInfo("a", "bool", (-1,))
    assert decode(model(info), tensor(info, [3], data=[1, False, 0])).inputs["a"].tolist() == [
        True,
        False,
        False,
    ]


def outputs_for(rows: int) -> dict[str, np.ndarray]:
    """Outputs of the model for so many rows."""
    words = np.empty(rows, object)
    words[:] = [b"w"] * rows
    return {"y": np.arange(rows * 3, dtype=np.float32).reshape(rows, 3), "z": words}


def answer(request: InferRequest, outputs: dict[str, np.ndarray]) -> tuple[dict[str, Any], bytes]:
    """The JSON of an answer, and what follows it."""
    length, body = encode_infer("m", "1", request, outputs, batched=True)
    return json.loads(body[:length]), body[length:] if length is not None else b""


def test_answers_are_flat_json() -> None:
    """Outputs come in the caller's order; the id comes back."""
    request = InferRequest("42", {}, (WantedOutput("z", binary=False), WantedOutput("y", binary=False)))
    document, binary = answer(request, outputs_for(2))
    assert binary == b""
    assert document == {
        "model_name": "m",
        "model_version": "1",
        "id": "42",
        "outputs": [
            {"name": "z", "shape": [2], "datatype": "BYTES", "data": ["w", "w"]},
            {"name": "y", "shape": [2, 3], "datatype": "FP32", "data": [0, 1, 2, 3, 4, 5]},
        ],
    }


def test_answers_mix_json_and_binary() -> None:
    """Binary data follows in the order of the outputs, and the JSON says how much of it is whose."""
    request = InferRequest("", {}, (WantedOutput("z", binary=True), WantedOutput("y", binary=True)))
    document, binary = answer(request, outputs_for(1))
    assert "id" not in document
    sizes = [output["parameters"]["binary_data_size"] for output in document["outputs"]]
    assert sizes == [5, 12]
    assert binary == b"\1\0\0\0w" + np.arange(3, dtype="<f4").tobytes()
    assert all("data" not in output for output in document["outputs"])


def test_an_answer_without_bytes_is_json() -> None:
    """No header is needed where nothing follows."""
    request = InferRequest("", {}, (WantedOutput("y", binary=True),))
    length, body = encode_infer("m", "1", request, outputs_for(0), batched=True)
    assert length is None
    assert json.loads(body)["outputs"][0]["parameters"] == {"binary_data_size": 0}


def test_numbers_that_are_not_finite_are_written() -> None:
    """As the tokens that the protocol's servers read."""
    request = InferRequest("", {}, (WantedOutput("y", binary=False),))
    outputs = {"y": np.array([[np.nan, np.inf, 1]], np.float32)}
    _, body = encode_infer("m", "1", request, outputs, batched=True)
    assert b'"data":[NaN,Infinity,1.0]' in body


def test_output_that_json_cannot_hold_is_refused() -> None:
    """FP16 and bytes outside UTF-8 can only be sent as binary."""
    wanted = (WantedOutput("y", binary=False),)
    words = np.empty(1, object)
    words[0] = b"\xff"
    for array in (np.zeros((1, 2), np.float16), words):
        with pytest.raises(InvalidInput, match="binary"):
            encode_infer("m", "1", InferRequest("", {}, wanted), {"y": array}, batched=True)


@settings(STEADY, max_examples=150)
@given(st.data(), st.sampled_from(sorted(NUMERIC_DTYPES)), st.booleans())
def test_tensors_come_back_bit_for_bit(data: st.DataObject, dtype: str, binary: bool) -> None:
    """One side's output is read by the other as an input."""
    array = data.draw(numbers(dtype, st.tuples(st.integers(0, 3), st.integers(0, 3))))
    if dtype == "float16":
        binary = True
    info = TensorInfo("y", dtype, (-1, -1))
    request = InferRequest("", {}, (WantedOutput("y", binary),))
    length, body = encode_infer("m", "1", request, {"y": array}, batched=True)
    document = json.loads(body[:length])
    text = json.dumps({"inputs": document["outputs"]}).encode()
    raw = body[length:] if length is not None else b""
    tensors = ModelTensors((info,), (), batched=True)
    back = decode_infer("m", tensors, text + raw, len(text) if binary else None).inputs["y"]
    assert back.shape == array.shape
    np.testing.assert_array_equal(back, array)


def test_classes_are_the_largest_values() -> None:
    """Six decimals for floats, plain integers; of equal values the first; NaN last; at most as many as there are."""
    floats = np.array([[1, 3.3, np.nan], [2, 2, -1]], np.float32)
    given = classify("y", floats, 2, batched=True)
    assert given.tolist() == [[b"3.300000:1", b"1.000000:0"], [b"2.000000:0", b"2.000000:1"]]
    assert classify("y", np.array([5, -(2**63), 7]), 9, batched=False).tolist() == [
        b"7:2", b"5:0", f"{-(2**63)}:1".encode(),
    ]  # fmt: skip
    request = InferRequest("", {}, (WantedOutput("y", binary=False, classes=1),))
    document, _ = answer(request, outputs_for(2))
    assert document["outputs"] == [
        {"name": "y", "shape": [2, 1], "datatype": "BYTES", "data": ["2.000000:2", "5.000000:2"]}
    ]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "uint64", "bool"])
def test_classes_of_each_dtype_are_texts(dtype: str) -> None:
    """The same number that the tensor holds, with its place."""
    array = np.array([[0, 1, 1], [1, 0, 0]], dtype)
    one, zero = (b"1.000000", b"0.000000") if dtype.startswith("float") else (b"1", b"0")
    assert classify("y", array, 2, batched=True).tolist() == [
        [one + b":1", one + b":2"],
        [one + b":0", zero + b":1"],
    ]
    assert classify("y", array[:0], 2, batched=True).shape == (0, 2)


def test_classes_have_the_names_of_the_columns() -> None:
    """Behind the index, as Triton has it; a class without a name has none."""
    columns = TensorInfo("y", "float32", (-1, 3), labels=("cat", "", "a: b"))
    tensors = ModelTensors((TensorInfo("x", "float32", (-1, 1)),), (columns,), batched=True)
    outputs = [{"name": "y", "parameters": {"classification": 3}}]
    request = decode(tensors, tensor(tensors.inputs[0], [1, 1], data=[1]), outputs=outputs)
    written, _ = answer(request, {"y": np.array([[0.5, 3, 2]], np.float32)})
    assert written["outputs"][0]["data"] == ["3.000000:1", "2.000000:2:a: b", "0.500000:0:cat"]
    assert classify("y", np.arange(2)[None], 2, ("cat",), batched=True).tolist() == [[b"1:1", b"0:0:cat"]]


def test_texts_of_classes_are_bounded() -> None:
    """A few for each of many rows, or many for few rows; all of a million would take seconds."""
    array = np.zeros((1000, 1000), np.float32)
    assert classify("y", array, 100, batched=True).shape == (1000, 100)
    for classes in (101, 10**9):
        with pytest.raises(InvalidInput, match="classes for each of 1000 rows are more than the 100000"):
            classify("y", array, classes, batched=True)


@pytest.mark.parametrize(
    "array", [np.zeros((1, 2), np.float16), np.array([[b"a"]], object), np.zeros((2, 600_000))]
)
def test_output_that_cannot_be_classified_is_refused(array: np.ndarray) -> None:
    """Texts, half precision and millions of values cannot be classified."""
    with pytest.raises(InvalidInput, match="classified"):
        classify("y", array, 1, batched=True)


@settings(STEADY, max_examples=200)
@given(st.binary(max_size=200), st.one_of(st.none(), st.integers(-1, 220)))
def test_random_bytes_are_refused(body: bytes, json_bytes: int | None) -> None:
    """The refusal is the caller's error."""
    try:
        decode_infer("m", model(X, WORDS), body, json_bytes)
    except RequestError:
        return
    pytest.fail("noise was taken for a request")


@pytest.mark.parametrize(("priority", "tier"), [(None, None), (0, None), (1, 0), (2, 1), (3, 2), (9, 2)])
def test_priorities_are_tiers(priority: int | None, tier: int | None) -> None:
    """As in Triton, 1 is the highest; 0 is the model's default."""
    assert read_tier({} if priority is None else {"priority": priority}) == tier


STATEFUL = ModelTensors((X,), (Y,), batched=True, sequences=True)


@pytest.mark.parametrize(
    ("parameters", "step"),
    [
        ({}, None),
        ({"sequence_id": 0, "sequence_start": True}, None),
        ({"sequence_id": ""}, None),
        ({"sequence_id": 7, "sequence_start": True, "sequence_end": False}, SequenceStep(7, start=True)),
        ({"sequence_id": "7", "sequence_end": True}, SequenceStep("7", end=True)),
        ({"sequence_id": 2**64 - 1}, SequenceStep(2**64 - 1)),
    ],
)
def test_a_request_names_its_sequence_in_parameters(
    parameters: dict[str, Any], step: SequenceStep | None
) -> None:
    """To a model that keeps state; the parameters of an input never do."""
    body = json.dumps({"inputs": [GOOD], "parameters": parameters}).encode()
    assert decode_infer("m", STATEFUL, body, None).sequence == step
    misplaced = json.dumps({"inputs": [{**GOOD, "parameters": {"sequence_id": 7}}]}).encode()
    with pytest.raises(InvalidInput, match="keeps state"):
        decode_infer("m", STATEFUL, misplaced, None)


@pytest.mark.parametrize(
    "parameters",
    [
        {"sequence_id": -1},
        {"sequence_id": 2**64},
        {"sequence_id": True},
        {"sequence_id": 1.5},
        {"sequence_id": "a" * 129},
        {"sequence_id": 7, "sequence_start": 1},
        {"sequence_id": 7, "sequence_end": "yes"},
    ],
)
def test_invalid_sequence_parameters_are_refused(parameters: dict[str, Any]) -> None:
    """Ids of other types or sizes and invalid flags are refused."""
    body = json.dumps({"inputs": [GOOD], "parameters": parameters}).encode()
    with pytest.raises(MalformedBody):
        decode_infer("m", STATEFUL, body, None)
