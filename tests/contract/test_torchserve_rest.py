"""TorchServe's inference API over HTTP: every kind of body and model, through both paths, and its errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.contract.in_process import DOORS, KEY, MAX_BODY_BYTES, InProcessServer, script
from tests.http.raw_http import Headers
from tests.puppets import PuppetRuntime

from stoker.gateway.served_models import ServedModel, ServedVersion
from stoker.settings.versions import VersionStatus
from stoker.wire.array_bodies import encode_npy
from stoker_azure.aml_request import AMLRequest
from stoker_azure.aml_response import AMLResponse

ROWS = [[1.0, 2.0], [3.0, 4.0]]
DOUBLED = [[2.0, 4.0], [6.0, 8.0]]
FORM = [("Content-Type", "multipart/form-data; boundary=b")]


def echo(request: AMLRequest) -> AMLResponse:
    """Return the input unchanged."""
    sent = {"Content-Type": request.headers.get("Content-Type", "none"), "X-Method": request.method}
    return AMLResponse(request.get_data(), 200, sent)


def shout(raw_data: str) -> str:
    if raw_data in ("", "1"):
        raise ValueError("nothing")
    return raw_data.upper()


@pytest.fixture(scope="module")
def server() -> Iterator[InProcessServer]:
    """A model that doubles rows of two numbers, a script that takes text, and one that takes requests."""
    runtimes = {"doubler": PuppetRuntime(), "shout": script(shout), "echo": script(echo, raw=True)}
    with InProcessServer(runtimes, key=KEY) as running:
        yield running


def predict(
    server: InProcessServer, path: str, body: bytes, headers: Headers = (), method: str = "POST"
) -> Any:
    """Return the answer of both paths, which has to be the same."""
    answers = [server.ask(method, f"/predictions/{path}", [*headers, *door], body) for door in DOORS.values()]
    assert answers[0].status == answers[1].status
    assert answers[0].body == answers[1].body
    return answers[0]


def refused(answer: Any, status: int, kind: str, part: str) -> None:
    """Assert that a request was refused as TorchServe does, and why."""
    assert (answer.status, answer.header("content-type")) == (status, "application/json"), answer.body
    error = answer.json()
    assert (error["code"], error["type"]) == (status, kind)
    assert list(error) == ["code", "type", "message"]
    assert part in error["message"]


def form(*contents: bytes) -> bytes:
    """A form of parts as `curl -F data=@…` sends them."""
    head = b'--b\r\nContent-Disposition: form-data; name="data"; filename="f"\r\n\r\n'
    return b"".join(head + content + b"\r\n" for content in contents) + b"--b--\r\n"


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        (ROWS, DOUBLED),
        ({"data": ROWS}, DOUBLED),
        ({"input_data": ROWS}, DOUBLED),
        ({"instances": ROWS}, {"predictions": DOUBLED}),
        ({"inputs": {"x": ROWS}}, {"outputs": DOUBLED}),
        ({"signature_name": "", "instances": ROWS}, {"predictions": DOUBLED}),
    ],
)
@pytest.mark.parametrize("path", ["doubler", "doubler/1", "doubler/1.0"])
def test_json_is_rows(server: InProcessServer, path: str, body: Any, answer: Any) -> None:
    """A list, Azure's objects and KServe's; each is answered in its own form."""
    text = json.dumps(body).encode()
    assert predict(server, path, text).json() == answer
    assert predict(server, path, text, method="PUT").json() == answer


def test_forms_and_arrays_are_rows(server: InProcessServer) -> None:
    """A file of JSON in a form, and the array of the only input."""
    assert predict(server, "doubler", form(json.dumps(ROWS).encode()), FORM).json() == DOUBLED
    array = np.array(ROWS, np.float32)
    npy = [("Content-Type", "application/x-npy")]
    assert predict(server, "doubler", encode_npy(array), npy).json() == DOUBLED
    refused(
        predict(server, "doubler", form(b"[]", b"[]"), FORM), 413, "BadRequestException", "more than 1 parts"
    )
    refused(predict(server, "doubler", b"--b--", FORM), 400, "BadRequestException", "no parts")


def test_bodies_of_many_rows(server: InProcessServer) -> None:
    """They wait for a turn of the loop; `tests/unit/gateway/scoring` tests bodies read beside it."""
    rows = ROWS * 2000
    for body, answer in ((rows, DOUBLED * 2000), ({"instances": rows}, {"predictions": DOUBLED * 2000})):
        assert predict(server, "doubler", json.dumps(body).encode()).json() == answer


def test_scripts_get_the_body(server: InProcessServer) -> None:
    """They get a text or the whole request; the answer is the script's, of any type."""
    assert predict(server, "shout", b"a cat").json() == "A CAT"
    answer = predict(server, "echo", b"\x89PNG", [("Content-Type", "image/png")], "PUT")
    assert (answer.status, answer.body, answer.header("content-type")) == (200, b"\x89PNG", "image/png")
    assert answer.header("x-method") == "POST"
    body = form(b"one", b"two")
    assert predict(server, "echo", body, FORM).body == body
    refused(predict(server, "shout", body, FORM), 415, "BadRequestException", "cannot read multipart")


@pytest.mark.parametrize(
    ("path", "body", "status", "kind", "part"),
    [
        ("nobody", b"[]", 404, "ModelNotFoundException", "Model not found: nobody"),
        ("nobody/1", b"[]", 404, "ModelNotFoundException", "Model not found: nobody"),
        (
            "doubler/2.0",
            b"[]",
            404,
            "ModelVersionNotFoundException",
            "Model version: 2.0 does not exist for model: doubler",
        ),
        ("doubler", b"[[1]]", 400, "BadRequestException", "row 0 has 1"),
        ("doubler", b'{"instances": 1}', 400, "BadRequestException", "'instances' must be an array"),
        ("doubler", b"{", 400, "BadRequestException", ""),
        ("doubler", b"1" * (MAX_BODY_BYTES + 1), 413, "BadRequestException", "larger than 1 MiB"),
        ("shout", b"", 400, "BadRequestException", "Request body is not valid JSON"),
        ("shout", b"1", 500, "InternalServerException", "An unexpected error occurred in scoring script"),
    ],
)
def test_errors(server: InProcessServer, path: str, body: bytes, status: int, kind: str, part: str) -> None:
    """Status, type and message in TorchServe's JSON."""
    refused(predict(server, path, body), status, kind, part)


def test_a_key_is_needed(server: InProcessServer) -> None:
    """401 through both paths; an unloaded version is not found, one that loads is unavailable."""
    for door in DOORS.values():
        with server.connect() as connection:
            lines = b"".join(f"{name}: {value}\r\n".encode() for name, value in door)
            head = b"POST /predictions/doubler HTTP/1.1\r\nHost: x\r\n" + lines
            connection.send(head + b"Content-Length: 2\r\n\r\n[]")
            refused(connection.answer(), 401, "InvalidKeyException", "Authorization")


def test_versions(server: InProcessServer) -> None:
    """A version that loads is unavailable, one that was unloaded is not found."""
    gateway, known = server.gateway, server.gateway.directory.models["doubler"]
    loading = ServedVersion(VersionStatus(7, "LOADING"))
    ended = ServedVersion(VersionStatus(8, "END", "unloaded"))
    gateway.directory.models["doubler"] = ServedModel(
        {**known.versions, "2": loading, "3": ended}, known.default
    )
    try:
        refused(predict(server, "doubler/2", b"[]"), 503, "ServiceUnavailableException", "is not ready")
        refused(predict(server, "doubler/3", b"[]"), 404, "ModelNotFoundException", "is not found")
    finally:
        gateway.directory.models["doubler"] = known


def test_explanations_are_refused(server: InProcessServer) -> None:
    """With a sentence; methods that there are not are refused too."""
    answer = server.ask("POST", "/explanations/doubler", body=b"[]")
    refused(answer, 501, "InternalServerException", "ask /predictions/doubler")
    refused(server.ask("POST", "/explanations/nobody", body=b"[]"), 404, "ModelNotFoundException", "nobody")
    refused(server.ask("DELETE", "/predictions/doubler"), 405, "MethodNotAllowedException", "not allowed")


def test_ping_and_the_description(server: InProcessServer) -> None:
    """Both without a key; the description keeps the header that Azure's clients read."""
    assert server.ask("GET", "/ping").json() == {"status": "Healthy"}
    described = server.ask("OPTIONS", "/")
    assert set((described.header("allow") or "").split(", ")) == {"GET", "HEAD", "OPTIONS"}
    assert described.json()["openapi"] == "3.0.1"
    parameters = described.json()["paths"]["/predictions/{model_name}"]["post"]["parameters"]
    assert [parameter["name"] for parameter in parameters] == ["model_name"]
