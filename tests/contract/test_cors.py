"""Cross-origin requests (CONTRACT A.3): headers only, nothing is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.contract.in_process import KEY, InProcessServer, script
from tests.http.raw_http import Answer, Headers, request

from stoker_azure.aml_response import AMLResponse

LISTED = ("https://one.example", "https://two.example")
ALLOW_ORIGIN = "access-control-allow-origin"
ROUTES = [
    ("GET", "/", 200),
    ("GET", "/swagger.json", 200),
    ("GET", "/swagger.json?version=9", 404),
    ("POST", "/score", 200),
    ("HEAD", "/score", 405),
    ("PUT", "/score", 405),
    ("GET", "/nothing", 404),
]

seen: list[str] = []


def echo(raw_data: str) -> str:
    """The body as it came."""
    return raw_data


def tell(request: Any) -> Any:
    """The method, for `@rawhttp`."""
    seen.append(request.method)
    if request.args.get("own"):
        return AMLResponse("x", 200, {"Access-Control-Allow-Origin": "https://own.example"})
    return request.method


@pytest.fixture(scope="module")
def server() -> Iterator[InProcessServer]:
    """One with two origins."""
    with InProcessServer(script(echo), cors=LISTED) as running:
        yield running


@pytest.fixture(scope="module")
def every() -> Iterator[InProcessServer]:
    """One for every origin."""
    with InProcessServer(script(echo), cors=["*"]) as running:
        yield running


@pytest.fixture(scope="module")
def raw() -> Iterator[InProcessServer]:
    """One with a script that handles every method."""
    with InProcessServer(script(tell, raw=True), cors=LISTED) as running:
        yield running


def _cors(answer: Answer) -> dict[str, str]:
    return {name: value for name, value in answer.headers if name.startswith("access-") or name == "vary"}


def _preflight(server: InProcessServer, origin: str, *more: tuple[str, str], method: str = "POST") -> Answer:
    preflight: Headers = [("Origin", origin), ("Access-Control-Request-Method", method), *more]
    return server.ask("OPTIONS", "/score", preflight)


@pytest.mark.parametrize("origin", LISTED)
@pytest.mark.parametrize(("method", "path", "status"), ROUTES)
def test_listed_origins_may_read(
    server: InProcessServer, method: str, path: str, status: int, origin: str
) -> None:
    """Every answer names the origin, errors too, and varies with it."""
    answer = server.ask(method, path, [("Origin", origin)], b"{}" if method == "POST" else None)

    assert answer.status == status
    assert _cors(answer) == {ALLOW_ORIGIN: origin, "vary": "Origin"}


@pytest.mark.parametrize("origin", ["https://three.example", "https://one.example.evil", "null"])
@pytest.mark.parametrize(("method", "path", "status"), ROUTES)
def test_other_origins_are_answered_without_a_word(
    server: InProcessServer, method: str, path: str, status: int, origin: str
) -> None:
    """The request is served as usual; the browser keeps the answer from the page."""
    answer = server.ask(method, path, [("Origin", origin)], b"{}" if method == "POST" else None)

    assert answer.status == status
    assert _cors(answer) == {}


@pytest.mark.parametrize(("method", "path", "status"), ROUTES)
def test_without_an_origin_the_first_one_is_named(
    server: InProcessServer, every: InProcessServer, method: str, path: str, status: int
) -> None:
    """On every answer, also those of the fast path, and where it is empty; `*` if every origin is allowed."""
    body = b"{}" if method == "POST" else None
    for sent in ([], [("Origin", "")]):
        first, star = server.ask(method, path, sent, body), every.ask(method, path, sent, body)
        assert (first.status, star.status) == (status, status)
        assert _cors(first) == {ALLOW_ORIGIN: LISTED[0], "vary": "Origin"}
        assert _cors(star) == {ALLOW_ORIGIN: "*"}


def test_a_star_names_the_origin_that_asks(every: InProcessServer) -> None:
    """Any origin is echoed."""
    answer = every.ask("POST", "/score", [("Origin", "https://any.example")], b"{}")

    assert _cors(answer) == {ALLOW_ORIGIN: "https://any.example", "vary": "Origin"}


def test_origins_have_no_case(server: InProcessServer) -> None:
    """Schemes and hosts are the same in upper case; the answer names the origin as it was sent."""
    answer = server.ask("GET", "/", [("Origin", "HTTPS://Two.example")])

    assert _cors(answer) == {ALLOW_ORIGIN: "HTTPS://Two.example", "vary": "Origin"}


def test_one_origin_alone_does_not_vary() -> None:
    """A request without an origin always gets the same headers."""
    with InProcessServer(script(echo), cors=LISTED[:1]) as server:
        assert _cors(server.ask("GET", "/")) == {ALLOW_ORIGIN: LISTED[0]}


def test_browsers_ask_before_they_send(server: InProcessServer) -> None:
    """The answer is 200, empty, with two methods and the requested headers; it needs no key."""
    answer = _preflight(
        server, LISTED[1], ("Access-Control-Request-Headers", "authorization,content-type, x-a")
    )

    assert (answer.status, answer.body) == (200, b"")
    assert _cors(answer) == {
        ALLOW_ORIGIN: LISTED[1],
        "vary": "Origin",
        "access-control-allow-methods": "GET, POST",
        "access-control-allow-headers": "authorization, content-type, x-a",
    }


def test_browsers_may_ask_without_naming_headers(server: InProcessServer) -> None:
    """Then none are named."""
    assert "access-control-allow-headers" not in _cors(_preflight(server, LISTED[0]))


def test_preflight_without_an_origin_names_the_first_one(server: InProcessServer) -> None:
    """A preflight request without an origin gets the first allowed origin."""
    answer = server.ask("OPTIONS", "/score", [("Access-Control-Request-Method", "GET")])

    assert _cors(answer) == {
        ALLOW_ORIGIN: LISTED[0],
        "vary": "Origin",
        "access-control-allow-methods": "GET, POST",
    }


def test_browsers_of_other_origins_get_no_cors_headers(server: InProcessServer) -> None:
    """200, empty, without a header: that is a refusal."""
    answer = _preflight(server, "https://three.example")

    assert (answer.status, answer.body, _cors(answer)) == (200, b"", {})


def test_other_methods_are_not_allowed_to_pages(server: InProcessServer) -> None:
    """Only GET and POST are ever named."""
    assert _cors(_preflight(server, LISTED[0], method="DELETE")) == {
        ALLOW_ORIGIN: LISTED[0],
        "vary": "Origin",
    }


def test_a_question_of_a_browser_does_not_run_the_script(raw: InProcessServer) -> None:
    """Under `@rawhttp` the real server runs it; other OPTIONS do here too."""
    seen.clear()
    for origin in (LISTED[0], "https://three.example"):
        answer = _preflight(raw, origin)
        assert (answer.status, answer.body) == (200, b"")
    assert seen == []
    assert raw.ask("OPTIONS", "/score", [("Origin", LISTED[0])]).json() == "OPTIONS"
    assert seen == ["OPTIONS"]


def test_a_script_that_names_origins_itself_has_its_way(raw: InProcessServer) -> None:
    """There is one such header, or browsers refuse the answer."""
    answer = raw.ask("GET", "/score?own=1", [("Origin", LISTED[0])])

    assert answer.header(ALLOW_ORIGIN) == "https://own.example"


def test_a_server_without_origins_sends_no_cors_headers() -> None:
    """The default; under `@rawhttp` the question of a browser then reaches the script."""
    with InProcessServer(script(tell, raw=True)) as server:
        answer = server.ask("POST", "/score", [("Origin", LISTED[0])], b"")
        preflight = _preflight(server, LISTED[0])

    assert (_cors(answer), _cors(preflight)) == ({}, {})
    assert preflight.json() == "OPTIONS"


def test_pages_read_refusals_too() -> None:
    """A page can read the 401 of a missing key, and its preflight needs none."""
    with InProcessServer(script(echo), cors=LISTED, key=KEY) as server, server.connect() as connection:
        origin = ("Origin", LISTED[0])
        preflight = request("OPTIONS", "/score", [origin, ("Access-Control-Request-Method", "POST")])
        assert connection.ask(preflight).status == 200
        refused = connection.ask(request("POST", "/score", [origin], b"{}"))
        assert (refused.status, refused.header(ALLOW_ORIGIN)) == (401, LISTED[0])
