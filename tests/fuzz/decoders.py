"""Properties of every body that a decoder gets, and the bodies to try."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from hypothesis import strategies as st
from tests.fuzz.bodies import (
    Info,
    array_bodies,
    compressed,
    infer_requests,
    predict_bodies,
    scoring_bodies,
)
from tests.fuzz.messages import infer_messages, predict_messages

from stoker.errors import RequestError
from stoker.gateway.grpc.messages import ModelInferRequest
from stoker.gateway.grpc.requests import RequestDecoder, RequestMessage, RequestReader
from stoker.gateway.grpc.tensorflow_serving import ExamplesMessage, PredictMessage, read_tensor, tensor_bytes
from stoker.gateway.http.encodings import PIECE_BYTES, inflater_for
from stoker.gateway.protocols.infer import InferDialect
from stoker.tensors import DEFAULT_SIGNATURE, ModelTensors, NamedSignature, Signature, TensorInfo, TensorSpec
from stoker.wire.array_bodies import decode_npy
from stoker.wire.oip_requests import decode_infer
from stoker.wire.packed import pack, unpack
from stoker.wire.protobuf import field
from stoker.wire.scoring import ScoringDecoder
from stoker.wire.script_requests import RequestHead, ScriptAnswer, ScriptRequest
from stoker.wire.tensor_json import MethodDecoder, decode_tensors
from stoker.wire.tfs import decode_predict
from stoker.wire.tfs_examples import decode_examples

__all__ = ["BODY_LIMIT_MB", "DECODERS", "Decoder"]

BODY_LIMIT_MB: Final = 16

DTYPES: Final = {
    "FP32": "float32",
    "INT8": "int8",
    "UINT64": "uint64",
    "BOOL": "bool",
    "FP16": "float16",
    "INT64": "int64",
    "BYTES": "string",
}
ALONE: Final[list[list[Info]]] = [
    [("x", "FP32", (-1, 2))],
    [("x", "INT8", (-1, -1))],
    [("x", "UINT64", (-1,))],
    [("x", "BOOL", (-1,))],
    [("x", "FP16", ())],
    [("words", "BYTES", (-1, -1))],
    [("a", "FP32", (-1, 2)), ("b", "INT64", (-1,))],
]
"""The inputs of models that only decoders know."""


def tensors_of(infos: Sequence[Info]) -> ModelTensors:
    """A model with these inputs."""
    inputs = tuple(TensorInfo(name, DTYPES[datatype], shape) for name, datatype, shape in infos)
    outputs = (TensorInfo("y", "float32", (-1,)),)
    return ModelTensors(inputs, outputs, batched=all(info.shape[:1] == (-1,) for info in inputs))


TENSORS: Final = [tensors_of(infos) for infos in ALONE]
SIGNATURES: Final = [
    Signature(tuple(TensorSpec(*spec) for spec in specs), (TensorSpec("y", "float32", ()),))
    for specs in (
        [("x", "float32", (2,))],
        [("x", "int8", ())],
        [("x", "uint64", (2, 2))],
        [("x", "bool", (1,))],
        [("a", "float32", (2,)), ("b", "int64", ())],
    )
]


_COLUMNS: Final = ModelTensors((TensorInfo("x", "float64", (-1, 2), labels=("a", "b")),), (), batched=True)
METHODS: Final = Signature(
    (),
    (),
    signatures=tuple(NamedSignature(name, _COLUMNS) for name in ("predict", "predict_proba")),
    method="predict_proba",
)
"""A model whose bodies name a method, and may name its columns."""


def attempt(decode: Callable[[], Any]) -> Any:
    """Decode; None if the body was refused, which is right too."""
    started_s = time.thread_time()
    try:
        decoded = decode()
    except RequestError:
        decoded = None
    assert time.thread_time() - started_s < 2, "that took too long"
    return decoded


def check_arrays(arrays: dict[str, np.ndarray], tensors: ModelTensors) -> None:
    """Assert that inputs are what the model takes, and that they survive being packed."""
    infos = {info.name: info for info in tensors.inputs}
    assert set(arrays) == set(infos)
    for name, array in arrays.items():
        assert infos[name].fits(array.shape), (name, array.shape)
        assert array.dtype == (object if infos[name].dtype == "string" else infos[name].dtype)
    again = unpack(pack(arrays))
    for name, array in arrays.items():
        assert again[name].shape == array.shape
        assert pack({name: again[name]}) == pack({name: array})


def check_infer(example: tuple[bytes, str | None]) -> None:
    body, length = example
    for tensors in TENSORS:

        def decode(tensors: ModelTensors = tensors) -> Any:
            dialect = InferDialect.for_length(None if length is None else length.encode())
            return decode_infer("m", tensors, body, dialect.json_bytes)

        request = attempt(decode)
        if request is not None:
            check_arrays(request.inputs, tensors)


def check_predict(body: bytes) -> None:
    for tensors in TENSORS:
        signatures = [NamedSignature(DEFAULT_SIGNATURE, tensors)]
        for decode in (decode_predict, partial(decode_examples, "m", "classify")):
            request = attempt(partial(decode, signatures, body))
            if request is not None:
                check_arrays(request.inputs, tensors)
    parsing = ModelTensors((TensorInfo("inputs", "string", (-1,)),), (), batched=True)
    attempt(partial(decode_examples, "m", "regress", [NamedSignature("examples", parsing, "regress")], body))


def check_scoring(body: bytes) -> None:
    for signature in SIGNATURES:
        rows = attempt(lambda signature=signature: ScoringDecoder(signature).decode(body))
        if rows is not None:
            assert [array.shape[1:] for array in rows] == [spec.shape for spec in signature.inputs]
    for tensors in TENSORS:
        arrays = attempt(lambda tensors=tensors: decode_tensors(body, tensors))
        if arrays is not None:
            check_arrays(arrays, tensors)
    decoded = attempt(lambda: MethodDecoder(METHODS).decode(body))
    if decoded is not None:
        assert decoded[0] in ("predict", "predict_proba")
        check_arrays(decoded[1], METHODS.signatures[0].tensors)


def check_array(example: tuple[bytes, dict[str, str]]) -> None:
    body, _ = example
    for tensors in TENSORS:
        info = tensors.inputs[0]
        array = attempt(lambda info=info: decode_npy(body, info))
        if array is not None:
            check_arrays({info.name: array}, ModelTensors((info,), (), batched=False))


def check_inflation(example: tuple[bytes, str]) -> None:
    body, coding = example
    inflater = inflater_for([coding.encode()])
    assert inflater is not None

    def inflate() -> int:
        total = 0
        for start in range(0, len(body), 1000):
            for piece in inflater.feed(body[start : start + 1000]):
                assert 0 < len(piece) <= PIECE_BYTES
                total += len(piece)
                if total > BODY_LIMIT_MB << 20:
                    return total
        inflater.finish()
        return total

    attempt(inflate)


texts = st.text(st.characters(max_codepoint=255), max_size=9)
heads = st.builds(RequestHead, texts, texts, texts, st.lists(st.tuples(texts, texts), max_size=4), texts)
requests = st.builds(
    ScriptRequest, st.binary(max_size=40), st.binary(max_size=99), st.integers(0, 1 << 40), st.none() | heads
)
answers = st.builds(
    ScriptAnswer,
    st.binary(max_size=99),
    st.integers(0, 999),
    st.binary(max_size=40),
    st.booleans(),
    st.none() | st.integers(0, 1 << 62),
)


def check_envelope(envelope: ScriptRequest | ScriptAnswer) -> None:
    """Unpacking returns the packed content."""
    assert type(envelope).unpack(envelope.pack()) == envelope


READER: Final = RequestReader()
"""It has read whatever came before."""


def check_message(content: bytes) -> None:
    """A message is read as the library reads it, and its tensors are decoded; twice, for forms are remembered."""
    message = attempt(lambda: RequestMessage.read(content))
    for _ in range(2):
        assert attempt(lambda: READER.read(content)) == message
    try:
        parsed = ModelInferRequest.FromString(content)
    except DecodeError:
        parsed = None
    if parsed is not None:
        assert message is not None, "the library can read it"
        names = (parsed.model_name, parsed.model_version, parsed.id)
        assert (message.model_name, message.model_version, message.id) == names
        assert [bytes(part) for part in message.raw] == list(parsed.raw_input_contents)
    if message is None:
        return
    for tensors in TENSORS:
        decoder = RequestDecoder("m", tensors)
        decoded = [attempt(lambda decoder=decoder: decoder.decode(message)) for _ in range(2)]
        first, second = decoded
        assert (first is None) == (second is None)
        if first is not None:
            assert parsed is not None, "the library cannot read it"
            check_arrays(first.inputs, tensors)
            assert pack(first.inputs) == pack(second.inputs)
            row = decoder.plain_row(message)
            if row is not None:
                request = row.request_of(message)
                assert (request.id, request.wanted, request.timeout_ns) == (
                    first.id,
                    first.wanted,
                    first.timeout_ns,
                )
                (array,) = row.read(message.raw[0], None)
                assert pack(first.inputs) == pack(dict.fromkeys(first.inputs, array))


def check_predict_message(content: bytes) -> None:
    """Tensors are what the model takes, and come back as they are when they are written again."""
    attempt(lambda: ExamplesMessage.read(content))
    message = attempt(lambda: PredictMessage.read(content))
    if message is None:
        return
    for tensors in TENSORS:
        infos = [info for info in tensors.inputs if info.name in message.inputs]
        for info in infos:
            array = attempt(lambda info=info: read_tensor("m", info, message.inputs[info.name]))
            if array is None:
                continue
            # Inputs may lack their last axes of size 1.
            whole = info.completed(array.shape)
            assert whole is not None, (info, array.shape)
            check_arrays({info.name: array.reshape(whole)}, ModelTensors((info,), (), batched=False))
            written = field(1, field(1, b"m")) + field(
                2, field(1, info.name.encode()) + field(2, tensor_bytes(array))
            )
            again = read_tensor("m", info, PredictMessage.read(written).inputs[info.name])
            assert pack({"x": again}) == pack({"x": array})


class Decoder(NamedTuple):
    """A decoder: the bodies to try, and what must hold for each of them."""

    bodies: st.SearchStrategy[Any]
    check: Callable[[Any], None]


_infos = st.sampled_from(ALONE)
DECODERS: Final = {
    "v2": Decoder(_infos.flatmap(lambda infos: infer_requests(infos, ["y"])), check_infer),
    "v1": Decoder(_infos.flatmap(predict_bodies), check_predict),
    "scoring": Decoder(_infos.flatmap(scoring_bodies), check_scoring),
    "arrays": Decoder(_infos.flatmap(lambda infos: array_bodies(infos[0])), check_array),
    "messages": Decoder(_infos.flatmap(lambda infos: infer_messages(infos, ["y"])), check_message),
    "predict messages": Decoder(_infos.flatmap(predict_messages), check_predict_message),
    "inflation": Decoder(compressed(st.binary(max_size=2000)), check_inflation),
    "envelopes": Decoder(requests | answers, check_envelope),
}
"""All of them by name."""
