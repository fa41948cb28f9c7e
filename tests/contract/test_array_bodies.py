"""Bodies that are one array, posted to scoring URIs."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from tests.contract.asking import ask
from tests.contract.protocol_models import MATRIX
from tests.http.raw_http import Answer, Headers
from tests.live_server import LiveServer

ROWS = np.array([[1, 2, 3, 4], [0, 0, 0, 1]], np.float32)
NPY = ("Content-Type", "application/x-npy")
WANTS_NPY = ("Accept", "application/x-npy")


def score(server: LiveServer, model: str, body: bytes, *headers: tuple[str, str]) -> Answer:
    """Post a body to a scoring URI."""
    return ask(server, "POST", f"/api/v1/service/{model}/score", body, headers)


def npy(array: np.ndarray) -> bytes:
    """Return the bytes that `numpy.save` writes."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (npy(ROWS), [NPY]),
        (npy(ROWS), [("Content-Type", "Application/X-Npy; charset=binary")]),
        (npy(np.asfortranarray(ROWS.astype(np.int16))), [NPY]),
    ],
)
def test_an_array_is_scored_as_its_json(protocol_server: LiveServer, body: bytes, headers: Headers) -> None:
    """Body and headers of the answer are those of the same rows in JSON, but for the times."""
    as_json = score(protocol_server, "scores", json.dumps({"data": ROWS.tolist()}).encode())
    assert as_json.json() == (ROWS @ MATRIX).tolist()
    answer = score(protocol_server, "scores", body, *headers)
    assert (answer.status, answer.body) == (200, as_json.body)
    assert {name for name, _ in answer.headers} == {name for name, _ in as_json.headers}
    assert answer.header("x-ms-run-function-failed") == "False"


@pytest.mark.parametrize("accept", ["application/x-npy", "text/html, application/x-npy;q=0.5"])
def test_an_array_is_answered_with_one(protocol_server: LiveServer, accept: str) -> None:
    """A `.npy` file of the output's dtype, if the caller accepts one."""
    answer = score(protocol_server, "scores", npy(ROWS), NPY, ("Accept", accept))
    assert (answer.status, answer.header("content-type")) == (200, "application/x-npy")
    came = np.load(io.BytesIO(answer.body), allow_pickle=False)
    assert came.dtype == np.float32
    assert np.array_equal(came, ROWS @ MATRIX)


def test_models_of_free_sizes_take_arrays(protocol_server: LiveServer) -> None:
    """The models take tokens of any length, strings, and inputs without a batch axis."""
    tokens = np.array([[1, 2, 3]])
    answer = score(protocol_server, "padded", npy(tokens), NPY, WANTS_NPY)
    assert np.load(io.BytesIO(answer.body)).tolist() == [3]
    assert score(protocol_server, "padded", npy(tokens), NPY).json() == [3]
    assert score(protocol_server, "texts", npy(np.array(["é", "b"])), NPY).json() == ["é", "b"]


@pytest.mark.parametrize(
    ("model", "body", "headers", "status", "complaint"),
    [
        ("scores", npy(ROWS)[:-1], [NPY], 400, "has 32 bytes, the body has 31"),
        ("scores", npy(ROWS[:0]), [NPY], 422, "no rows"),
        ("scores", npy(ROWS.reshape(8)), [NPY], 422, "got the shape [8]"),
        (
            "scores",
            ROWS.tobytes(),
            [("Content-Type", "application/octet-stream")],
            400,
            "cannot be decoded as UTF-8",
        ),
        ("scores", ROWS.tobytes(), [NPY], 400, "is no .npy file"),
        ("scores", npy(ROWS > 0), [NPY], 422, "got bool"),
        ("pair", npy(ROWS), [NPY], 422, "has 2 inputs"),
        ("texts", npy(np.array(["a"])), [NPY, WANTS_NPY], 422, "accept JSON"),
        ("sequence", npy(np.zeros((1, 0), np.int64)), [NPY], 422, "out of data bounds"),
    ],
)
def test_array_that_does_not_fit_is_refused(
    protocol_server: LiveServer, model: str, body: bytes, headers: Headers, status: int, complaint: str
) -> None:
    """The error has the shape of the errors of scoring."""
    answer = score(protocol_server, model, body, *headers)
    assert answer.status == status, answer.body
    assert set(answer.json()) == {"message", "code"}
    assert complaint in answer.json()["message"]


def test_an_entry_script_gets_its_bytes(protocol_server: LiveServer) -> None:
    """The script decides about its body, with any content type."""
    assert score(protocol_server, "script", b'{"data": [[1, 2]]}', NPY).json() == [3]


def test_the_key_is_needed(protocol_server: LiveServer) -> None:
    """As for JSON."""
    path = "/api/v1/service/scores/score"
    assert ask(protocol_server, "POST", path, npy(ROWS), [NPY], key=None).status == 401
