"""Tokens as both clients hold them: fetched with a key or given by a provider, and renewed in time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest
from tests.patience import PATIENCE_S
from tests.unit.stoker_client.scripted import URI, Caller, Event, Kind, Timeline, error, ok

from stoker_client import (
    AccessToken,
    AsyncClient,
    Client,
    Overloaded,
    TimedOut,
    Unauthorized,
    UnexpectedAnswer,
)

ROWS = [[1.0]]
KEY = "a-key-of-the-tests-0001"
SERVICE_URI = "http://127.0.0.1:8080/api/v1/service/digits/score"


def token(number: int, refresh_in_s: float = 100) -> httpx.Response:
    """An answer of the token route."""
    return httpx.Response(200, json={"accessToken": f"token-{number}", "refreshInSeconds": refresh_in_s})


def credentials_of(caller: Caller) -> list[tuple[str, str | None]]:
    """Path and credential of each request, in order."""
    return [
        (request.url.path, request.headers.get("authorization", "").removeprefix("Bearer ") or None)
        for request in caller.requests
    ]


class Talk:
    """Several calls of one client, with time passing between them."""

    def __init__(self, kind: Kind, script: list[Event], uri: str = URI, **options: Any) -> None:
        self.caller = Caller(kind, script, uri, **options)

    def calls(self, *pauses_s: float) -> list[Any]:
        """Score once, then once after each pause; returns answers and errors."""
        caller, timeline = self.caller, self.caller.timeline
        transport = httpx.MockTransport(caller.answer)
        if caller.kind == "sync":
            with Client(caller.uri, transport=transport, sleep=timeline.sleep, **caller.options) as client:
                return list(self._in_turn(pauses_s, lambda: client.score_json({"data": ROWS})))

        async def call_async() -> list[Any]:
            options = {"transport": transport, "sleep": timeline.sleep_async, **caller.options}
            async with AsyncClient(caller.uri, **options) as client:
                outcomes: list[Any] = []
                for pause_s in (0.0, *pauses_s):
                    timeline.now_s += pause_s
                    try:
                        outcomes.append(await client.score_json({"data": ROWS}))
                    except Exception as failure:  # noqa: BLE001  # a test looks at it
                        outcomes.append(failure)
                return outcomes

        return anyio.run(call_async)

    def _in_turn(self, pauses_s: tuple[float, ...], call: Callable[[], Any]) -> Iterator[Any]:
        for pause_s in (0.0, *pauses_s):
            self.caller.timeline.now_s += pause_s
            try:
                yield call()
            except Exception as failure:  # noqa: BLE001  # a test looks at it
                yield failure


class Provider:
    """Gives one credential after the other, and counts; exceptions are raised."""

    def __init__(self, *given: str | AccessToken | Exception) -> None:
        self.given = list(given)
        self.calls = 0

    def __call__(self) -> str | AccessToken:
        self.calls += 1
        given = self.given.pop(0)
        if isinstance(given, Exception):
            raise given
        return given


@pytest.mark.parametrize(
    ("uri", "token_path"),
    [
        (URI, "/token"),
        (f"{URI}/", "/token"),
        (SERVICE_URI, "/api/v1/service/digits/token"),
        ("http://127.0.0.1:8080/behind/a/proxy/score?x=1", "/behind/a/proxy/token"),
    ],
)
def test_a_token_is_fetched_with_the_key(kind: Kind, uri: str, token_path: str) -> None:
    """Once, before the first request, from beside the scoring path; the key itself is sent nowhere else."""
    talk = Talk(kind, [token(1), ok([1]), ok([2])], uri, key=KEY, use_tokens=True)
    assert talk.calls(1) == [[1], [2]]
    score_path = httpx.URL(uri).path
    assert credentials_of(talk.caller) == [
        (token_path, KEY),
        (score_path, "token-1"),
        (score_path, "token-1"),
    ]
    assert [request.method for request in talk.caller.requests] == ["GET", "POST", "POST"]


def test_a_token_is_renewed_before_it_ends(kind: Kind) -> None:
    """From the time on that the server told, the next request has a new one."""
    script = [token(1, 100), ok(), ok(), token(2, 50), ok(), token(3), ok()]
    talk = Talk(kind, script, key=KEY, use_tokens=True)
    talk.calls(99.9, 0.1, 50)
    assert [key for _, key in credentials_of(talk.caller)] == [
        *(KEY, "token-1", "token-1"),
        *(KEY, "token-2"),
        *(KEY, "token-3"),
    ]


def test_a_refused_token_is_renewed_once(kind: Kind) -> None:
    """The request is sent again at once with a new one, and that is no retry; a second 401 is raised."""
    refused = error(401, "unauthorized")
    talk = Talk(kind, [token(1), refused, token(2), ok([5])], key=KEY, use_tokens=True, retries=0)
    assert talk.calls() == [[5]]
    assert talk.caller.pauses_s == []
    again = Talk(kind, [token(1), refused, token(2), refused], key=KEY, use_tokens=True)
    (failure,) = again.calls()
    assert isinstance(failure, Unauthorized)
    assert failure.attempts == 2
    assert len(again.caller.requests) == 4


def test_retries_count_from_the_renewal_on(kind: Kind) -> None:
    """Renewing takes neither an attempt nor a pause from those that 503 is worth."""
    busy, refused = error(503, "overloaded"), error(401, "unauthorized")
    script = [token(1), refused, token(2), busy, busy, ok([5])]
    talk = Talk(kind, script, key=KEY, use_tokens=True, retries=2)
    assert talk.calls() == [[5]]
    assert talk.caller.pauses_s == pytest.approx([0.075, 0.15])
    script = [token(1), refused, token(2), busy, busy]
    (failure,) = Talk(kind, script, key=KEY, use_tokens=True, retries=1).calls()
    assert isinstance(failure, Overloaded)


def test_a_wrong_key_fetches_nothing(kind: Kind) -> None:
    """The refusal of the token route is raised, and no row is sent."""
    talk = Talk(kind, [error(401, "unauthorized")], key=KEY, use_tokens=True)
    (failure,) = talk.calls()
    assert isinstance(failure, Unauthorized)
    assert credentials_of(talk.caller) == [("/token", KEY)]


def test_answer_without_a_token_names_the_route(kind: Kind) -> None:
    """Any other answer of the token route is no token."""
    for body in ({}, [], {"accessToken": "a"}, {"accessToken": "a", "refreshInSeconds": "soon"}):
        (failure,) = Talk(kind, [httpx.Response(200, json=body)], key=KEY, use_tokens=True).calls()
        assert isinstance(failure, UnexpectedAnswer), body


def test_a_failed_renewal_costs_nothing_while_the_token_is_good(
    kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    """The old token is sent on, the log says why, and the next try comes ten seconds later."""
    script = [token(1, 10), ok([1]), error(500, "internal"), ok([2]), ok([3]), token(2), ok([4])]
    talk = Talk(kind, script, key=KEY, use_tokens=True)
    with caplog.at_level(logging.WARNING):
        assert talk.calls(10, 9, 1) == [[1], [2], [3], [4]]
    assert [key for _, key in credentials_of(talk.caller)] == [
        *(KEY, "token-1", KEY, "token-1", "token-1", KEY, "token-2"),
    ]
    assert ["could not be renewed" in record.getMessage() for record in caplog.records] == [True]
    assert "token-1" not in caplog.text


def test_fetching_a_token_is_part_of_the_call(kind: Kind) -> None:
    """A token route that does not answer ends the call in its time, and is retried like scoring."""
    talk = Talk(kind, [error(503, "not_ready"), token(1), ok([1])], key=KEY, use_tokens=True)
    assert talk.calls() == [[1]]
    timed_out = Talk(kind, [httpx.ReadTimeout("slow")], key=KEY, use_tokens=True, timeout_s=3)
    (failure,) = timed_out.calls()
    assert isinstance(failure, TimedOut)
    assert timed_out.caller.requests[0].extensions["timeout"]["read"] == 3


def test_the_key_for_tokens_may_come_from_the_environment(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """STOKER_KEY fetches tokens as it scores."""
    monkeypatch.setenv("STOKER_KEY", KEY)
    talk = Talk(kind, [token(1), ok([1])], use_tokens=True)
    talk.calls()
    assert credentials_of(talk.caller)[0] == ("/token", KEY)


def test_provider_gives_the_credential(kind: Kind) -> None:
    """A text is sent until it is refused, then the provider is called once more."""
    provider = Provider("vault-1", "vault-2")
    script = [ok([1]), ok([2]), error(401, "unauthorized"), ok([3])]
    talk = Talk(kind, script, token_provider=provider)
    assert talk.calls(1000, 1000) == [[1], [2], [3]]
    assert [key for _, key in credentials_of(talk.caller)] == [
        "vault-1",
        "vault-1",
        "vault-1",
        "vault-2",
    ]
    assert provider.calls == 2


def test_a_providers_token_may_say_when_it_is_stale(kind: Kind) -> None:
    """An `AccessToken` with a time is renewed by that time."""
    provider = Provider(AccessToken("one", refresh_in_s=5), AccessToken("two"))
    talk = Talk(kind, [ok(), ok(), ok()], token_provider=provider)
    talk.calls(5, 1000)
    assert [key for _, key in credentials_of(talk.caller)] == ["one", "two", "two"]
    assert "secret" not in repr(AccessToken("secret"))


def test_exception_of_a_token_provider_is_raised(kind: Kind) -> None:
    """The exception is raised with and without an earlier token; the next call asks again."""
    provider = Provider(LookupError("the vault is shut"), "one", LookupError("shut again"), "two")
    refused = error(401, "unauthorized")
    talk = Talk(kind, [ok([1]), refused, refused, ok([2])], token_provider=provider)
    first, second, third, fourth = talk.calls(0, 0, 0)
    assert [str(failure) for failure in (first, third)] == ["the vault is shut", "shut again"]
    assert (second, fourth) == ([1], [2])


@pytest.mark.parametrize("given", ["", "to ken", "tok\nen", "tokén"])
def test_token_that_no_header_can_hold_is_refused(kind: Kind, given: str) -> None:
    """Nothing is sent, and the message does not show it."""
    talk = Talk(kind, [], token_provider=Provider(given))
    (failure,) = talk.calls()
    assert isinstance(failure, ValueError)
    assert "visible ASCII" in str(failure)
    assert talk.caller.requests == []


@pytest.mark.anyio
async def test_a_provider_may_be_asynchronous() -> None:
    """A coroutine function is awaited."""

    async def provide() -> AccessToken:
        await anyio.lowlevel.checkpoint()
        return AccessToken("awaited")

    requests: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return ok([1])

    transport = httpx.MockTransport(answer)
    async with AsyncClient(URI, token_provider=provide, transport=transport) as client:
        await client.score_json({})
    assert requests[0].headers["authorization"] == "Bearer awaited"


@pytest.mark.anyio
async def test_tasks_renew_together() -> None:
    """Of many tasks whose token is refused, one fetches another, and all go on with it."""
    provided: list[str] = []

    async def provide() -> str:
        number = len(provided) + 1
        provided.append(f"token-{number}")
        await anyio.lowlevel.checkpoint()
        return provided[number - 1]

    async def answer(request: httpx.Request) -> httpx.Response:
        await anyio.lowlevel.checkpoint()
        good = request.headers["authorization"] == "Bearer token-2"
        return ok([1]) if good else error(401, "unauthorized")

    transport = httpx.MockTransport(answer)
    async with (
        AsyncClient(URI, token_provider=provide, transport=transport) as client,
        anyio.create_task_group() as tasks,
    ):
        for _ in range(20):
            tasks.start_soon(client.score_json, {})
    assert provided == ["token-1", "token-2"]


def test_threads_renew_together() -> None:
    """Of many threads whose token is refused, one asks for another, and all go on with it."""
    threads, provided = 8, []
    together = threading.Barrier(threads, timeout=PATIENCE_S)
    waited = threading.local()

    def provide() -> str:
        provided.append(f"token-{len(provided) + 1}")
        return provided[-1]

    def answer(request: httpx.Request) -> httpx.Response:
        if request.headers["authorization"] == "Bearer token-2":
            return ok([1])
        if not hasattr(waited, "once"):
            waited.once = True
            together.wait()
        return error(401, "unauthorized")

    with Client(URI, token_provider=provide, transport=httpx.MockTransport(answer)) as client:
        answers = client.score_batches([ROWS] * threads, concurrency=threads)
    assert len(answers) == threads
    assert provided == ["token-1", "token-2"]


@pytest.mark.parametrize("build", [Client, AsyncClient])
@pytest.mark.parametrize(
    ("uri", "options", "message"),
    [
        (URI, {"use_tokens": True}, "tokens are fetched with a key; give one, or set STOKER_KEY"),
        (URI, {"key": KEY, "use_tokens": True, "token_provider": Provider()}, "two sources of tokens"),
        (URI, {"key": KEY, "token_provider": Provider()}, "a key and token_provider both say what is sent"),
        (
            "http://127.0.0.1:8080/predict",
            {"key": KEY, "use_tokens": True},
            "beside a path that ends in /score",
        ),
    ],
)
def test_arguments_that_contradict_each_other(
    build: Callable[..., object], uri: str, options: dict[str, Any], message: str
) -> None:
    """They are refused at once, not with the first request."""
    with pytest.raises(ValueError, match=message):
        build(uri, **options)


def test_probes_need_no_token(kind: Kind) -> None:
    """The client fetches no token for a readiness check."""
    caller = Caller(kind, [httpx.Response(200, json={"ready": True})], key=KEY, use_tokens=True)
    assert caller.call("ready") is True
    assert credentials_of(caller) == [("/v2/health/ready", None)]


def test_time_is_the_clients_own() -> None:
    """A server whose clock is wrong does no harm: the token says in how many seconds, not when."""
    timeline = Timeline(now_s=5.0)
    requests: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return token(1, 60) if request.method == "GET" else ok([1])

    transport = httpx.MockTransport(answer)
    with Client(URI, KEY, use_tokens=True, transport=transport, clock=timeline.clock) as client:
        client.score_json({})
        timeline.now_s += 59
        client.score_json({})
    assert [request.method for request in requests] == ["GET", "POST", "POST"]
