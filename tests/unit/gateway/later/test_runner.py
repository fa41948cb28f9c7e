"""The runner: requests to the app, retries, stored answers."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send
from tests.live_server import wait_until
from tests.patience import PATIENCE_S

from stoker.control.frontend_messages import LaterRules
from stoker.gateway.later.runner import SpoolRunner, _find_new
from stoker.gateway.later.spool import Spool, Stored

EXPIRES_S = 4_000_000_000


class App:
    """An app that answers with these statuses and codes, one after the other; the last one again and again."""

    def __init__(self, *answers: tuple[int, str]) -> None:
        self.answers = list(answers)
        self.requests: list[tuple[Scope, bytes]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.requests.append((scope, (await receive())["body"]))
        status, code = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        headers = [(b"content-type", b"application/json"), (b"retry-after", b"0")]
        body = json.dumps({"message": "m", "code": code} if code else [1]).encode()
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body[:3], "more_body": True})
        await send({"type": "http.response.body", "body": body[3:]})


def add(spool: Spool, owner: str = "me", body: bytes = b"body", **changes: Any) -> str:
    """Add a request and return its id."""
    name = spool.new_id(owner)
    head = {
        "method": "POST", "path": "/score", "raw_path": "/score", "query": "", "headers": [["host", "here"]],
        "client": None, "model": "m", "caller": "default", "callback": "", "expires_s": EXPIRES_S,
        "location": f"/later/0-{name}", "fingerprint": "f", **changes,
    }  # fmt: skip
    spool.add(name, head, body)
    return name


async def run(folder: Path, app: App, fill: Callable[[Spool], list[str]], at_once: int = 64) -> list[Stored]:
    """Run what `fill` adds, and return the answers in the same order."""
    spool = Spool(LaterRules(folder / "later", 1 << 20, 60.0))
    names = fill(spool)
    runner = SpoolRunner(spool, app, at_once=at_once, first_wait_s=0.001, longest_wait_s=0.002)
    runner.start()
    await asyncio.to_thread(wait_until, lambda: not spool.waiting_ids(), "all requests are answered")
    await runner.stop(10)
    return [spool.find(name, with_body=True)[0] for name in names]


@pytest.mark.anyio
async def test_a_request_is_sent_as_its_caller_sent_it(tmp_path: Path) -> None:
    """In the lowest tier, with its attempt, and with what stands for its key; the answer is kept whole."""
    app = App((200, ""))
    (answer,) = await run(tmp_path, app, lambda spool: [add(spool)])
    ((scope, body),) = app.requests
    assert body == b"body"
    headers = dict(scope["headers"])
    assert headers == {
        b"host": b"here",
        b"content-length": b"4",
        b"stoker-tier": b"low",
        b"stoker-attempt": b"1",
    }
    assert scope["stoker.authorization"].endswith(b" default")
    assert (answer.attempt, answer.head["status"], answer.body) == (1, 200, b"[1]")
    assert ["content-type", "application/json"] in answer.head["headers"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("answers", "attempt", "status"),
    [
        ([(503, "overloaded"), (429, "quota_exceeded"), (404, "unknown_service"), (200, "")], 1, 200),
        ([(503, "device_lost"), (504, "deadline_exceeded"), (200, "")], 3, 200),
        ([(503, "device_lost")], 10, 503),
        ([(500, "model_failed"), (200, "")], 1, 500),
        ([(422, "invalid_input"), (200, "")], 1, 422),
    ],
)
async def test_request_that_did_not_run_is_sent_again(
    tmp_path: Path, answers: list[tuple[int, str]], attempt: int, status: int
) -> None:
    """A refused request is sent again without counting as an attempt, until it has cost ten processes."""
    (answer,) = await run(tmp_path, App(*answers), lambda spool: [add(spool)])
    assert (answer.attempt, answer.head["status"]) == (attempt, status)


@pytest.mark.anyio
async def test_senders_take_turns(tmp_path: Path) -> None:
    """Behind many requests of one sender, the first one of another is the second to run."""
    app = App((200, ""))

    def fill(spool: Spool) -> list[str]:
        return [*(add(spool, "flood", b"flood") for _ in range(20)), add(spool, "other", b"other")]

    await run(tmp_path, app, fill, at_once=1)
    assert [body for _, body in app.requests].index(b"other") < 2


@pytest.mark.anyio
@pytest.mark.parametrize(("size_bytes", "count"), [(10, 80), (3 << 19, 12)])
async def test_hanging_model_of_one_caller_holds_up_no_request_of_another(
    tmp_path: Path, size_bytes: int, count: int
) -> None:
    """Small and large requests of a caller wait for a model for ever; those of another caller are answered."""
    other: list[str] = []
    hang = asyncio.Event()

    class Hanging(App):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            message = await receive()
            if message["body"][:1] == b"a":
                await hang.wait()

            async def receive_again() -> Message:
                return message

            await super().__call__(scope, receive_again, send)

    spool = Spool(LaterRules(tmp_path / "later", 1 << 30, 60.0))
    for _ in range(count):
        add(spool, "a", b"a" * size_bytes)
    runner = SpoolRunner(spool, Hanging((200, "")))
    runner.start()
    for body in (b"b", b"b" * (3 << 19)):
        other.append(add(spool, "b", body))
        runner.submit(other[-1])
    await asyncio.to_thread(
        wait_until, lambda: not set(other) & set(spool.waiting_ids()), "b is answered beside a"
    )
    assert len(spool.waiting_ids()) == count
    runner.pause()
    hang.set()
    await runner.stop(PATIENCE_S)


@pytest.mark.anyio
async def test_scan_finds_other_callers_behind_a_long_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each caller a scan queues so many requests, however many of another caller wait already."""
    monkeypatch.setattr("stoker.gateway.later.runner._FULL_QUEUE", 2)
    app = App((200, ""))
    spool = Spool(LaterRules(tmp_path / "later", 1 << 20, 60.0))
    names = [add(spool, "a") for _ in range(5)] + [add(spool, "b")]
    runner = SpoolRunner(spool, app)
    new = _find_new(spool.waiting_ids, (), runner._turns)
    assert sorted(name[:8] for name in new) == sorted([names[0][:8]] * 2 + [names[-1][:8]])
    for name in new:
        runner.submit(name)
    assert not _find_new(spool.waiting_ids, runner._known, runner._turns)


@pytest.mark.anyio
async def test_hanging_callbacks_of_one_caller_delay_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callbacks to an address that never answers leave senders to other callers."""
    hang, sent = threading.Event(), threading.Event()

    def send(url: str, *_: object) -> bool:
        if url.endswith("/a"):
            return hang.wait(PATIENCE_S)
        sent.set()
        return True

    monkeypatch.setattr("stoker.gateway.later.runner.send_callback", send)
    spool = Spool(LaterRules(tmp_path / "later", 1 << 20, 60.0))
    for _ in range(50):
        add(spool, "a", callback="http://127.0.0.1/a")
    runner = SpoolRunner(spool, App((200, "")))
    runner.start()
    await asyncio.to_thread(wait_until, lambda: not spool.waiting_ids(), "a is answered")
    runner.submit(add(spool, "b", callback="http://127.0.0.1/b"))
    assert await asyncio.to_thread(sent.wait, PATIENCE_S)
    assert not hang.is_set()
    runner.pause()
    hang.set()
    await runner.stop(PATIENCE_S)


@pytest.mark.anyio
async def test_an_expired_request_does_not_run(tmp_path: Path) -> None:
    """It is dropped."""
    app = App((200, ""))
    await run(tmp_path, app, lambda spool: [add(spool, expires_s=1)][:0])
    assert app.requests == []


@pytest.mark.anyio
async def test_a_fault_of_the_app_is_its_answer(tmp_path: Path) -> None:
    """Starlette raises it again after it has answered 500."""

    class Faulty(App):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await super().__call__(scope, receive, send)
            raise RuntimeError("a fault")

    (answer,) = await run(tmp_path, Faulty((500, "internal")), lambda spool: [add(spool)])
    assert answer.head["status"] == 500
