"""`infer`, and `score` by binary data: bodies, answers, and the cases that use JSON instead."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from functools import partial
from typing import Any

import httpx
import numpy as np
import pytest
from tests.unit.stoker_client.scripted import Caller as ScriptedCaller
from tests.unit.stoker_client.scripted import Kind, error

from stoker_client import InvalidInput, InvalidRows, ModelFailed, NotFound, Overloaded, StokerClientError
from stoker_client.flow import BINARY_BYTES

URI = "http://127.0.0.1:8080/api/v1/service/digits/score"
Caller = partial(ScriptedCaller, describes=True)
ROWS = np.linspace(-1, 1, 8 * 784, dtype=np.float32).reshape(8, 784)
assert ROWS.nbytes >= BINARY_BYTES

NUMPY = {
    "FP32": "<f4",
    "FP64": "<f8",
    "FP16": "<f2",
    "INT64": "<i8",
    "INT8": "i1",
    "UINT64": "<u8",
    "BOOL": "?",
}


def metadata(inputs: Mapping[str, tuple[str, list[int]]], outputs: Mapping[str, str]) -> httpx.Response:
    """The answer of the metadata endpoint."""
    return httpx.Response(
        200,
        json={
            "name": "digits",
            "versions": ["1"],
            "platform": "onnxruntime_onnx",
            "inputs": [
                {"name": name, "datatype": datatype, "shape": shape}
                for name, (datatype, shape) in inputs.items()
            ],
            "outputs": [
                {"name": name, "datatype": datatype, "shape": [-1]} for name, datatype in outputs.items()
            ],
        },
    )


DIGITS = metadata({"x": ("FP32", [-1, 784])}, {"y": "FP32"})


def binary_answer(*outputs: tuple[str, str, list[int], bytes]) -> httpx.Response:
    """An answer with binary outputs."""
    described = [
        {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(content)}}
        for name, datatype, shape, content in outputs
    ]
    text = json.dumps({"model_name": "digits", "model_version": "1", "outputs": described}).encode()
    content = text + b"".join(output[3] for output in outputs)
    return httpx.Response(200, content=content, headers={"Inference-Header-Content-Length": str(len(text))})


def json_answer(*outputs: tuple[str, str, list[int], list[Any]]) -> httpx.Response:
    """An answer in JSON, with a token of infinity where there is one."""
    described = [
        {"name": name, "datatype": datatype, "shape": shape, "data": data}
        for name, datatype, shape, data in outputs
    ]
    return httpx.Response(200, content=json.dumps({"model_name": "digits", "outputs": described}))


def read_request(request: httpx.Request) -> tuple[dict[str, Any], dict[str, np.ndarray | bytes]]:
    """The JSON of a binary request, and its inputs."""
    assert request.headers["content-type"] == "application/octet-stream"
    start = int(request.headers["inference-header-content-length"])
    head = json.loads(request.content[:start])
    arrays: dict[str, np.ndarray | bytes] = {}
    for info in head["inputs"]:
        content = request.content[start : start + info["parameters"]["binary_data_size"]]
        start += len(content)
        if info["datatype"] == "BYTES":
            arrays[info["name"]] = content
        else:
            arrays[info["name"]] = np.frombuffer(content, NUMPY[info["datatype"]]).reshape(info["shape"])
    assert start == len(request.content)
    return head, arrays


def test_named_arrays_go_and_come_as_binary_data(kind: Kind) -> None:
    """Metadata are requested once; inputs become the model's datatypes; outputs keep theirs."""
    described = metadata({"a": ("FP32", [-1, 2]), "b": ("INT8", [-1])}, {"y": "FP16", "n": "UINT64"})
    half = np.array([[0.5, -2]], "<f2")
    answer = binary_answer(
        ("y", "FP16", [1, 2], half.tobytes()), ("n", "UINT64", [1], struct.pack("<Q", 2**64 - 1))
    )
    caller = Caller(kind, [described, answer], uri=URI, key="the-key")
    outputs = caller.call("infer", {"a": [[1, 2.5]], "b": np.array([-128])}, ["y", "n"])
    assert {name: (array.dtype, array.tolist()) for name, array in outputs.items()} == {
        "y": (np.float16, [[0.5, -2.0]]),
        "n": (np.uint64, [2**64 - 1]),
    }
    outputs["y"][0, 0] = 1  # a copy, which can be written
    description, infer = caller.requests
    assert (description.method, description.url.path) == ("GET", "/v2/models/digits")
    assert (infer.method, infer.url.path) == ("POST", "/v2/models/digits/infer")
    assert infer.headers["authorization"] == "Bearer the-key"
    head, arrays = read_request(infer)
    assert head["parameters"] == {"binary_data_output": True}
    assert [output["name"] for output in head["outputs"]] == ["y", "n"]
    assert (arrays["a"].tolist(), arrays["b"].tolist()) == ([[1, 2.5]], [-128])  # type: ignore[union-attr]


def test_strings_are_bytes_and_texts(kind: Kind) -> None:
    """Lengths stand before them, both ways; other outputs may come as JSON."""
    described = metadata({"words": ("BYTES", [-1])}, {"same": "BYTES", "n": "INT64"})
    content = struct.pack("<I", 2) + "é".encode() + struct.pack("<I", 0)
    answer = binary_answer(("same", "BYTES", [2], content))
    caller = Caller(kind, [described, answer], uri=URI)
    outputs = caller.call("infer", {"words": ["é", b""]})
    assert outputs["same"].tolist() == ["é".encode(), b""]
    _, arrays = read_request(caller.requests[1])
    assert arrays["words"] == content


@pytest.mark.parametrize(
    ("shape", "data", "expected"), [([2], [1, 2], [1, 2]), ([], [7], 7), ([0, 3], [], [])]
)
def test_json_outputs_are_read(kind: Kind, shape: list[int], data: list[int], expected: Any) -> None:
    """A server may answer in JSON all the same: it does where there are no bytes."""
    described = metadata({"k": ("FP32", [])}, {"n": "INT64"})
    caller = Caller(kind, [described, json_answer(("n", "INT64", shape, data))], uri=URI)
    (output,) = caller.call("infer", {"k": 0.5}).values()
    assert (output.dtype, output.shape, output.tolist()) == (np.int64, tuple(shape), expected)
    assert read_request(caller.requests[1])[1]["k"].shape == ()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("inputs", "complaint"),
    [
        ({"z": [1]}, "digits has no input 'z'; it has x, n, words, b"),
        (np.zeros((1, 2)), "inputs has to be a dict of arrays by name, of x, n, words, b, not ndarray"),
        ({"x": [[1], [1, 2]]}, "x: "),
        ({"x": ["1"]}, "x takes FP32, not an array of dtype <U1"),
        ({"x": [True]}, "x takes FP32, not an array of dtype bool"),
        ({"x": [1e39]}, "too large"),
        ({"n": [1.5]}, "n takes INT8, not an array of dtype float64"),
        ({"n": [128]}, "out of its range"),
        ({"n": [-(2**60)]}, "out of its range"),
        ({"words": [1]}, "words takes strings, not int"),
        ({"b": [1]}, "b takes BOOL"),
        ({"x": np.ma.masked_equal([0.5, 1.5], 1.5)}, "x is a masked array, and what lies under its mask"),
    ],
)
def test_input_that_does_not_fit_the_datatype_is_not_sent(
    kind: Kind, inputs: dict[str, Any], complaint: str
) -> None:
    """Only the request for the metadata is sent."""
    described = metadata(
        {"x": ("FP32", [-1]), "n": ("INT8", [-1]), "words": ("BYTES", [-1]), "b": ("BOOL", [-1])}, {}
    )
    caller = Caller(kind, [described], uri=URI)
    with pytest.raises(InvalidRows) as refused:
        caller.call("infer", inputs)
    assert complaint in str(refused.value)


def test_numbers_that_are_not_finite_are_sent(kind: Kind) -> None:
    """Other than JSON, binary data have a form for them."""
    described = metadata({"x": ("FP32", [-1])}, {"y": "FP32"})
    answer = binary_answer(("y", "FP32", [1], struct.pack("<f", np.inf)))
    caller = Caller(kind, [described, answer], uri=URI)
    assert caller.call("infer", {"x": [np.nan, -np.inf]})["y"].tolist() == [np.inf]
    assert np.isnan(read_request(caller.requests[1])[1]["x"][0])


def test_errors_have_their_classes(kind: Kind) -> None:
    """The code comes in a header; the metadata are read again after an error."""
    refused = httpx.Response(
        400, json={"error": "unexpected shape"}, headers={"x-stoker-error-code": "invalid_input"}
    )
    caller = Caller(kind, [DIGITS, refused], uri=URI)
    with pytest.raises(InvalidInput, match="unexpected shape") as raised:
        caller.call("infer", {"x": [1]})
    assert raised.value.status == 400
    caller = Caller(kind, [error(404, "not_found")], uri=URI)
    with pytest.raises(NotFound):
        caller.call("infer", {"x": [1]})


def test_infer_retries_as_score_does(kind: Kind) -> None:
    """503 is tried again, for the metadata and for the request."""
    busy = httpx.Response(503, json={"error": "busy"}, headers={"x-stoker-error-code": "overloaded"})
    answer = json_answer(("y", "FP32", [1], [0.5]))
    caller = Caller(kind, [busy, DIGITS, busy, answer], uri=URI)
    assert caller.call("infer", {"x": ROWS})["y"].tolist() == [0.5]
    caller = Caller(kind, [DIGITS, busy], uri=URI, retries=0)
    with pytest.raises(Overloaded):
        caller.call("infer", {"x": ROWS})


def test_the_only_model_needs_no_name(kind: Kind) -> None:
    """`/score` is the only model's; where there are several, the URI has to say which."""
    listed = httpx.Response(200, json={"models": ["digits"]})
    caller = Caller(
        kind, [listed, DIGITS, json_answer(("y", "FP32", [1], [0.5]))], uri="http://h/prefix/score"
    )
    caller.call("infer", {"x": ROWS})
    assert [request.url.path for request in caller.requests] == [
        "/prefix/v2/models",
        "/prefix/v2/models/digits",
        "/prefix/v2/models/digits/infer",
    ]
    caller = Caller(kind, [httpx.Response(200, json={"models": ["a", "b"]})])
    with pytest.raises(ValueError, match="has to name one of the server's models: a, b"):
        caller.call("infer", {"x": ROWS})
    caller = Caller(kind, [], uri="http://h/elsewhere")
    with pytest.raises(ValueError, match="has to end in /score"):
        caller.call("infer", {"x": ROWS})


def test_a_script_has_no_tensors(kind: Kind) -> None:
    """The client says so before it sends a request."""
    caller = Caller(kind, [metadata({}, {})], uri=URI)
    with pytest.raises(InvalidRows, match="takes whole bodies"):
        caller.call("infer", {"x": ROWS})


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200, json=[]),
        httpx.Response(200, json={"outputs": [{"name": "y"}]}),
        httpx.Response(200, json={"outputs": [{"name": "y", "datatype": "Q", "shape": [1], "data": [1]}]}),
        binary_answer(("y", "FP32", [3], b"12345678")),
        binary_answer(("y", "BYTES", [1], b"123")),
    ],
)
def test_answers_without_tensors_are_refused(kind: Kind, answer: httpx.Response) -> None:
    """Something else than Stoker may answer there."""
    caller = Caller(kind, [DIGITS, answer], uri=URI)
    with pytest.raises(StokerClientError, match="holds no tensors"):
        caller.call("infer", {"x": ROWS})


def test_large_arrays_are_scored_as_binary_data(kind: Kind) -> None:
    """Inputs binary, outputs in JSON: so their decimals are those of the scoring URI."""
    answer = json_answer(("y", "FP32", [2, 2], [0.1, 1.0, 2.5, 3.0]))
    caller = Caller(kind, [DIGITS, answer], uri=URI)
    scores = caller.call("score", ROWS)
    assert scores.dtype == np.float32
    assert np.array_equal(scores, np.array([[0.1, 1.0], [2.5, 3.0]], np.float32))
    head, arrays = read_request(caller.requests[1])
    assert head["outputs"] == [{"name": "y", "parameters": {"binary_data": False}}]
    assert np.array_equal(arrays["x"], ROWS)


def test_several_outputs_and_half_precision(kind: Kind) -> None:
    """A dict by name, each in its datatype; FP16 comes as binary data, for it has no form in JSON."""
    described = metadata({"x": ("FP32", [-1, 784])}, {"h": "FP16", "n": "INT64"})
    text = json.dumps(
        {
            "outputs": [
                {"name": "h", "datatype": "FP16", "shape": [1], "parameters": {"binary_data_size": 2}},
                {"name": "n", "datatype": "INT64", "shape": [1], "data": [7]},
            ]
        }
    ).encode()
    answer = httpx.Response(
        200,
        content=text + np.array([0.1], "<f2").tobytes(),
        headers={"Inference-Header-Content-Length": str(len(text))},
    )
    caller = Caller(kind, [described, answer], uri=URI)
    scores = caller.call("score", ROWS)
    assert (scores["h"].dtype, scores["h"].tolist()) == (np.float16, [0.0999755859375])
    assert (scores["n"].dtype, scores["n"].tolist()) == (np.int64, [7])


def test_metadata_are_fetched_once(kind: Kind) -> None:
    """`score_many` sends its batches one after the other; only the first waits for the metadata."""
    answers = [json_answer(("y", "FP32", [8], [float(start + row) for row in range(8)])) for start in (0, 8)]
    caller = Caller(kind, [DIGITS, *answers], uri=URI)
    scores = caller.call("score_many", np.concatenate([ROWS, ROWS]), batch_rows=8, concurrency=1)
    assert scores.tolist() == list(range(16))


def is_json(request: httpx.Request) -> bool:
    return request.headers["content-type"] == "application/json" and request.url.path.endswith("/score")


ANSWER = httpx.Response(200, json=[0.5])


@pytest.mark.parametrize(
    ("described", "rows"),
    [
        (error(404, "not_found"), ROWS),
        (httpx.Response(200, json={"another": "server"}), ROWS),
        (httpx.ConnectTimeout("slow"), ROWS),
        (httpx.Response(503, json={"error": "busy"}), ROWS),
        (metadata({}, {}), ROWS),
        (metadata({"x": ("FP32", [-1, 784]), "z": ("FP32", [-1])}, {"y": "FP32"}), ROWS),
        (metadata({"x": ("FP32", [-1, 784])}, {"y": "BYTES"}), ROWS),
        (metadata({"x": ("FP32", [-1, 783])}, {"y": "FP32"}), ROWS),
        (metadata({"x": ("FP64", [-1, 784])}, {"y": "FP32"}), ROWS),
        (metadata({"x": ("INT64", [-1, 784])}, {"y": "FP32"}), ROWS),
        (DIGITS, ROWS > 0),
        (DIGITS, np.full((8, 784), 1e300)),
    ],
)
def test_where_binary_data_are_not_taken_json_is_sent(kind: Kind, described: Any, rows: np.ndarray) -> None:
    """Other servers, scripts, several inputs, strings; and numbers for which JSON gives another result or error."""
    caller = Caller(kind, [described, ANSWER], uri=URI)
    assert caller.call("score", rows.repeat(4, axis=0)).tolist() == [0.5]
    assert is_json(caller.requests[1])


@pytest.mark.parametrize(
    "described",
    [error(404, "not_found"), httpx.Response(302), httpx.Response(200, json=[]), metadata({}, {})],
)
def test_missing_metadata_are_not_fetched_again(kind: Kind, described: httpx.Response) -> None:
    """The same client does not ask again for a description that the server does not have."""
    answers = [httpx.Response(200, json=[0.5] * 8)] * 2
    caller = Caller(kind, [described, *answers], uri=URI)
    caller.call("score_many", np.concatenate([ROWS, ROWS]), batch_rows=8, concurrency=1)
    assert [request.method for request in caller.requests] == ["GET", "POST", "POST"]


def test_numbers_that_are_not_finite_are_refused_as_ever(kind: Kind) -> None:
    """`score` sends no NaN, whichever way it would go."""
    rows = ROWS.copy()
    rows[3, 5] = np.nan
    caller = Caller(kind, [DIGITS], uri=URI)
    with pytest.raises(InvalidRows, match=r"body\['data'\]\[3\]\[5\] is nan"):
        caller.call("score", rows)


@pytest.mark.parametrize("rows", [ROWS[:1], ROWS.tolist(), ROWS[:5]])
def test_small_arrays_and_lists_are_json(kind: Kind, rows: Any) -> None:
    """The model's metadata are read behind the answer, for its dtype."""
    caller = Caller(kind, [ANSWER, DIGITS], uri=URI)
    assert caller.call("score", rows).dtype == np.float32
    assert is_json(caller.requests[0])


def test_doubles_are_rounded_as_by_json(kind: Kind) -> None:
    """A model of FP32 gets the nearest numbers."""
    rows = np.random.default_rng(1).random((8, 784))
    caller = Caller(kind, [DIGITS, json_answer(("y", "FP32", [1], [0.5]))], uri=URI)
    caller.call("score", rows)
    assert np.array_equal(read_request(caller.requests[1])[1]["x"], rows.astype(np.float32))


@pytest.mark.parametrize("status", [400, 404])
def test_refused_binary_request_is_sent_again_as_json(kind: Kind, status: int) -> None:
    """The model may have changed, so the server's answer to JSON decides."""
    refused = httpx.Response(status, json={"error": "no"}, headers={"x-stoker-error-code": "invalid_input"})
    refusal = httpx.Response(422, json={"message": "expected rows of 783 numbers", "code": "invalid_input"})
    caller = Caller(kind, [DIGITS, refused, refusal], uri=URI)
    with pytest.raises(InvalidInput, match="expected rows of 783 numbers"):
        caller.call("score", ROWS)


def test_other_errors_are_those_of_json(kind: Kind) -> None:
    """A model that fails is not run again for the sake of the error."""
    failed = httpx.Response(500, json={"error": "it failed"}, headers={"x-stoker-error-code": "model_failed"})
    caller = Caller(kind, [DIGITS, failed], uri=URI)
    with pytest.raises(ModelFailed, match="it failed"):
        caller.call("score", ROWS)


def test_the_time_limit_holds_for_all_of_it(kind: Kind) -> None:
    """The time for the metadata is taken from the time for the request."""
    timeouts: list[float] = []

    def slow(_: httpx.Request) -> httpx.Response:
        caller.timeline.sleep(3)
        return httpx.Response(503, json={"error": "busy"})

    def note(request: httpx.Request) -> httpx.Response:
        timeouts.append(request.extensions["timeout"]["read"])
        return httpx.Response(200, json=[0.5])

    caller = Caller(kind, [slow, note], uri=URI, timeout_s=4)
    caller.call("score", ROWS)
    assert timeouts == [1]
