"""Routes and methods of the Azure inference server (CONTRACT A.1, A.4, A.8), for every form of a model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.contract.in_process import KEY, InProcessServer, script
from tests.http.raw_http import request
from tests.puppets import PuppetRuntime

from stoker_azure.aml_response import AMLResponse

NOT_ALLOWED = "The method is not allowed for the requested URL."
NOT_FOUND = (
    "The requested URL was not found on the server. If you entered the URL manually please check your spelling "
    "and try again."
)
SCORING_METHODS = {"GET", "HEAD", "OPTIONS", "POST"}

seen: list[str] = []


def echo(raw_data: str) -> str:
    """The body as it came."""
    seen.append(raw_data)
    return raw_data


def tell(request: Any) -> AMLResponse:
    """Return the fields of the request object."""
    seen.append(request.method)
    facts = [request.method, request.path, request.query_string.decode(), request.get_data().decode()]
    return AMLResponse(facts, 200, json_str=True)


@pytest.fixture(scope="module")
def string() -> Iterator[InProcessServer]:
    """A script without decorators."""
    with InProcessServer(script(echo)) as server:
        yield server


@pytest.fixture(scope="module")
def raw() -> Iterator[InProcessServer]:
    """A script under `@rawhttp`."""
    with InProcessServer(script(tell, raw=True)) as server:
        yield server


@pytest.fixture(scope="module")
def rows() -> Iterator[InProcessServer]:
    """A model without a script: rows of two numbers, doubled."""
    with InProcessServer(PuppetRuntime()) as server:
        yield server


@pytest.fixture(params=["string", "rows"])
def form(request: pytest.FixtureRequest) -> InProcessServer:
    """Each form that does not see requests itself."""
    server: InProcessServer = request.getfixturevalue(request.param)
    return server


def test_the_root_says_healthy_without_a_word_on_run(string: InProcessServer) -> None:
    """`GET /` is the platform's probe: HTML with one word, ids, and no x-ms-run-function-failed."""
    get, head = string.ask("GET", "/"), string.ask("HEAD", "/")

    assert (get.status, get.body) == (200, b"Healthy")
    assert get.header("content-type") == "text/html; charset=utf-8"
    assert get.header("x-ms-run-function-failed") is None
    assert get.header("x-request-id")
    assert (head.status, head.header("content-length")) == (200, "7")


def test_the_path_before_a_service_says_healthy_too(string: InProcessServer) -> None:
    """A front end strips it on Azure; here it is a path: `/api/v1/service/NAME/`, if there is such a service."""
    assert string.ask("GET", "/api/v1/service/model/").body == b"Healthy"
    assert string.ask("GET", "/api/v1/service/other/").json()["code"] == "unknown_service"


@pytest.mark.parametrize("path", ["/", "/swagger.json"])
def test_other_routes_tell_their_methods(string: InProcessServer, path: str) -> None:
    """OPTIONS is 200 with `Allow`; the description of TorchServe's API, at `/`, is the only content."""
    answer = string.ask("OPTIONS", path)

    assert (answer.status, bool(answer.body)) == (200, path == "/")
    assert set((answer.header("allow") or "").split(", ")) == {"GET", "HEAD", "OPTIONS"}


@pytest.mark.parametrize("path", ["/score/", "/pre/score", "/scores", "/nothing", "/Score"])
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_other_paths_are_not_found(string: InProcessServer, path: str, method: str) -> None:
    """The answer is 404 in Azure's words, with ids, for any method."""
    answer = string.ask(method, path, body=b"{}")

    assert (answer.status, answer.json()) == (404, {"message": NOT_FOUND, "code": "not_found"})
    assert answer.header("x-ms-run-function-failed") == "False"
    assert answer.header("x-request-id")


@pytest.mark.parametrize("path", ["//score", "///score", "/%73core", "/score?a=1", "http://elsewhere/score"])
def test_other_spellings_of_a_path_match(string: InProcessServer, path: str) -> None:
    """Slashes in front, percent-encoding, a query and the absolute form change nothing about POST."""
    answer = string.ask("POST", path, body=b"as sent")

    assert (answer.status, answer.json()) == (200, "as sent")


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "TRACE", "BOGUS"])
def test_methods_that_scoring_never_has(raw: InProcessServer, form: InProcessServer, method: str) -> None:
    """405 in Azure's words with `Allow`, also for a script that sees requests itself: it does not run."""
    seen.clear()
    for server in (raw, form):
        answer = server.ask(method, "/score", body=b"")
        assert (answer.status, answer.json()["message"]) == (405, NOT_ALLOWED)
        assert set((answer.header("allow") or "").split(", ")) == SCORING_METHODS
        assert answer.header("x-ms-run-function-failed") == "False"
    assert seen == []


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "TRACE"])
def test_refused_methods_carry_ids(string: InProcessServer, method: str) -> None:
    """Callers find every request that has a head by its id."""
    answer = string.ask(method, "/score", [("x-request-id", "mine")], b"")

    assert answer.header("x-request-id") == "mine"


@pytest.mark.parametrize(("method", "path"), [("POST", "/"), ("POST", "/swagger.json"), ("PUT", "/")])
def test_methods_that_other_routes_never_have(string: InProcessServer, method: str, path: str) -> None:
    """405 with `Allow`."""
    answer = string.ask(method, path, body=b"{}")

    assert (answer.status, answer.json()["message"]) == (405, NOT_ALLOWED)
    assert set((answer.header("allow") or "").split(", ")) == {"GET", "HEAD", "OPTIONS"}


def test_head_is_not_scored(form: InProcessServer) -> None:
    """405 with ids; the length is the one of the error that GET would have as its body."""
    seen.clear()
    answer = form.ask("HEAD", "/score?data=1")

    expected = json.dumps({"message": "Method not allowed", "code": "method_not_allowed"})
    assert (answer.status, answer.header("content-length")) == (405, str(len(expected)))
    assert set((answer.header("allow") or "").split(", ")) == SCORING_METHODS - {"HEAD"}
    assert answer.header("x-request-id")
    assert seen == []


def test_options_is_empty(form: InProcessServer) -> None:
    """200 without content, as HTML, and nothing has failed; nothing runs."""
    seen.clear()
    answer = form.ask("OPTIONS", "/score")

    assert (answer.status, answer.body) == (200, b"")
    assert answer.header("content-type") == "text/html; charset=utf-8"
    assert answer.header("x-ms-run-function-failed") == "False"
    assert answer.header("x-ms-run-fn-exec-ms") is None
    assert answer.header("x-request-id")
    assert seen == []


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (
            "a=1&b=[1,2]&c=a&d=null&foo=x&foo=2&e=",
            '{"a": 1, "b": [1, 2], "c": "a", "d": null, "foo": ["x", 2], "e": ""}',
        ),
        ("d=1e5&e=01&f=true", '{"d": 100000.0, "e": "01", "f": true}'),
        ("x=NaN&y=-Infinity", '{"x": NaN, "y": -Infinity}'),
        ("t=a+b%20c%26d", '{"t": "a b c&d"}'),
        ("t=%C3%A9&u=%E9", '{"t": "\\u00e9", "u": "%E9"}'),
        ("z=1&a=2&z=3", '{"z": [1, 3], "a": 2}'),
        ("", "{}"),
    ],
)
def test_get_gives_a_script_its_query_as_json(string: InProcessServer, query: str, expected: str) -> None:
    """Each value is JSON or else a string, repeats are lists, the order is kept; the script gets text."""
    answer = string.ask("GET", f"/score?{query}")

    assert (answer.status, answer.json()) == (200, expected)
    assert answer.header("x-ms-run-fn-exec-ms")


def test_get_without_a_query_gives_a_script_an_empty_object(string: InProcessServer) -> None:
    """`GET /score` alone is `{}`; a body that comes with it is not looked at."""
    assert string.ask("GET").json() == "{}"
    assert string.ask("GET", body=b"ignored").json() == "{}"


def test_get_scores_rows(rows: InProcessServer) -> None:
    """A model without a script takes rows in a query too."""
    answer = rows.ask("GET", "/score?data=[[1,2],[3,4.5]]")

    assert (answer.status, answer.json()) == (200, [[2, 4], [6, 9]])
    assert rows.ask("GET", "/score?rows=1").status == 422


def test_get_with_too_deep_a_value_is_malformed(string: InProcessServer) -> None:
    """No depth of brackets costs more than a 400."""
    answer = string.ask("GET", f"/score?a={'[' * 10_000}")

    assert (answer.status, answer.json()["code"]) == (400, "malformed_body")


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "HEAD"])
def test_a_script_under_rawhttp_handles_every_method(raw: InProcessServer, method: str) -> None:
    """It sees method, path, query and body; the content of its answer to HEAD is dropped, its length is not."""
    seen.clear()
    answer = raw.ask(method, "/score?a=1&a=2", body=b"payload" if method == "POST" else None)

    facts = [method, "/score", "a=1&a=2", "payload" if method == "POST" else ""]
    assert answer.status == 200
    assert answer.header("content-length") == str(len(json.dumps(facts)))
    if method != "HEAD":
        assert answer.json() == facts
    assert answer.header("x-ms-run-fn-exec-ms")
    assert seen == [method]


@pytest.mark.parametrize(
    ("method", "status"), [("POST", 401), ("GET", 401), ("HEAD", 405), ("OPTIONS", 200), ("PUT", 405)]
)
def test_methods_that_run_the_script_need_a_key(method: str, status: int) -> None:
    """Other methods need none: probes and preflight requests carry no key."""
    with InProcessServer(script(echo), key=KEY) as server, server.connect() as connection:
        connection.send(request(method, "/score", body=b""))
        assert connection.answer(bodiless=method == "HEAD").status == status


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST"])
def test_under_rawhttp_every_method_needs_a_key(method: str) -> None:
    """Each of them runs the script."""
    with InProcessServer(script(tell, raw=True), key=KEY) as server, server.connect() as connection:
        connection.send(request(method, "/score", body=b""))
        assert connection.answer(bodiless=method == "HEAD").status == 401
