"""Calls of a script to the models of its server: bounded, with the right key, and never to a waiting model."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from tests.own_time import give_own_time

from stoker.scripts import server_calls
from stoker.scripts.server_calls import CallFailed, OwnServer, call_model, connect, is_ready, on_behalf_of


@pytest.fixture(autouse=True)
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A socket at the address of the server, without answers."""
    monkeypatch.setattr(server_calls, "_servers", [])
    with socket.create_server(("127.0.0.1", 0)) as sock:
        connect(OwnServer("127.0.0.1", sock.getsockname()[1], False, lambda model: f"key-of-{model}"))
        yield sock


def call(model: str = "net", version: int | None = None, timeout_us: int = 0) -> dict[str, np.ndarray]:
    """Call a model with one number for all outputs."""
    return call_model(model, version, {"x": np.ones(1)}, (), timeout_us=timeout_us, parameters={})


def _length(request: bytes) -> int:
    found = re.search(rb"content-length: (\d+)", request, re.IGNORECASE)
    return int(found[1]) if found else 0


def answer_once(listener: socket.socket, answer: bytes) -> list[bytes]:
    """Answer the next connection on another thread; the list receives its request."""
    heads: list[bytes] = []

    def answer_it() -> None:
        connection, _ = listener.accept()
        with connection:
            request = b""
            while (end := request.find(b"\r\n\r\n")) < 0 or len(request) < end + 4 + _length(request):
                request += connection.recv(1 << 16)
            heads.append(request)
            connection.sendall(answer)

    threading.Thread(target=answer_it, daemon=True).start()
    return heads


def test_a_call_names_the_waiting_models(listener: socket.socket) -> None:
    """It has the key of its model; a waiting model is refused, but another version of it is not."""
    with on_behalf_of(["first:1", "net:1"], 60_000):
        for version in (None, 1):
            with pytest.raises(CallFailed, match="net waits for this call itself"):
                call(version=version)
        heads = answer_once(listener, b'HTTP/1.1 503 no\r\ncontent-length: 17\r\n\r\n{"error": "later"}')
        with pytest.raises(CallFailed, match="later") as failed:
            call(version=2)
    assert failed.value.status == 503
    assert b"POST /v2/models/net/versions/2/infer" in heads[0]
    assert b"Bearer key-of-net" in heads[0]
    assert b'"stoker_callers":"first:1/net:1"' in heads[0]


def test_a_call_ends_with_its_request(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call does not begin after the deadline, and waits no longer than that or its timeout."""
    give_own_time(monkeypatch, server_calls, monotonic=lambda: 1000.0)
    with on_behalf_of([], 0), pytest.raises(CallFailed, match="no time left to call net"):
        call()
    with on_behalf_of([], 20), pytest.raises(CallFailed, match="net cannot be called: timed out"):
        call()
    with pytest.raises(CallFailed, match="net cannot be called: timed out"):
        call(timeout_us=1000)
    listener.close()
    with pytest.raises(CallFailed, match=r"net cannot be called: .*refused"):
        call()
    with pytest.raises(CallFailed, match="the server cannot be called for net"):
        is_ready("net")


def test_a_call_fails_if_the_server_breaks_off_or_takes_no_calls(listener: socket.socket) -> None:
    """The error has the reason."""
    answer_once(listener, b"nonsense\r\n\r\n")
    with pytest.raises(CallFailed, match="the server broke off"):
        call()
    connect(OwnServer("127.0.0.1", 1, False, lambda _: None, "tokens alone"))
    with pytest.raises(CallFailed, match="tokens alone"):
        call()
