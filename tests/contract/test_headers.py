"""Headers of the Azure inference server (CONTRACT A.2): what failed, how long it took, ids, TraceId, version."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.contract.in_process import DOORS, InProcessServer, script
from tests.http.raw_http import Answer, Headers, bearer, request
from tests.puppets import PuppetRuntime

from stoker import __version__
from stoker.gateway.http.requests import AllowedHosts
from stoker_azure.aml_response import AMLResponse

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def obey(raw_data: str) -> Any:
    """Follow the commands of the body, a text in JSON."""
    command = json.loads(raw_data)
    match command.split():
        case ["raise"]:
            raise ValueError("a secret of the log")
        case ["exit"]:
            raise SystemExit(0)
        case ["interrupt"]:
            raise KeyboardInterrupt
        case ["bytes"]:
            return b'"bytes"'
        case ["status", status]:
            return AMLResponse("answered", int(status))
        case _:
            return command


@pytest.fixture(scope="module")
def server() -> Iterator[InProcessServer]:
    """A script that follows the commands of its requests."""
    with InProcessServer(script(obey)) as running:
        yield running


@pytest.fixture(scope="module")
def rows() -> Iterator[InProcessServer]:
    """A model without a script that fails for rows that begin with 13."""
    runtime = PuppetRuntime()
    runtime.fails_for = {13}
    with InProcessServer(runtime) as running:
        yield running


@pytest.mark.parametrize(
    ("body", "status", "failed", "executed"),
    [
        (b'"fine"', 200, "False", True),
        (b'"raise"', 500, "True", False),
        (b'"exit"', 500, "True", False),
        (b'"interrupt"', 500, "True", False),
        (b'"bytes"', 500, "True", False),
        (b'"status 404"', 404, "False", True),
        (b'"status 503"', 503, "True", True),
        (b"\xff", 400, "False", False),
    ],
)
def test_headers_have_the_failure_and_the_time_of_run(
    server: InProcessServer, body: bytes, status: int, failed: str, executed: bool
) -> None:
    """`True` marks the script's failures, and the time is there if `run` returned."""
    answer = server.by_both_doors(body)

    assert answer.status == status
    assert answer.header("x-ms-run-function-failed") == failed
    time_ms = answer.header("x-ms-run-fn-exec-ms")
    assert (time_ms is not None) is executed
    assert time_ms is None or re.fullmatch(r"[0-9]+\.[0-9]{3}", time_ms)


@pytest.mark.parametrize(
    ("body", "status", "failed", "executed"),
    [
        (b'{"data": [[1, 2]]}', 200, "False", True),
        (b'{"data": [[13, 2]]}', 500, "True", False),
        (b'{"data": [[1]]}', 422, "False", False),
        (b"{", 400, "False", False),
    ],
)
def test_models_without_a_script_say_the_same(
    rows: InProcessServer, body: bytes, status: int, failed: str, executed: bool
) -> None:
    """There the time is that of the batch."""
    answer = rows.by_both_doors(body)

    assert answer.status == status
    assert answer.header("x-ms-run-function-failed") == failed
    assert (answer.header("x-ms-run-fn-exec-ms") is not None) is executed


def test_a_failure_shows_its_text_and_an_id_and_nothing_else(
    server: InProcessServer, rows: InProcessServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The exception's text stays in the log, under the id that the caller gets."""
    message = "An unexpected error occurred in scoring script. Check the logs for more info."
    for answer in (server.by_both_doors(b'"raise"'), rows.by_both_doors(b'{"data": [[13, 2]]}')):
        content = answer.json()
        assert content.pop("error_id") in caplog.text
        assert content == {"message": message, "code": "model_failed"}
    assert "a secret of the log" in caplog.text


def _ids(answer: Answer) -> tuple[str | None, str | None, str | None]:
    return (
        answer.header("x-request-id"),
        answer.header("x-ms-request-id"),
        answer.header("x-ms-client-request-id"),
    )


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ([], ("uuid", "uuid", None)),
        ([("x-request-id", "A")], ("A", "A", None)),
        ([("x-ms-request-id", "B")], ("uuid", "B", "B")),
        ([("x-ms-client-request-id", "C")], ("uuid", "C", "C")),
        (
            [("x-request-id", "A"), ("x-ms-request-id", "B"), ("x-ms-client-request-id", "C")],
            ("A", "B", "C"),
        ),
        ([("x-request-id", "")], ("uuid", "uuid", None)),
        ([("x-request-id", "caf\xe9")], ("caf\xe9", "caf\xe9", None)),
    ],
)
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/", None),
        ("GET", "/swagger.json", None),
        ("GET", "/swagger.json?version=9", None),
        ("POST", "/score", b'"fine"'),
        ("POST", "/score", b'"raise"'),
        ("HEAD", "/score", None),
        ("OPTIONS", "/score", None),
        ("PUT", "/score", b""),
        ("GET", "/nothing", None),
    ],
)
def test_ids_come_back_from_every_route(
    server: InProcessServer,
    method: str,
    path: str,
    body: bytes | None,
    sent: Headers,
    expected: tuple[str | None, ...],
) -> None:
    """Sent ids come back unchanged; a missing one is made: one uuid for the id and its older name."""
    for door in DOORS.values():
        request_id, older, client = _ids(server.ask(method, path, [*sent, *door], body))
        if expected[0] == "uuid":
            assert UUID.fullmatch(request_id or "")
        else:
            assert request_id == expected[0]
        assert older == (request_id if expected[1] == "uuid" else expected[1])
        assert client == expected[2]


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/"), ("GET", "/swagger.json"), ("POST", "/score"), ("OPTIONS", "/score")]
)
@pytest.mark.parametrize("name", ["x-request-id", "x-ms-request-id", "x-ms-client-request-id"])
def test_too_long_ids_are_refused_first(server: InProcessServer, method: str, path: str, name: str) -> None:
    """101 characters are 431 on every matched route; only a request id that is fine itself comes back."""
    for door in DOORS.values():
        answer = server.ask(method, path, [(name, "a" * 101), *door], b'"fine"' if method == "POST" else None)
        header = name if name == "x-request-id" else "x-ms-request-id and x-ms-client-request-id"
        assert answer.status == 431
        assert answer.json()["message"] == f"{header} must not exceed 100 characters"
        request_id, older, client = _ids(answer)
        assert (older, client) == (None, None)
        assert (request_id is None) if name == "x-request-id" else UUID.fullmatch(request_id or "")


def test_a_request_id_survives_the_refusal_of_the_others(server: InProcessServer) -> None:
    """The request that is refused can still be named."""
    sent = [("x-request-id", "mine"), ("x-ms-client-request-id", "a" * 101)]

    assert _ids(server.ask("POST", "/score", sent, b'"fine"')) == ("mine", None, None)


def test_routes_that_do_not_exist_do_not_look_at_ids(server: InProcessServer) -> None:
    """The router refuses them first."""
    sent = [("x-request-id", "a" * 101)]

    assert server.ask("GET", "/nothing", sent).status == 404
    assert server.ask("PUT", "/score", sent, b"").status == 405


@pytest.mark.parametrize("path", ["/", "/swagger.json", "/score", "/nothing"])
def test_a_trace_id_comes_back(server: InProcessServer, path: str) -> None:
    """`TraceId` is echoed if it was sent, from every route."""
    for method, body in (("GET", None), ("POST", b'"fine"')):
        assert server.ask(method, path, [("TraceId", "t-1")], body).header("traceid") == "t-1"
        assert server.ask(method, path, (), body).header("traceid") is None


@pytest.mark.parametrize("path", ["/", "/swagger.json", "/score", "/nothing"])
def test_answers_name_the_server(server: InProcessServer, path: str) -> None:
    """The product is Stoker's own; every answer has it, through either door."""
    for method, body in (("GET", None), ("POST", b'"fine"')):
        answer = server.ask(method, path, (), body)
        assert answer.header("x-ms-server-version") == f"stoker/{__version__}"


def test_answers_need_not_name_the_server() -> None:
    """SERVER_VERSION_LOG_RESPONSE_ENABLED=false turns that off."""
    with InProcessServer(script(obey), tells_version=False) as server:
        assert server.by_both_doors(b'"fine"').header("x-ms-server-version") is None
        assert server.ask("GET", "/").header("x-ms-server-version") is None


@pytest.mark.parametrize("accept", ["*/*", "text/plain", "application/xml", ""])
@pytest.mark.parametrize("content_type", ["application/json", "text/plain", "application/octet-stream", None])
def test_accept_and_content_type_do_not_matter_to_a_script_of_texts(
    server: InProcessServer, accept: str, content_type: str | None
) -> None:
    """The body is a text with any content type, and the answer is JSON with any Accept."""
    headers = [("Accept", accept), *([("Content-Type", content_type)] if content_type else [])]
    answer = server.by_both_doors(b'"fine"', [*headers, bearer("anything")])

    assert (answer.status, answer.json()) == (200, "fine")
    assert answer.header("content-type") == "application/json"
    assert answer.header("content-encoding") is None


def test_connections_are_kept_alive(server: InProcessServer) -> None:
    """The Azure inference server ends each of them; nobody depends on that."""
    with server.connect() as connection:
        connection.assert_open()
        connection.assert_open()


@pytest.fixture
def own_names_only(rows: InProcessServer) -> Iterator[InProcessServer]:
    """A server without keys, which knows its name."""
    rows.set(hosts=AllowedHosts(("gpu-box",)))
    yield rows
    rows.set(hosts=None)


@pytest.mark.parametrize("door", DOORS)
def test_a_page_with_a_rebound_name_scores_nothing(own_names_only: InProcessServer, door: str) -> None:
    """Earlier requests of its connection change nothing; an address or a known name is answered."""
    good = request("POST", "/score", DOORS[door], b'{"data": [[1, 2]]}')
    evil = good.replace(b"Host: localhost", b"Host: evil.example:8080")
    with own_names_only.connect() as connection:
        for _ in range(3):
            assert connection.ask(good.replace(b"Host: localhost", b"Host: gpu-box")).status == 200
            assert connection.ask(good.replace(b"Host: localhost", b"Host: 127.0.0.1:8080")).status == 200
            answer = connection.ask(evil)
            assert (answer.status, answer.error_code()) == (403, "host_not_allowed")
            assert "--allowed-hosts" in answer.json()["message"]


@pytest.mark.parametrize(
    "path",
    ["/", "/console/", "/console/figures", "/metrics", "/v2", "/v2/models/model", "/swagger.json", "/none"],
)
def test_a_page_with_a_rebound_name_reads_nothing(own_names_only: InProcessServer, path: str) -> None:
    """Of the console, of models and of metrics; nor what there is."""
    probe = request("GET", path)
    with own_names_only.connect() as connection:
        assert connection.ask(probe).status != 403
        answer = connection.ask(probe.replace(b"Host: localhost", b"Host: evil.example"))
        assert (answer.status, answer.error_code()) == (403, "host_not_allowed")
