"""Rows, bodies and the requests built of them."""

import json

import numpy as np
import pytest

from stoker.errors import InvalidSettings
from stoker.tensors import Signature, TensorSpec
from stoker.wire.oip_requests import decode_infer
from stoker.wire.oip_responses import encode_infer
from stoker_bench.generators.scoring_request import (
    DATA_LISTS,
    OPEN_INFERENCE,
    binary_open_inference,
    random_rows,
    scoring_request,
)


def test_rows_survive_the_body_exactly() -> None:
    """The values have 4 decimals, so a server parses exactly the rows' float32 values."""
    rows = random_rows(3, (784,), seed=1)
    body = DATA_LISTS.encode(rows)
    assert np.array_equal(np.array(json.loads(body)["data"], dtype=np.float32), rows)
    assert 5_000 < len(body) / 3 < 6_000


def test_rows_keep_their_shape_and_differ_by_seed() -> None:
    """Rows of two axes nest, and another seed gives other rows."""
    rows = random_rows(2, (4, 5))
    assert np.array(json.loads(DATA_LISTS.encode(rows))["data"]).shape == (2, 4, 5)
    assert not np.array_equal(rows, random_rows(2, (4, 5), seed=12))


def test_open_inference_body_is_flat_with_its_shape() -> None:
    """The v2 tensor says its shape and holds the values row by row."""
    rows = random_rows(2, (3,))
    tensor = json.loads(OPEN_INFERENCE.encode(rows))["inputs"][0]
    assert tensor["shape"] == [2, 3]
    assert np.array_equal(np.array(tensor["data"], dtype=np.float32), rows.reshape(-1))


@pytest.mark.parametrize(
    "answer",
    ["[[1, 2], [3, 4]]", '{"logits": [[1, 2], [3, 4]]}', '"[[1, 2], [3, 4]]"', "[1, 2, 3, 4]"],
)
def test_data_list_answers_are_read(answer: str) -> None:
    """Lists, an object that holds one, a double-encoded list and a flat one give rows of outputs."""
    assert DATA_LISTS.decode(answer.encode(), 2).tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("answer", ["[]", "[[1, 2], [3]]", "[1, 2, 3]", '"x"', "{}", "nonsense"])
def test_other_answers_are_refused(answer: str) -> None:
    """Empty, ragged, badly sized and unreadable answers raise ValueError and nothing else."""
    with pytest.raises(ValueError):  # noqa: PT011 - json, numpy and the size check word it differently
        DATA_LISTS.decode(answer.encode(), 2)


def test_open_inference_answers_are_read() -> None:
    """The first output counts; an error object has none."""
    answer = {"outputs": [{"name": "logits", "shape": [2, 2], "data": [1, 2, 3, 4]}]}
    assert OPEN_INFERENCE.decode(json.dumps(answer).encode(), 2).tolist() == [[1, 2], [3, 4]]
    with pytest.raises(ValueError, match="no outputs"):
        OPEN_INFERENCE.decode(b'{"error": "no"}', 2)


def test_binary_bodies_follow_the_protocol_of_the_server() -> None:
    """JSON, then the rows as they lie in memory; the outputs come back in the same way."""
    dialect, rows = binary_open_inference("x"), random_rows(2, (3,))
    signature = Signature((TensorSpec("x", "float32", (3,)),), (TensorSpec("y", "float32", (2,)),))
    length = int(dialect.headers(rows)["Inference-Header-Content-Length"])
    assert signature.model_tensors is not None
    request = decode_infer("m", signature.model_tensors, dialect.encode(rows), length)
    assert np.array_equal(request.inputs["x"], rows)
    outputs = np.array([[1, 2], [3, 4]], np.float32)
    answered, body = encode_infer("m", "1", request, {"y": outputs}, batched=True)
    assert answered is not None
    assert dialect.decode(body, 2).tolist() == outputs.tolist()


@pytest.mark.parametrize("answer", [b'{"error": "no"}', b'{"outputs": [{"data": [1]}]}', b"nonsense"])
def test_other_answers_than_binary_are_refused(answer: bytes) -> None:
    """An error, an answer of JSON alone and other bytes raise ValueError and nothing else."""
    with pytest.raises(ValueError):  # noqa: PT011 - json and the decoder word it differently
        binary_open_inference("x").decode(answer, 1)


def test_http_bytes_are_a_whole_request() -> None:
    """Request line, host, key and length stand before the body."""
    request = scoring_request("http://127.0.0.1:8080/api/v1/service/x/score?a=1", b"{}", key="secret")
    head, _, body = request.http_bytes.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /api/v1/service/x/score?a=1 HTTP/1.1"
    assert b"Host: 127.0.0.1:8080" in lines
    assert b"Authorization: Bearer secret" in lines
    assert b"Content-Length: 2" in lines
    assert body == b"{}"
    assert request.uri == "http://127.0.0.1:8080/api/v1/service/x/score?a=1"


def test_tls_is_refused_by_its_name() -> None:
    """The generators do not speak it, and say so instead of that the URI is none."""
    with pytest.raises(InvalidSettings, match="is of TLS, which the generators do not speak"):
        scoring_request("https://127.0.0.1/score", b"")


def test_no_key_means_no_header() -> None:
    """Without a key the request has no authorization, and the port defaults to 80."""
    request = scoring_request("http://localhost", b"")
    assert "Authorization" not in request.headers
    assert (request.port, request.path) == (80, "/")


@pytest.mark.parametrize("uri", ["https://127.0.0.1/score", "127.0.0.1:8080/score", "http:///score"])
def test_unusable_uris_are_refused(uri: str) -> None:
    """A URI other than plain http is refused with an example."""
    with pytest.raises(InvalidSettings, match="give one such as"):
        scoring_request(uri, b"")
