"""Infer requests of the Open Inference Protocol v2: JSON, binary data, compression, classification (B.2 to B.4)."""

from __future__ import annotations

import gzip
import json
import math
import struct
import zlib
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.contract.asking import ask, infer, tensor
from tests.contract.protocol_models import DATATYPES, MATRIX
from tests.http.raw_http import Answer
from tests.live_server import LiveServer

ROWS = np.array([[1, 2, 3, 4], [0, 0, 0, 1]], np.float32)
SCORES = ROWS @ MATRIX
X = tensor("x", "FP32", ROWS.tolist())
BINARY_X = {"name": "x", "datatype": "FP32", "shape": [2, 4], "parameters": {"binary_data_size": 32}}
# A header that only the app reads, so that both paths are asked.
DOORS: dict[str, list[tuple[str, str]]] = {
    "direct": [],
    "app": [("Accept-Encoding", "gzip;q=0, deflate;q=0")],
}


def refused(answer: Answer, part: str) -> None:
    """Assert that a request was refused as the caller's fault, and why."""
    assert answer.status == 400, answer.body
    assert answer.header("content-type") == "application/json"
    assert list(answer.json()) == ["error"]
    assert part in answer.json()["error"]


def parts(answer: Answer) -> tuple[dict[str, Any], bytes]:
    """The JSON of an answer, and what follows it."""
    assert answer.status == 200, answer.body
    length = answer.header("inference-header-content-length")
    if length is None:
        assert answer.header("content-type") == "application/json"
        return answer.json(), b""
    assert answer.header("content-type") == "application/octet-stream"
    return json.loads(answer.body[: int(length)]), answer.body[int(length) :]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("flat", [False, True])
def test_data_is_nested_or_flat(protocol_server: LiveServer, door: str, flat: bool) -> None:
    """Answers are flat, and carry model, version and id."""
    data = ROWS.ravel().tolist() if flat else ROWS.tolist()
    answer = infer(protocol_server, "scores", tensor("x", "FP32", data, [2, 4]), id="42", headers=DOORS[door])
    assert (answer.status, answer.header("content-type")) == (200, "application/json")
    assert answer.json() == {
        "model_name": "scores",
        "model_version": "1",
        "id": "42",
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [2, 3], "data": SCORES.ravel().tolist()}],
    }


@pytest.mark.parametrize("more", [{}, {"id": ""}])
def test_no_id_is_no_key(protocol_server: LiveServer, more: dict[str, Any]) -> None:
    """An id that is absent or empty does not come back."""
    assert "id" not in infer(protocol_server, "scores", X, **more).json()


def test_the_content_type_does_not_matter(protocol_server: LiveServer) -> None:
    """Clients send all kinds of them, images among them, or none."""
    for kind in ("text/plain", "application/octet-stream", "image/png", "multipart/form-data"):
        assert infer(protocol_server, "scores", X, headers=[("Content-Type", kind)]).status == 200


def test_outputs_come_in_the_requested_order_and_form(protocol_server: LiveServer) -> None:
    """In the order of the request; none asked for are all."""
    inputs = (tensor("b", "INT64", [[1, 2, 3]]), tensor("a", "FP32", [[0.5, 0.25]]))
    for requested, came in (
        ([], ["sums", "twice"]),
        ([{"name": "twice"}, {"name": "sums"}], ["twice", "sums"]),
        ([{"name": "twice"}], ["twice"]),
    ):
        outputs = infer(protocol_server, "pair", *inputs, outputs=requested).json()["outputs"]
        assert [output["name"] for output in outputs] == came
    assert outputs[0] == {"name": "twice", "datatype": "INT64", "shape": [1, 3], "data": [2, 4, 6]}


def test_models_without_a_batch_axis_and_scalars(protocol_server: LiveServer) -> None:
    """A scalar has the shape [] and one element."""
    answer = infer(protocol_server, "scaled", tensor("x", "FP32", [1, 2, 3]), tensor("k", "FP32", [0.5], []))
    assert [(output["shape"], output["data"]) for output in answer.json()["outputs"]] == [
        ([3], [0.5, 1.0, 1.5]),
        ([], [0.5]),
    ]


def test_strings_are_texts(protocol_server: LiveServer) -> None:
    """BYTES are JSON strings of UTF-8."""
    words = ["é", "", 'a"b\\', "\x00", "日本"]
    (output,) = infer(protocol_server, "texts", tensor("words", "BYTES", words)).json()["outputs"]
    assert output == {"name": "same", "datatype": "BYTES", "shape": [5], "data": words}


@pytest.mark.parametrize("datatype", [name for name in DATATYPES if name != "FP16"])
def test_every_datatype_goes_through_json(protocol_server: LiveServer, datatype: str) -> None:
    """The least and the largest number of each come back; binary data of FP16 stand beside them."""
    dtype = np.dtype(DATATYPES[datatype])
    if dtype.kind in "iu":
        data: list[Any] = [[int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)]]
    else:
        data = [[True, False]] if dtype.kind == "b" else [[-0.1, float(ml_dtypes.finfo(dtype).max)]]
    inputs, binary = every({datatype: data})
    outputs = [{"name": f"out_{datatype}"}]
    answer = infer(protocol_server, "every", *inputs, binary=binary, outputs=outputs)
    (output,) = parts(answer)[0]["outputs"]
    assert (output["datatype"], output["shape"]) == (datatype, [1, 2])
    assert np.array_equal(np.array(output["data"], dtype), np.array(data[0], dtype))
    assert all(type(came) is type(sent) for came, sent in zip(output["data"], data[0], strict=True))


def every(given: dict[str, Any]) -> tuple[list[dict[str, Any]], bytes]:
    """The inputs of the model `every`: those given in the JSON, all others as binary zeros."""
    inputs, binary = [], b""
    for name, dtype in DATATYPES.items():
        if name in given:
            inputs.append(tensor(f"in_{name}", name, given[name]))
            continue
        size = 2 * np.dtype(dtype).itemsize
        binary += bytes(size)
        inputs.append(
            {
                "name": f"in_{name}",
                "datatype": name,
                "shape": [1, 2],
                "parameters": {"binary_data_size": size},
            }
        )
    return inputs, binary


@pytest.mark.parametrize(
    ("datatype", "data", "complaint"),
    [
        ("INT8", [[1, 128]], "does not fit int8"),
        ("INT32", [[1, 2**31]], "does not fit int32"),
        ("UINT8", [[1, 256]], "does not fit uint8"),
        ("UINT32", [[1, -1]], "in_UINT32"),
        ("UINT64", [[1, 2**64]], "in_UINT64"),
        ("INT64", [[1, 2**63]], "in_INT64"),
        ("INT32", [[1, 1.5]], "expected integers"),
        ("INT32", [[1, True]], "expected integers"),
        ("FP32", [[1, "2"]], "expected numbers"),
        ("FP32", [[1, None]], "expected numbers"),
        ("FP32", [[1, 1e39]], "too large for float32"),
        ("BF16", [[1, 1e39]], "too large for bfloat16"),
        ("BF16", [[1, 3.4e38]], "too large for bfloat16"),
        ("BOOL", [[True, 2]], "expected booleans"),
        ("BOOL", [[True, "x"]], "expected booleans"),
        ("FP16", [[1, 2]], "send it as binary data"),
    ],
)
def test_numbers_are_not_bent(
    protocol_server: LiveServer, datatype: str, data: list[Any], complaint: str
) -> None:
    """A number out of range or of another kind is refused; other servers wrap it around."""
    inputs, binary = every({datatype: data})
    refused(infer(protocol_server, "every", *inputs, binary=binary), complaint)


def test_half_precision_is_refused_in_json_answers(protocol_server: LiveServer) -> None:
    """FP16 has no JSON form in either direction; as binary data it comes."""
    inputs, binary = every({})
    outputs: list[dict[str, Any]] = [{"name": "out_FP16"}]
    refused(infer(protocol_server, "every", *inputs, binary=binary, outputs=outputs), "as binary data")
    outputs[0]["parameters"] = {"binary_data": True}
    _, content = parts(infer(protocol_server, "every", *inputs, binary=binary, outputs=outputs))
    assert content == bytes(4)


def test_numbers_that_are_not_finite_go_both_ways(protocol_server: LiveServer) -> None:
    """They are written as the tokens NaN and Infinity."""
    rows = [[math.nan, 1, 1, 1], [math.inf, 0, 0, 0]]
    answer = infer(protocol_server, "scores", tensor("x", "FP32", rows))
    data = answer.json()["outputs"][0]["data"]
    # Row 2: infinity times 1, 0 and 2.
    assert [math.isnan(data[0]), data[3], math.isnan(data[4]), data[5]] == [True, math.inf, True, math.inf]
    assert b"Infinity" in answer.body


def test_one_row_that_is_not_finite_leaves_the_others_alone(protocol_server: LiveServer) -> None:
    """The other row of the request has its usual answer."""
    answer = infer(protocol_server, "scores", tensor("x", "FP32", [[math.nan] * 4, ROWS[0].tolist()]))
    assert answer.json()["outputs"][0]["data"][3:] == SCORES[0].tolist()


@pytest.mark.parametrize("model", ["scores", "texts", "sequence"])
def test_a_batch_of_no_rows_is_answered_with_none(protocol_server: LiveServer, model: str) -> None:
    """200, with the shapes of the outputs; the server lives on."""
    given, shapes = {
        "scores": (tensor("x", "FP32", [], [0, 4]), [[0, 3]]),
        "texts": (tensor("words", "BYTES", [], [0]), [[0]]),
        "sequence": (tensor("tokens", "INT64", [], [0, 5]), [[0], [0, 5]]),
    }[model]
    answer = infer(protocol_server, model, given)
    assert answer.status == 200, answer.body
    assert [(output["shape"], output["data"]) for output in answer.json()["outputs"]] == [
        (shape, []) for shape in shapes
    ]
    assert infer(protocol_server, "scores", X).status == 200


def test_more_rows_than_a_batch_has_are_split(protocol_server: LiveServer) -> None:
    """Other than Triton, which refuses them: the request is cut into batches."""
    rows = np.arange(4 * 500, dtype=np.float32).reshape(500, 4)
    answer = infer(protocol_server, "scores", tensor("x", "FP32", rows.ravel().tolist(), [500, 4]))
    assert np.allclose(np.reshape(answer.json()["outputs"][0]["data"], (500, 3)), rows @ MATRIX)


@pytest.mark.parametrize(
    ("inputs", "more", "complaint"),
    [
        ([], {}, "expected 1 inputs but got 0 inputs for model 'scores'"),
        ([X, X], {}, "is given twice"),
        ([{**X, "name": "z"}], {}, "unexpected inference input 'z' for model 'scores'"),
        ([{**X, "name": 1}], {}, "unexpected inference input 1"),
        (
            [{**X, "datatype": "FP64"}],
            {},
            "inference input 'x' data-type is 'FP64', but model 'scores' expects 'FP32'",
        ),
        ([{**X, "datatype": None}], {}, "data-type is 'None'"),
        (
            [{**X, "shape": [2, 3]}],
            {},
            "unexpected shape for input 'x' for model 'scores'. Expected [-1,4], got [2,3]",
        ),
        ([{**X, "shape": [4]}], {}, "Expected [-1,4], got [4]"),
        ([{**X, "shape": [-1, 4]}], {}, "non-negative integers"),
        ([{**X, "shape": [2.0, 4]}], {}, "non-negative integers"),
        ([{**X, "shape": "2,4"}], {}, "non-negative integers"),
        ([{**X, "shape": [2**62, 4]}], {}, "too many elements"),
        ([{**X, "shape": [1, 4]}], {}, "x"),
        ([tensor("x", "FP32", [1, 2, 3], [1, 4])], {}, "Shape does not match true shape of 'data' field"),
        ([tensor("x", "FP32", [[1, 2], [3, 4]], [1, 4])], {}, "x"),
        ([tensor("x", "FP32", [[1, 2, 3, 4], [5]], [2, 4])], {}, "ragged"),
        ([{key: X[key] for key in ("name", "datatype", "shape")}], {}, "Input must set only one"),
        ([{**X, "parameters": {"binary_data_size": 32}}], {}, "Input must set only one"),
        ([{**X, "parameters": {"shared_memory_region": "r"}}], {}, "shared memory"),
        ([{**X, "parameters": 3}], {}, "'parameters' must be an object"),
        ([X], {"id": 7}, "'id' must be a string"),
        ([X], {"outputs": [{"name": "z"}]}, "unexpected inference output 'z' for model 'scores'"),
        ([X], {"outputs": [{"name": "y"}, {"name": "y"}]}, "asked for twice"),
        ([X], {"outputs": {"name": "y"}}, "'outputs' must be a list"),
        ([X], {"parameters": {"triton_x": 1}}, "starting with 'triton_' are reserved"),
        ([X], {"parameters": {"sequence_id": 5}}, "keeps state"),
        ([X], {"parameters": {"timeout": "soon"}}, "'timeout' must be"),
        ([X], {"parameters": {"binary_data_output": 1}}, "must be true or false"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_in_triton_s_words(
    protocol_server: LiveServer, inputs: list[Any], more: dict[str, Any], complaint: str
) -> None:
    """The answer is 400 in Triton's words."""
    refused(infer(protocol_server, "scores", *inputs, **more), complaint)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"inputs": 3}',
        b'{"inputs": [3]}',
        b"\xff",
        b'{"inputs": []} x',
        b"NaN",
        b"[NaN, 1e400]",
    ],
)
def test_body_that_is_no_request_gets_400(protocol_server: LiveServer, body: bytes) -> None:
    """Malformed JSON gets 400, the caller's fault, instead of Triton's 500."""
    refused(ask(protocol_server, "POST", "/v2/models/scores/infer", body), "")


def test_parameters_that_change_nothing_are_taken(protocol_server: LiveServer) -> None:
    """Sequence parameters without a sequence, priorities, headers and names of one's own."""
    parameters = {"sequence_id": 0, "sequence_start": False, "priority": 1, "headers": {}, "my_own": 1.5}
    assert infer(protocol_server, "scores", X, parameters=parameters).status == 200


@pytest.mark.parametrize("model", ["scores", "sequence"])
def test_a_timeout_is_in_microseconds(protocol_server: LiveServer, model: str) -> None:
    """One microsecond is over before anything can be run; a second is long."""
    given = X if model == "scores" else tensor("tokens", "INT64", [[1, 2]])
    late = infer(protocol_server, model, given, parameters={"timeout": 1})
    assert late.status == 504
    assert list(late.json()) == ["error"]
    assert infer(protocol_server, model, given, parameters={"timeout": 10_000_000}).status == 200


def test_deep_nesting_is_refused_at_once(protocol_server: LiveServer) -> None:
    """200 000 brackets cost no recursion and no time."""
    before_s = protocol_server.computed_s()
    refused(
        ask(protocol_server, "POST", "/v2/models/scores/infer", b'{"inputs":' + b"[" * 200_000), "nested more"
    )
    assert protocol_server.computed_s() - before_s < 5


def test_tensors_that_the_model_cannot_take_are_the_callers_fault(protocol_server: LiveServer) -> None:
    """Sizes may be partly open; the error has ONNX Runtime's reason."""
    refused(infer(protocol_server, "sequence", tensor("tokens", "INT64", [], [1, 0])), "out of data bounds")


@pytest.mark.parametrize("door", DOORS)
def test_binary_in_and_out(protocol_server: LiveServer, door: str) -> None:
    """Bytes behind the JSON, in the order of the inputs, and of the outputs."""
    head, content = parts(
        infer(
            protocol_server,
            "scores",
            BINARY_X,
            binary=ROWS.tobytes(),
            parameters={"binary_data_output": True},
            headers=DOORS[door],
        )
    )
    assert head["outputs"] == [
        {"name": "y", "datatype": "FP32", "shape": [2, 3], "parameters": {"binary_data_size": 24}}
    ]
    assert content == SCORES.tobytes()


def test_json_and_binary_mix(protocol_server: LiveServer) -> None:
    """An input in the JSON takes no bytes; each output says for itself, others as the request does."""
    a = {"name": "a", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}
    head, content = parts(
        infer(
            protocol_server,
            "pair",
            tensor("b", "INT64", [[1, 2, 3]]),
            a,
            binary=np.array([1.5, 2], np.float32).tobytes(),
            parameters={"binary_data_output": True},
            outputs=[{"name": "twice"}, {"name": "sums", "parameters": {"binary_data": False}}],
        )
    )
    assert head["outputs"] == [
        {"name": "twice", "datatype": "INT64", "shape": [1, 3], "parameters": {"binary_data_size": 24}},
        {"name": "sums", "datatype": "FP32", "shape": [1], "data": [3.5]},
    ]
    assert content == np.array([2, 4, 6]).tobytes()


def test_every_datatype_goes_through_binary(protocol_server: LiveServer) -> None:
    """All at once, little-endian, bit for bit; NaN with its payload too."""
    random = np.random.default_rng(3)
    arrays = {
        name: random.integers(0, 2 if dtype == "bool" else 256, 6 * np.dtype(dtype).itemsize, np.uint8)
        .view(dtype)
        .reshape(3, 2)
        for name, dtype in DATATYPES.items()
    }
    inputs = [
        {
            "name": f"in_{name}",
            "datatype": name,
            "shape": [3, 2],
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in arrays.items()
    ]
    binary = b"".join(array.tobytes() for array in arrays.values())
    head, content = parts(
        infer(protocol_server, "every", *inputs, binary=binary, parameters={"binary_data_output": True})
    )
    assert [output["datatype"] for output in head["outputs"]] == list(DATATYPES)
    assert content == binary


def test_strings_have_their_lengths_before_them(protocol_server: LiveServer) -> None:
    """Any bytes that are UTF-8, with a 32-bit length each that counts into the size."""
    words = ["é".encode(), b"", b"x" * 300]
    content = b"".join(struct.pack("<I", len(word)) + word for word in words)
    given = {
        "name": "words",
        "datatype": "BYTES",
        "shape": [3],
        "parameters": {"binary_data_size": len(content)},
    }
    requested = {"parameters": {"binary_data_output": True}}
    head, came = parts(infer(protocol_server, "texts", given, binary=content, **requested))
    assert came == content
    assert head["outputs"][0]["parameters"] == {"binary_data_size": len(content)}


def test_an_answer_of_no_bytes_is_json(protocol_server: LiveServer) -> None:
    """No header of a length, and the content type of JSON."""
    requested = {"parameters": {"binary_data_output": True}}
    head, content = parts(infer(protocol_server, "scores", tensor("x", "FP32", [], [0, 4]), **requested))
    assert content == b""
    assert head["outputs"][0]["parameters"] == {"binary_data_size": 0}


@pytest.mark.parametrize("door", DOORS)
def test_a_raw_body_is_the_tensor(protocol_server: LiveServer, door: str) -> None:
    """A length of 0 means no JSON: one row, and all outputs come back binary."""
    headers = [*DOORS[door], ("Inference-Header-Content-Length", "0")]
    path = "/v2/models/scores/infer"
    head, content = parts(ask(protocol_server, "POST", path, ROWS[0].tobytes(), headers))
    assert head["outputs"][0]["shape"] == [1, 3]
    assert content == SCORES[:1].tobytes()
    refused(ask(protocol_server, "POST", path, ROWS[0].tobytes()[1:], headers), "x")


def test_a_raw_body_of_free_length(protocol_server: LiveServer) -> None:
    """The one size that is free follows from the length; strings have no length before them."""
    headers = [("Inference-Header-Content-Length", "0")]
    tokens = np.arange(5)
    head, _ = parts(ask(protocol_server, "POST", "/v2/models/sequence/infer", tokens.tobytes(), headers))
    assert [output["shape"] for output in head["outputs"]] == [[1], [1, 5]]
    head, content = parts(ask(protocol_server, "POST", "/v2/models/texts/infer", b"word", headers))
    assert (head["outputs"][0]["shape"], content) == ([1], b"\4\0\0\0word")
    refused(ask(protocol_server, "POST", "/v2/models/pair/infer", b"12345678", headers), "one input")


@pytest.mark.parametrize(
    ("size", "binary", "complaint"),
    [
        (32, bytes(31), "unexpected size for input 'x', expecting 1 additional bytes for model 'scores'"),
        (32, bytes(33), "unexpected additional input data for model 'scores'"),
        (31, bytes(31), "x"),
        (33, bytes(33), "x"),
        (-1, bytes(32), "non-negative integer"),
        (True, bytes(32), "non-negative integer"),
        (32.0, bytes(32), "non-negative integer"),
        ("32", bytes(32), "non-negative integer"),
    ],
)
def test_binary_sizes_must_add_up(
    protocol_server: LiveServer, size: Any, binary: bytes, complaint: str
) -> None:
    """One byte more or less is an error, and so is a size that is none."""
    given = {**BINARY_X, "parameters": {"binary_data_size": size}}
    refused(infer(protocol_server, "scores", given, binary=binary), complaint)


@pytest.mark.parametrize("length", ["99999", "-1", "x", "1.5", "9" * 30, "9" * 5000])
@pytest.mark.parametrize("door", DOORS)
def test_a_length_of_the_json_that_is_none_is_refused(
    protocol_server: LiveServer, length: str, door: str
) -> None:
    """It is a number of at most the body's bytes."""
    headers = [*DOORS[door], ("Inference-Header-Content-Length", length)]
    answer = ask(protocol_server, "POST", "/v2/models/scores/infer", {"inputs": [X]}, headers)
    refused(answer, "inference header size should be")


@pytest.mark.parametrize("door", DOORS)
def test_two_lengths_of_the_json_are_refused_if_they_differ(protocol_server: LiveServer, door: str) -> None:
    """Proxies may read another one than the server; the same length twice is unambiguous."""
    body = json.dumps({"inputs": [X]}).encode()
    for other, status in ((len(body) - 1, 400), (0, 400), (len(body), 200)):
        for lengths in ((other, len(body)), (len(body), other)):
            given = [("Inference-Header-Content-Length", str(length)) for length in lengths]
            answer = ask(protocol_server, "POST", "/v2/models/scores/infer", body, [*DOORS[door], *given])
            assert answer.status == status, answer
            if status == 400:
                refused(answer, "twice")


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_compressed_both_ways(protocol_server: LiveServer, coding: str) -> None:
    """JSON and binary data together; the length of the JSON counts its bytes as they are."""
    rows = np.tile(ROWS, (200, 1))
    given = {**BINARY_X, "shape": [400, 4], "parameters": {"binary_data_size": rows.nbytes}}
    text = json.dumps({"inputs": [given], "parameters": {"binary_data_output": True}}).encode()
    compress = gzip.compress if coding == "gzip" else zlib.compress
    answer = ask(
        protocol_server,
        "POST",
        "/v2/models/scores/infer",
        compress(text + rows.tobytes()),
        [
            ("Content-Encoding", coding),
            ("Accept-Encoding", f"br;q=1, {coding};q=0.5"),
            ("Inference-Header-Content-Length", str(len(text))),
        ],
    )
    assert (answer.status, answer.header("content-encoding")) == (200, coding)
    content = (gzip.decompress if coding == "gzip" else zlib.decompress)(answer.body)
    length = int(answer.header("inference-header-content-length") or 0)
    assert json.loads(content[:length])["outputs"][0]["parameters"] == {"binary_data_size": 400 * 12}
    assert content[length:] == np.tile(SCORES, (200, 1)).tobytes()


def test_short_answers_and_refusals_are_not_compressed(protocol_server: LiveServer) -> None:
    """Nothing is gained by it, and errors are plain JSON always."""
    headers = [("Accept-Encoding", "gzip")]
    answer = infer(protocol_server, "scores", X, headers=headers)
    assert answer.header("content-encoding") is None
    assert answer.json()["outputs"][0]["shape"] == [2, 3]
    refused(infer(protocol_server, "scores", {**X, "name": "z" * 2000}, headers=headers), "unexpected")


def test_an_unknown_coding_is_refused(protocol_server: LiveServer) -> None:
    """415 says which codings are read."""
    answer = infer(protocol_server, "scores", X, headers=[("Content-Encoding", "br")])
    assert (answer.status, list(answer.json())) == (415, ["error"])
    assert answer.header("accept-encoding") == "gzip, deflate"


def test_bodies_are_bounded_as_they_come_and_inflated(protocol_server: LiveServer) -> None:
    """A body above the limit, or one that would become so, is 413 in the protocol's shape."""
    bomb = gzip.compress(bytes(64 << 20))
    assert len(bomb) < 1 << 20
    for body, headers in ((bytes((1 << 20) + 1), []), (bomb, [("Content-Encoding", "gzip")])):
        answer = ask(protocol_server, "POST", "/v2/models/scores/infer", body, headers)
        assert (answer.status, list(answer.json())) == (413, ["error"])


def test_a_corrupt_body_is_refused(protocol_server: LiveServer) -> None:
    """Compressed data that end too early, or are none."""
    whole = gzip.compress(json.dumps({"inputs": [X]}).encode())
    for body in (whole[:-9], b"not gzip"):
        answer = ask(protocol_server, "POST", "/v2/models/scores/infer", body, [("Content-Encoding", "gzip")])
        refused(answer, "compressed")


def classes(server: LiveServer, data: list[Any], count: Any, **more: Any) -> Answer:
    """Ask the model `scores` for its largest values."""
    outputs = [{"name": "y", "parameters": {"classification": count, **more}}]
    return infer(server, "scores", tensor("x", "FP32", data), outputs=outputs)


def test_classes_are_the_largest_values(protocol_server: LiveServer) -> None:
    """Texts of value and index with six decimals; of equal ones the lower index first, NaN last."""
    # The last row of the matrix is three ones.
    data = [[0, 0, 0, 2], [1, 0, 0, 0], [0, 0, 0, math.nan]]
    (output,) = classes(protocol_server, data, 2).json()["outputs"]
    assert output == {
        "name": "y",
        "datatype": "BYTES",
        "shape": [3, 2],
        "data": ["2.000000:0", "2.000000:1", "2.000000:2", "1.000000:0", "nan:0", "nan:1"],
    }


def test_no_more_classes_than_there_are(protocol_server: LiveServer) -> None:
    """Asked for more, all come; asked for none, the tensor does; binary data are possible."""
    row = [[1, 0, 0, 0]]
    assert classes(protocol_server, row, 99).json()["outputs"][0]["shape"] == [1, 3]
    assert classes(protocol_server, row, 0).json()["outputs"][0]["data"] == [1, 0, 2]
    _, content = parts(classes(protocol_server, row, 1, binary_data=True))
    assert content == b"\x0a\0\0\x002.000000:2"


@pytest.mark.parametrize("count", [-1, "1", 1.5, True])
def test_a_number_of_classes_is_one(protocol_server: LiveServer, count: Any) -> None:
    """Other values are refused."""
    refused(classes(protocol_server, [[1, 0, 0, 0]], count), "'classification' must be")


def test_classes_without_a_batch_axis(protocol_server: LiveServer) -> None:
    """The shape is that of one vector."""
    inputs = (tensor("x", "FP32", [1, 3, 2]), tensor("k", "FP32", [1], []))
    outputs = [{"name": "y", "parameters": {"classification": 2}}]
    (output,) = infer(protocol_server, "scaled", *inputs, outputs=outputs).json()["outputs"]
    assert (output["shape"], output["data"]) == ([2], ["3.000000:1", "2.000000:2"])


@pytest.mark.parametrize(("model", "output"), [("texts", "same"), ("every", "out_FP16")])
def test_outputs_without_numbers_have_no_classes(
    protocol_server: LiveServer, model: str, output: str
) -> None:
    """Strings and FP16 are refused."""
    inputs, binary = every({}) if model == "every" else ([tensor("words", "BYTES", ["a"])], None)
    outputs = [{"name": output, "parameters": {"classification": 1}}]
    refused(infer(protocol_server, model, *inputs, binary=binary, outputs=outputs), "cannot be classified")


def test_the_scoring_protocol_takes_every_dtype_as_numbers(protocol_server: LiveServer) -> None:
    """Of the same model: BF16 and FP16 come back as the numbers that they are."""
    data = {
        f"in_{name}": [[True, False]] if name == "BOOL" else [[1, 0]] if name[0] in "UI" else [[0.5, -2]]
        for name in DATATYPES
    }
    body = json.dumps({"data": data}).encode()
    answer = ask(protocol_server, "POST", "/api/v1/service/every/score", body)
    assert answer.status == 200, answer.body
    assert answer.json() == {name.replace("in_", "out_"): rows for name, rows in data.items()}
    too_large = json.dumps({"data": {**data, "in_BF16": [[3.4e38, 0]]}}).encode()
    answer = ask(protocol_server, "POST", "/api/v1/service/every/score", too_large)
    assert (answer.status, answer.json()["code"]) == (422, "invalid_input")
