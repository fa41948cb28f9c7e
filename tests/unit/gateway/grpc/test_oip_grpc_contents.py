"""Infer requests and answers as messages of gRPC: raw and typed contents, and their errors."""

import dataclasses
import time
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tests.puppets import STEADY

from stoker.errors import BodyTooLarge, InvalidInput, MalformedBody, StokerError
from stoker.gateway.grpc import requests
from stoker.gateway.grpc.messages import ModelInferRequest, ModelInferResponse
from stoker.gateway.grpc.requests import RequestDecoder, RequestMessage
from stoker.gateway.grpc.responses import AnswerWriter
from stoker.sequence_steps import SequenceStep
from stoker.tensors import NUMERIC_DTYPES, ModelTensors, TensorInfo
from stoker.wire.datatypes import DATATYPES
from stoker.wire.oip_requests import InferRequest, WantedOutput
from stoker.wire.oip_tensors import from_raw, to_raw

X = TensorInfo("x", "float32", (-1, 2))
IDS = TensorInfo("ids", "int64", (-1,))
WORDS = TensorInfo("words", "string", (-1,))
Y = TensorInfo("y", "float32", (-1, 3))
FIELDS = {
    "BOOL": "bool_contents",
    "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents",
    "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip
"""The fields of the protocol's table."""


def model(*inputs: TensorInfo, batched: bool = True) -> ModelTensors:
    """A model with these inputs and the outputs y and words."""
    return ModelTensors(inputs, (Y, WORDS), batched)


def request(*inputs: tuple[TensorInfo, list[int]], raw: tuple[bytes, ...] = (), **more: Any) -> Any:
    """A request with inputs of these shapes."""
    message = ModelInferRequest(model_name="m", raw_input_contents=raw, **more)
    for info, shape in inputs:
        message.inputs.add(name=info.name, datatype=DATATYPES[info.dtype], shape=shape)
    return message


def typed(info: TensorInfo, shape: list[int], **contents: Any) -> Any:
    """A request with one input of typed contents."""
    message = request((info, shape))
    for field, values in contents.items():
        getattr(message.inputs[0].contents, field).extend(values)
    return message


def decode(decoder: RequestDecoder, message: Any) -> InferRequest:
    """Decode a message as it comes over the wire."""
    return decoder.decode(RequestMessage.read(message.SerializeToString()))


def decode_request(name: str, tensors: ModelTensors, message: Any) -> InferRequest:
    """Decode a message of an unknown model."""
    return decode(RequestDecoder(name, tensors), message)


def floats(*values: float) -> bytes:
    return np.array(values, "<f4").tobytes()


def filled(decoded: InferRequest, outputs: dict[str, np.ndarray], *, batched: bool = True) -> Any:
    """The answer to a request, after a way over the wire."""
    writer = AnswerWriter("m", "3", batched=batched)
    # The second is written with what is known from the first.
    (text,) = {writer.write(decoded, outputs) for _ in range(2)}
    return ModelInferResponse.FromString(text)


@pytest.mark.parametrize("decoder", ["function", "first", "known"])
def test_raw_inputs_belong_to_the_inputs_in_their_order(decoder: str) -> None:
    """Each input has one entry, in the request's order and not the model's; all outputs come back raw."""
    tensors = model(X, IDS)

    def ask(first: int) -> Any:
        ids = np.array([first, 2**40]).tobytes()
        return request((IDS, [2]), (X, [2, 2]), raw=(ids, floats(1, 2, 3, 4)), id=f"id {first}")

    if decoder == "function":
        decoded = decode_request("m", tensors, ask(7))
    else:
        memory = RequestDecoder("m", tensors)
        if decoder == "known":
            assert decode(memory, ask(6)).inputs["ids"].tolist() == [6, 2**40]
        decoded = decode(memory, ask(7))
    assert list(decoded.inputs) == ["x", "ids"]
    assert (decoded.inputs["x"].dtype, decoded.inputs["ids"].dtype) == (np.float32, np.int64)
    assert decoded.inputs["x"].tolist() == [[1, 2], [3, 4]]
    assert decoded.inputs["ids"].tolist() == [7, 2**40]
    assert decoded == InferRequest(
        "id 7", decoded.inputs, (WantedOutput("y", binary=True), WantedOutput("words", binary=True)), None
    )


def test_strings_and_booleans_are_read_each_time() -> None:
    """Their contents cannot be taken as they are: lengths lie between strings, and any other byte than 0 is true."""
    yes = TensorInfo("yes", "bool", (-1,))
    memory = RequestDecoder("m", model(WORDS, yes))
    for word in (b"", b"\xff\0", b"long"):
        content = to_raw(np.array([word, b"x"], object))
        decoded = decode(memory, request((WORDS, [2]), (yes, [2]), raw=(content, b"\0\2")))
        assert decoded.inputs["words"].tolist() == [word, b"x"]
        assert decoded.inputs["yes"].tolist() == [False, True]


def test_the_form_of_a_request_is_checked_as_often_as_it_changes() -> None:
    """Another shape, parameter or wish is not taken for a known one; wrong sizes of a known form are still wrong."""
    memory = RequestDecoder("m", model(X))
    assert decode(memory, request((X, [2, 2]), raw=(floats(1, 2, 3, 4),))).inputs["x"].shape == (2, 2)
    assert decode(memory, request((X, [1, 2]), raw=(floats(1, 2),))).inputs["x"].shape == (1, 2)
    late = request((X, [1, 2]), raw=(floats(1, 2),))
    late.parameters["timeout"].int64_param = 5
    assert decode(memory, late).timeout_ns == 5000
    late.parameters["priority"].int64_param = 1
    assert decode(memory, late).tier == 0
    message = request((X, [1, 2]), raw=(floats(1, 2),), outputs=[{"name": "words"}])
    assert decode(memory, message).wanted == (WantedOutput("words", binary=True),)
    for raw in [(floats(1, 2, 3),), (floats(1),), (floats(1, 2), b"")]:
        with pytest.raises(MalformedBody):
            decode(memory, request((X, [1, 2]), raw=raw))
    with pytest.raises(InvalidInput):
        decode(memory, request((X, [1, 3]), raw=(floats(1, 2, 3),)))


def test_tensors_of_an_estimator_are_converted_each_time() -> None:
    """Integers of as many bytes as the model's numbers are not taken for these, though all else is as it was."""
    info = TensorInfo("data", "float64", (-1, 2), nullable=True)
    scores = TensorInfo("predict_proba", "float64", (-1, 2))
    labels = TensorInfo("predict", "int64", (-1,))
    memory = RequestDecoder("m", ModelTensors((info,), (labels, scores), batched=True, estimator=True))
    sent = TensorInfo("input-0", "int64", (-1, 2))
    for _ in range(3):
        for numbers in (np.array([[1, 2]]), np.array([[1.0, 2.0]])):
            kind = TensorInfo(sent.name, numbers.dtype.name, sent.shape)
            decoded = decode(memory, request((kind, [1, 2]), raw=(numbers.tobytes(),)))
            assert decoded.inputs["data"].tolist() == [[1, 2]]
            assert decoded.inputs["data"].dtype == np.float64
            assert [one.name for one in decoded.wanted] == ["predict"]


def test_forms_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many forms are remembered, and none that is long."""
    monkeypatch.setattr("stoker.gateway.grpc.requests._MAX_FORMS", 3)
    memory = RequestDecoder("m", model(X))
    for rows in range(1, 9):
        decode(memory, request((X, [rows, 2]), raw=(floats(*range(2 * rows)),)))
        assert 1 <= len(memory.forms) <= 3
    kept = len(memory.forms)
    long = request((X, [20, 2]), raw=(floats(*range(40)),))
    long.parameters["x" * 5000].bool_param = True
    decode(memory, long)
    assert len(memory.forms) == kept


@given(st.data())
@STEADY
def test_every_dtype_comes_through_typed_and_raw(data: st.DataObject) -> None:
    """The field of the datatype and raw bytes hold the same array, in requests and answers."""
    name = data.draw(st.sampled_from(sorted(NUMERIC_DTYPES - {"float16", "bfloat16"})))
    shape = data.draw(st.tuples(st.integers(0, 4), st.integers(0, 3)))
    array = data.draw(arrays(np.dtype(name), shape))
    info = TensorInfo("x", name, (-1, -1))
    tensors = ModelTensors((info,), (info,), batched=False)
    field = FIELDS[DATATYPES[name]]
    in_field = decode_request("m", tensors, typed(info, list(shape), **{field: array.reshape(-1).tolist()}))
    as_bytes = decode_request("m", tensors, request((info, list(shape)), raw=(to_raw(array),)))
    for decoded in (in_field, as_bytes):
        assert decoded.inputs["x"].dtype == array.dtype
        np.testing.assert_array_equal(decoded.inputs["x"], array)
    answer = filled(in_field, {"x": array}, batched=False)
    assert not answer.raw_output_contents
    assert (answer.outputs[0].datatype, list(answer.outputs[0].shape)) == (DATATYPES[name], list(shape))
    np.testing.assert_array_equal(
        np.array(getattr(answer.outputs[0].contents, field), name).reshape(shape), array
    )
    answer = filled(as_bytes, {"x": array}, batched=False)
    assert not answer.outputs[0].HasField("contents")
    np.testing.assert_array_equal(from_raw("m", info, shape, answer.raw_output_contents[0]), array)


def test_strings_come_through_typed_and_raw() -> None:
    """They are bytes of any kind, and framed by their lengths where they are raw."""
    tensors = ModelTensors((WORDS,), (WORDS,), batched=True)
    words = [b"", b"caf\xc3\xa9", b"\xff\0"]
    decoded = decode_request("m", tensors, typed(WORDS, [3], bytes_contents=words))
    assert decoded.inputs["words"].tolist() == words
    answer = filled(decoded, decoded.inputs)
    assert (answer.outputs[0].datatype, list(answer.outputs[0].contents.bytes_contents)) == ("BYTES", words)
    raw = decode_request("m", tensors, request((WORDS, [3]), raw=(to_raw(decoded.inputs["words"]),)))
    assert filled(raw, decoded.inputs).raw_output_contents[0] == to_raw(decoded.inputs["words"])


def test_fields_of_later_versions_are_not_taken_for_numbers() -> None:
    """Unknown fields of a tensor's contents leave its numbers as they are."""
    message = typed(X, [1, 2], fp32_contents=[1.5, -2])
    contents = message.inputs[0].contents.SerializeToString() + b"\xfa\x01\x04abcd"
    message.inputs[0].contents.ParseFromString(contents)
    assert decode_request("m", model(X), message).inputs["x"].tolist() == [[1.5, -2]]


def test_half_precision_is_raw_both_ways() -> None:
    """FP16 has no typed contents: it is refused as typed, and an answer that has it is raw as a whole."""
    half = TensorInfo("h", "float16", (-1,))
    with pytest.raises(InvalidInput, match="'h' of model 'm' is FP16: send it in raw_input_contents"):
        decode_request("m", model(half), typed(half, [1], fp32_contents=[1]))
    tensors = ModelTensors((X,), (Y, half), batched=True)
    decoded = decode_request("m", tensors, typed(X, [1, 2], fp32_contents=[1, 2]))
    answer = filled(decoded, {"y": np.zeros((1, 3), np.float32), "h": np.array([1.5], np.float16)})
    assert list(answer.raw_output_contents) == [bytes(12), np.array([1.5], "<f2").tobytes()]


def test_empty_outputs_have_empty_entries() -> None:
    """A raw answer has one entry for each output, of no bytes for one without elements."""
    decoded = decode_request("m", model(X), request((X, [0, 2]), raw=(b"",)))
    assert decoded.inputs["x"].shape == (0, 2)
    answer = filled(decoded, {"y": np.zeros((0, 3), np.float32), "words": np.zeros(0, object)})
    assert list(answer.raw_output_contents) == [b"", b""]
    assert [list(output.shape) for output in answer.outputs] == [[0, 3], [0]]


def test_a_request_for_raw_outputs_gets_them() -> None:
    """A request of typed contents with `binary_data_output` is answered raw."""
    message = typed(X, [1, 2], fp32_contents=[1, 2])
    message.parameters["binary_data_output"].bool_param = True
    decoded = decode_request("m", model(X), message)
    answer = filled(decoded, {"y": np.ones((1, 3), np.float32), "words": np.array([b"a"], object)})
    assert list(answer.raw_output_contents) == [floats(1, 1, 1), b"\1\0\0\0a"]


def test_outputs_come_in_the_requested_order() -> None:
    """Requested classes come with them, as BYTES."""
    message = request((X, [1, 2]), raw=(floats(1, 2),), id="9")
    message.outputs.add(name="words")
    message.outputs.add(name="y").parameters["classification"].int64_param = 2
    decoded = decode_request("m", model(X), message)
    outputs = {"y": np.array([[1, 3.3, 2]], np.float32), "words": np.array([b"a"], object)}
    answer = filled(decoded, outputs)
    assert (answer.model_name, answer.model_version, answer.id) == ("m", "3", "9")
    assert [output.name for output in answer.outputs] == ["words", "y"]
    assert (answer.outputs[1].datatype, list(answer.outputs[1].shape)) == ("BYTES", [1, 2])
    expected = to_raw(np.array([b"3.300000:1", b"2.000000:2"], object))
    assert answer.raw_output_contents[1] == expected


def with_contents(message: Any) -> Any:
    message.inputs[0].contents.fp32_contents.append(1)
    return message


def with_parameter(name: str, **value: Any) -> Any:
    message = request((X, [1, 2]), raw=(floats(1, 2),))
    for kind, content in value.items():
        setattr(message.parameters[name], kind, content)
    return message


BYTE = TensorInfo("b", "int8", (-1,))
WRONG: dict[str, tuple[Any, type[StokerError], str]] = {
    "contents beside raw": (
        with_contents(request((X, [1, 2]), raw=(floats(1, 2),))),
        MalformedBody,
        "contents field must not be specified when using raw_input_contents for 'x' for model 'm'",
    ),
    "fewer raw": (
        request((X, [1, 2]), (IDS, [1]), raw=(floats(1, 2),)),
        MalformedBody,
        "unable to find data for input tensor 'ids' for model 'm' in request",
    ),
    "more raw": (
        request((X, [1, 2]), (IDS, [1]), raw=(floats(1, 2), bytes(8), b"")),
        MalformedBody,
        "expected raw_input_contents for 2 inputs, got 3 for model 'm'",
    ),
    "raw size": (
        request((X, [1, 2]), (IDS, [1]), raw=(floats(1), bytes(8))),
        MalformedBody,
        "has 4 bytes, but its shape [1,2] needs 8",
    ),
    "no contents": (request((X, [1, 2])), MalformedBody, "unable to find data for input tensor 'x'"),
    "wrong field": (
        typed(X, [1, 2], fp64_contents=[1, 2]),
        MalformedBody,
        "unexpected explicit tensor data for input tensor 'x' for model 'm': FP32 comes in fp32_contents, got "
        "fp64_contents",
    ),
    "two fields": (
        typed(X, [1, 2], fp32_contents=[1, 2], int_contents=[1]),
        MalformedBody,
        "unexpected explicit tensor data for input tensor 'x'",
    ),
    "too few elements": (
        typed(X, [1, 2], fp32_contents=[1]),
        MalformedBody,
        "has 1 element, but its shape [1,2] needs 2",
    ),
    "out of range": (typed(BYTE, [1], int_contents=[128]), InvalidInput, "does not fit int8"),
    "missing input": (
        request((X, [1, 2]), raw=(floats(1, 2),)),
        InvalidInput,
        "expected 2 inputs but got 1 inputs for model 'm'. Missing: 'ids'",
    ),
    "unknown input": (
        request((WORDS, [1])),
        InvalidInput,
        "unexpected inference input 'words' for model 'm'",
    ),
    "input twice": (
        request((X, [1, 2]), (X, [1, 2]), raw=(floats(1, 2), floats(1, 2))),
        InvalidInput,
        "input 'x' is given twice",
    ),
    "datatype": (
        request((TensorInfo("x", "float64", (-1, 2)), [1, 2]), raw=(bytes(16),)),
        InvalidInput,
        "inference input 'x' data-type is 'FP64', but model 'm' expects 'FP32'",
    ),
    "shape": (
        request((X, [1, 3]), raw=(floats(1, 2, 3),)),
        InvalidInput,
        "unexpected shape for input 'x' for model 'm'. Expected [-1,2], got [1,3]",
    ),
    "negative size": (request((X, [-1, 2]), raw=(floats(1, 2),)), MalformedBody, "non-negative integers"),
    "overflow": (request((X, [2**62, 2]), raw=(b"",)), MalformedBody, "too many elements"),
    "unknown output": (
        request((X, [1, 2]), raw=(floats(1, 2),), outputs=[{"name": "z"}]),
        InvalidInput,
        "unexpected inference output 'z' for model 'm'",
    ),
    "sequence": (with_parameter("sequence_id", uint64_param=3), InvalidInput, "'sequence_id' needs a model"),
    "reserved": (with_parameter("triton_x", bool_param=True), MalformedBody, "'triton_' are reserved"),
    "shared memory": (
        with_parameter("shared_memory_region", string_param="r"),
        InvalidInput,
        "shared memory",
    ),
    "timeout": (with_parameter("timeout", string_param="5"), MalformedBody, "'timeout' must be a number"),
}


@pytest.mark.parametrize("case", WRONG)
def test_invalid_tensor_contents_are_refused_each_time(case: str) -> None:
    """Invalid contents raise the error and the words of the protocol, also at the second request."""
    message, error, text = WRONG[case]
    tensors = model(BYTE) if case == "out of range" else model(X, IDS)
    memory = RequestDecoder("m", tensors)
    for _ in range(2):
        with pytest.raises(error) as refused:
            decode(memory, message)
        assert text in str(refused.value)


def test_messages_that_would_take_many_times_their_bytes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Very many parts, long typed contents, and long messages that only the library can read."""
    monkeypatch.setattr(requests, "_MAX_PARTS", 5)
    message = request((X, [1, 2]), (IDS, [1]), raw=(floats(1, 2), bytes(8)))
    assert RequestMessage.read(message.SerializeToString()).raw == [floats(1, 2), bytes(8)]
    message.outputs.add(name="y")
    with pytest.raises(BodyTooLarge, match="more than 5 inputs, outputs and parameters"):
        RequestMessage.read(message.SerializeToString())
    monkeypatch.setattr(requests, "_MAX_TYPED_BYTES", 60)
    decoder = RequestDecoder("m", model(X))
    with pytest.raises(BodyTooLarge, match="send raw_input_contents"):
        decode(decoder, typed(X, [8, 2], fp32_contents=range(16)))
    long = request((X, [8, 2]), raw=(floats(*range(16)),))
    assert decode(decoder, long).inputs["x"].shape == (8, 2), "raw contents may be long"
    monkeypatch.setattr(requests, "_MAX_ODD_BYTES", 60)
    with pytest.raises(MalformedBody, match="has fields that are not known here"):
        RequestMessage.read(long.SerializeToString() + b"\xfa\x01\x02ab")


@pytest.mark.parametrize("name", ["sequence_id", "triton_enable_empty_final_response", "own", "priority"])
def test_parameters_that_change_nothing_are_taken(name: str) -> None:
    """No sequence is no sequence; clients of streams ask for the mark of the last answer; others are the caller's."""
    message = with_parameter(name, int64_param=0)
    assert decode_request("m", model(X), message).inputs["x"].tolist() == [[1, 2]]


@pytest.mark.parametrize("value", [{"int64_param": 7}, {"uint64_param": 7}, {"string_param": "7"}])
def test_a_request_names_its_sequence_in_parameters(value: dict[str, Any]) -> None:
    """To a model that keeps state, by a number or a text, each time it comes."""
    decoder = RequestDecoder("m", dataclasses.replace(model(X), sequences=True))
    (name,) = value.values()
    for start in (True, False, False):
        message = with_parameter("sequence_id", **value)
        message.parameters["sequence_start"].bool_param = start
        assert decode(decoder, message).sequence == SequenceStep(name, start)
    assert decode(decoder, request((X, [1, 2]), raw=(floats(1, 2),))).sequence is None


CONTENTS = {
    "bool_contents": st.booleans(),
    "int_contents": st.integers(-(2**31), 2**31 - 1),
    "int64_contents": st.integers(-(2**63), 2**63 - 1),
    "uint_contents": st.integers(0, 2**32 - 1),
    "uint64_contents": st.integers(0, 2**64 - 1),
    "fp32_contents": st.floats(width=32),
    "fp64_contents": st.floats(),
    "bytes_contents": st.binary(max_size=4),
}
PARAMETER = st.one_of(
    st.fixed_dictionaries({"bool_param": st.booleans()}),
    st.fixed_dictionaries({"int64_param": st.integers(-(2**63), 2**63 - 1)}),
    st.fixed_dictionaries({"string_param": st.text(max_size=3)}),
    st.fixed_dictionaries({"double_param": st.floats()}),
    st.just({}),
)
PARAMETERS = st.dictionaries(
    st.sampled_from(["timeout", "sequence_id", "classification", "binary_data", "binary_data_output", "own"]),
    PARAMETER,
    max_size=2,
)
INPUT = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["x", "words", "yes", "other"]),
        "datatype": st.sampled_from(["FP32", "BYTES", "BOOL", "INT8", ""]),
        "shape": st.lists(st.sampled_from([1, 2, 0, 3, -1, 2**62]), max_size=3),
    },
    optional={
        "parameters": PARAMETERS,
        "contents": st.fixed_dictionaries(
            {}, optional={field: st.lists(items, max_size=4) for field, items in CONTENTS.items()}
        ),
    },
)
REQUEST = st.fixed_dictionaries(
    {
        "inputs": st.lists(INPUT, max_size=3),
        "raw_input_contents": st.lists(
            st.sampled_from([b"", b"\1\0\0\0a", bytes(8), bytes(16), b"\2"]), max_size=3
        ),
    },
    optional={
        "id": st.text(max_size=3),
        "parameters": PARAMETERS,
        "outputs": st.lists(
            st.fixed_dictionaries(
                {"name": st.sampled_from(["y", "words", ""])}, optional={"parameters": PARAMETERS}
            ),
            max_size=2,
        ),
    },
)


ODD = st.sampled_from(
    [
        b"",
        b"\x0a\x05other",  # the model's name again: the last one counts
        b"\x1a\x81\x00z",  # a length of two bytes where one would do
        b"\x3a\x80\x80\x00",
        b"\x0a\x02\xff\xfe",  # not UTF-8
        b"\xfa\x01\x02ab",  # a field of later versions
        b"\x40\x01",
        b"\x3b\x3c",  # a group
        b"\x3a\x05a",  # the end comes too early
        b"\x3a" + b"\xff" * 40,
        b"\x2a\x02\xff\xff",
        b"\x0a",
    ]
)


@given(REQUEST, st.lists(ODD, max_size=2), st.booleans())
@STEADY
def test_a_message_is_taken_apart_as_the_library_would(
    content: dict[str, Any], odd: list[bytes], first: bool
) -> None:
    """This holds for each way to write a message, and for bytes that are no message."""
    text = ModelInferRequest(**content).SerializeToString()
    text = b"".join([*odd, text] if first else [text, *odd])
    try:
        expected = ModelInferRequest.FromString(text)
    except DecodeError:
        with pytest.raises(MalformedBody):
            RequestDecoder("m", model(X)).decode(RequestMessage.read(text))
        return
    message = RequestMessage.read(text)
    again = ModelInferRequest.FromString(message.form)
    again.id = message.id
    again.raw_input_contents.extend(map(bytes, message.raw))
    assert again == expected
    assert (message.model_name, message.model_version) == (expected.model_name, expected.model_version)


def test_a_length_without_end_is_given_up_at_once() -> None:
    """It does not become a number of a million digits."""
    text = b"\x3a" + b"\xff" * 4_000_000
    begun_s = time.thread_time()
    with pytest.raises(MalformedBody):
        RequestMessage.read(text)
    assert time.thread_time() - begun_s < 1


@given(REQUEST)
@STEADY
def test_any_request_is_read_or_refused(content: dict[str, Any]) -> None:
    """Any message is refused, or gives arrays that fit the model."""
    infos = (X, WORDS, TensorInfo("yes", "bool", (-1,)))
    for tensors in (model(*infos), model(X), ModelTensors(infos[1:], (Y,), batched=False)):
        memory = RequestDecoder("m", tensors)
        for _ in range(2):
            try:
                decoded = decode(memory, ModelInferRequest(**content))
            except (InvalidInput, MalformedBody):
                continue
            for info in tensors.inputs:
                assert info.fits(decoded.inputs[info.name].shape)


@pytest.mark.parametrize("odd", [b"", b"\xfa\x01\x02ab"], ids=["as-written", "with-unknown-fields"])
def test_ids_are_bounded(odd: bytes) -> None:
    """An answer repeats the id of its request, so a message whose id is long is refused, however it is written."""
    message = ModelInferRequest(model_name="m", id="i" * 1024)
    assert RequestMessage.read(message.SerializeToString() + odd).id == "i" * 1024
    message.id += "i"
    with pytest.raises(MalformedBody, match="'id' has more than 1024 characters"):
        RequestMessage.read(message.SerializeToString() + odd)


def test_a_message_about_a_name_repeats_little_of_it() -> None:
    """However long the name of an input is, the message about it is short."""
    long = ModelInferRequest()
    long.inputs.add(name="x" * 5000)
    with pytest.raises(InvalidInput) as refused:
        RequestDecoder("m", ModelTensors((), (), batched=True)).decode(
            RequestMessage.read(long.SerializeToString())
        )
    assert len(str(refused.value)) < 200
