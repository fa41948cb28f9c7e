"""Error messages quote little of a caller's texts."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stoker.errors import (
    MalformedBody,
    StokerError,
    UnsupportedEncoding,
    cut,
    json_beginning,
    quoted,
    quoted_names,
)
from stoker.gateway.http.encodings import inflater_for
from stoker.gateway.http.requests import query_body
from stoker.gateway.protocols.infer import InferDialect
from stoker.gateway.protocols.repository import check_unload_parameters, read_config
from stoker.tensors import ModelTensors, NamedSignature, Signature, TensorInfo, TensorSpec
from stoker.wire.oip_codec import InferCodec
from stoker.wire.oip_requests import MAX_ID_CHARS, decode_infer
from stoker.wire.oip_responses import encode_infer
from stoker.wire.scoring import decode_document
from stoker.wire.tensor_json import decode_tensors
from stoker.wire.tfs import decode_predict

LONG = "x" * 5000
INPUT = TensorInfo("x", "float32", (-1, 4))
OUTPUT = TensorInfo("y", "float32", (-1, 4))
TENSORS = ModelTensors((INPUT,), (OUTPUT,), batched=True)
TWO = Signature(
    (TensorSpec("a", "float32", (1,)), TensorSpec("b", "float32", (1,))), (TensorSpec("y", "float32", (1,)),)
)
ROW: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}


def test_short_texts_are_repeated_whole() -> None:
    """Up to a hundred characters nothing is cut; other values than texts are named, or written."""
    text = "a" * 100
    assert (cut(text), quoted(text), cut(text + "a")) == (text, f"'{text}'", text + "…")
    assert (quoted("it's"), quoted(None), quoted(3), quoted(True)) == ('"it\'s"', "None", "3", "True")
    assert (quoted([LONG]), cut({LONG: LONG}), cut(10**200)) == ("a list", "an object", "1" + "0" * 99 + "…")
    assert quoted_names(["a", "b"]) == "'a', 'b'"
    assert len(quoted_names(iter([LONG] * 5000))) == 101


@pytest.mark.parametrize(
    "value",
    [
        None,
        1.5,
        "ü" * 40,
        LONG,
        [LONG],
        [[[]]] * 100,
        list(range(1000)),
        {"b64": 5, "x": [1, {"y": None}], LONG: LONG},
        {str(index): [index] for index in range(1000)},
        [{"a": {"b": [True] * 60}}] * 3,
    ],
)
def test_the_beginning_of_a_value_is_that_of_its_json(value: Any) -> None:
    """The first characters are the same as if all of it were written."""
    assert json_beginning(value) == json.dumps(value)[:100]


def _infer(**changes: Any) -> None:
    decode_infer("m", TENSORS, json.dumps({"inputs": [{**ROW, **changes}]}).encode(), None)


def _infer_outputs(name: Any) -> None:
    document = {"inputs": [ROW], "outputs": [{"name": name}]}
    decode_infer("m", TENSORS, json.dumps(document).encode(), None)


def _infer_parameters(name: str) -> None:
    document = {"inputs": [ROW], "parameters": {name: 1}}
    decode_infer("m", TENSORS, json.dumps(document).encode(), None)


def _predict(document: Any) -> None:
    decode_predict([NamedSignature("s", TENSORS)], json.dumps(document).encode())


@pytest.mark.parametrize(
    "ask",
    [
        lambda: _infer(name=LONG),
        lambda: _infer(name=[LONG]),
        lambda: _infer(datatype=LONG),
        lambda: _infer(datatype={"a": LONG}),
        lambda: _infer_outputs(LONG),
        lambda: _infer_outputs([LONG]),
        lambda: _infer_parameters("triton_" + LONG),
        lambda: _predict({"inputs": {"x": [[1, 2, 3, 4]], LONG: 1}}),
        lambda: _predict({"inputs": [[LONG, 2, 3, 4]]}),
        lambda: _predict({"inputs": [[{LONG: LONG}, 2, 3, 4]]}),
        lambda: _predict({"signature_name": LONG, "inputs": [[1, 2, 3, 4]]}),
        lambda: decode_tensors(json.dumps({"data": {LONG: 1}}).encode(), TENSORS),
        lambda: decode_tensors(json.dumps({"data": {str(n): 1 for n in range(5000)}}).encode(), TENSORS),
        lambda: decode_document({"data": {"a": [], "b": [], **{str(n): 1 for n in range(5000)}}}, TWO),
        lambda: inflater_for([LONG.encode()]),
        lambda: InferDialect.for_length(LONG.encode()),
        lambda: query_body(f"{LONG}={'[' * 200}".encode()),
        lambda: check_unload_parameters("m", {LONG: 1}),
        lambda: check_unload_parameters(LONG, {"unload_dependents": 1}),
        lambda: read_config("m", json.dumps({"name": LONG})),
        lambda: read_config("m", json.dumps({str(n): 1 for n in range(5000)})),
    ],
)
def test_messages_shorten_long_names_and_values(ask: Callable[[], None]) -> None:
    """The message is short, and long enough to find the fault."""
    with pytest.raises(StokerError) as refused:
        ask()
    assert 20 < len(str(refused.value)) < 400


def test_an_image_type_is_repeated_in_part() -> None:
    """The media type of an image that is not read can be as long as a header."""
    pytest.importorskip("PIL.Image", reason="Pillow, of the images extra, is not installed")
    from stoker.settings.image_input import ImageInput
    from stoker.wire.images import ImageReader

    taken = Signature((TensorSpec("x", "float32", (4,)),), TWO.outputs)
    reader = ImageReader(ImageInput(2, 2, 1), taken, max_pixels=100, max_rows_bytes=100)
    with pytest.raises(UnsupportedEncoding, match=r"^image/x{94}… is not read"):
        reader.open(b"GIF", b"image/" + LONG.encode())


@pytest.mark.parametrize("binary", [False, True])
def test_ids_of_infer_requests_are_bounded(binary: bool) -> None:
    """An answer repeats the id of its request, which may have 1024 characters, whichever way it is read."""
    codec = InferCodec("m", "1", TENSORS)
    row = {"name": "x", "datatype": "FP32", "shape": [1, 4]}
    row |= {"parameters": {"binary_data_size": 16}} if binary else {"data": [1, 2, 3, 4]}

    def decode(identifier: str) -> bytes:
        text = json.dumps({"id": identifier, "inputs": [row]}).encode()
        body = text + bytes(16) if binary else text
        request = codec.decode(body, len(text) if binary else None)
        return encode_infer("m", "1", request, {"y": np.zeros((1, 4), np.float32)}, batched=True)[1]

    # The second request is read as the first one was.
    for _ in range(2):
        assert b"i" * MAX_ID_CHARS in decode("i" * MAX_ID_CHARS)
        with pytest.raises(MalformedBody, match="'id' has more than 1024 characters"):
            decode("i" * (MAX_ID_CHARS + 1))
