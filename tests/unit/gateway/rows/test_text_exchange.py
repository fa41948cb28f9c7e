"""An exchange that takes texts: what it queues, when, and what becomes of requests that wait to be encoded."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.text_models import write_tokenizer

from stoker.arena import Arena
from stoker.errors import DeadlineExceeded, InvalidInput, LoadFailed, NotReady, Overloaded, StokerError
from stoker.gateway.http.threads import run_in_thread
from stoker.gateway.rows import text_exchange
from stoker.gateway.rows.text_exchange import TextExchange
from stoker.gateway.rows.ticket import Ticket
from stoker.settings.text_input import TextInput
from stoker.tensors import Signature, TensorSpec
from stoker.wire.packed import pack
from stoker.wire.texts import Tokenizing, text_tensors

LONG = b"how far is it to the next town " * 4000


class Request(Ticket):
    """A request that remembers how it ended."""

    def __init__(self, timeout_s: float = 60) -> None:
        super().__init__(time.monotonic_ns() + round(timeout_s * 1e9))
        self.completions = 0
        self.noted: tuple[int, int] | None = None

    def note_texts(self, tokens: int, cut: int) -> None:
        self.noted = tokens, cut

    def complete(self) -> None:
        self.completions += 1


def texts(*values: bytes) -> list[np.ndarray]:
    array = np.empty(len(values), object)
    array[:] = values
    return [array]


def in_exchange(
    folder: Path, body: Callable[[TextExchange, socket.socket], Coroutine[Any, Any, None]]
) -> None:
    """Run a coroutine with an exchange, whose device's end of the doorbell is the test's."""

    async def run() -> None:
        write_tokenizer(folder)
        text = TextInput(folder / "tokenizer.json", 16)
        outputs = (TensorSpec("vector", "float32", (2,)),)
        signature = Signature((TensorSpec("text", "int32", (17,)),), outputs, callers=text_tensors(()))
        fd = Arena.create(signature, 8)
        near, far = socket.socketpair()
        near.setblocking(False)
        with far:
            exchange = TextExchange(
                Arena(fd, signature, 8),
                near,
                asyncio.ensure_future(run_in_thread(Tokenizing, text)),
                clock_ns=time.monotonic_ns,
                on_lost=lambda _: None,
                loop=asyncio.get_running_loop(),
            )
            os.close(fd)
            try:
                with np.errstate(over="raise"):
                    await body(exchange, far)
            finally:
                exchange.close()

    old = np.seterr(over="raise")
    try:
        asyncio.run(run())
    finally:
        np.seterr(**old)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  # some conditions are of another thread
            await asyncio.sleep(0.001)


def test_short_texts_are_queued_at_once(tmp_path: Path) -> None:
    """Once the tokenizer is loaded; before, and where they are long, a little later. Rows hold the tokens."""

    async def body(exchange: TextExchange, _: socket.socket) -> None:
        first, short, long = Request(), Request(), Request()
        exchange.submit(first, texts(b"stones"))
        assert not exchange.idle
        assert exchange.leased_rows == 0
        await until(lambda: exchange.leased_rows == 1)
        exchange.submit(short, texts(b"how far", b"is it"))
        assert exchange.leased_rows == 3
        exchange.submit(long, texts(LONG, LONG, b"a"))
        assert exchange.leased_rows == 3
        await until(lambda: exchange.leased_rows == 6)
        expected = Tokenizing(TextInput(tmp_path / "tokenizer.json", 16))
        rows = exchange.arena.inputs[0]
        for ticket, (given,) in ((short, texts(b"how far", b"is it")), (long, texts(LONG, LONG, b"a"))):
            encoded = expected.encode(given)
            assert np.array_equal(rows[ticket.row_numbers], encoded.rows)
            assert ticket.noted == (encoded.rows[:, 0].sum(), encoded.cut)

    in_exchange(tmp_path, body)


def test_rows_of_tokens_and_packed_texts_are_queued(tmp_path: Path) -> None:
    """Requests that run again have tokens; long bodies come packed from their reader."""

    async def body(exchange: TextExchange, _: socket.socket) -> None:
        tokens, packed = Request(), Request()
        exchange.submit(tokens, [np.ones((2, 17), np.int32)])
        assert (exchange.leased_rows, tokens.noted) == (2, None)
        exchange.submit_body(packed, memoryview(pack({"text": texts(b"a", b"b")[0]})))
        await until(lambda: exchange.leased_rows == 4)
        assert packed.noted is not None

    in_exchange(tmp_path, body)


def test_errors_of_texts_reach_their_caller_alone(tmp_path: Path) -> None:
    """Before and after the tokenizer is loaded; nothing is leased."""

    async def body(exchange: TextExchange, _: socket.socket) -> None:
        early, late = Request(), Request()
        exchange.submit(early, [np.full((1, 3), b"a", object)])
        await until(lambda: early.completions == 1)
        assert isinstance(early.error, InvalidInput)
        with pytest.raises(InvalidInput, match="Text 0 is not UTF-8"):
            exchange.submit(late, texts(b"\xff"))
        exchange.submit(late, texts(LONG, b"\xff" * 2000))
        await until(lambda: late.completions == 1)
        assert isinstance(late.error, InvalidInput)
        await until(lambda: exchange.idle)

    in_exchange(tmp_path, body)


def test_callers_that_do_not_wait_are_dropped(tmp_path: Path) -> None:
    """One that has gone gets nothing; one whose deadline has passed gets an error."""

    async def body(exchange: TextExchange, _: socket.socket) -> None:
        gone, late = Request(), Request(timeout_s=0)
        for ticket in (gone, late):
            exchange.submit(ticket, texts(*[LONG] * 4))
        gone.cancel()
        exchange.sweep(time.monotonic_ns())
        await until(lambda: exchange.idle)
        assert (gone.completions, late.completions) == (0, 1)
        assert isinstance(late.error, DeadlineExceeded)

    in_exchange(tmp_path, body)


def test_a_device_that_dies_meanwhile_is_an_error(tmp_path: Path) -> None:
    """The caller may try again."""

    async def body(exchange: TextExchange, far: socket.socket) -> None:
        ticket = Request()
        exchange.submit(ticket, texts(LONG))
        far.close()
        await until(lambda: ticket.completions == 1)
        assert isinstance(ticket.error, NotReady)
        assert exchange.lost

    in_exchange(tmp_path, body)


def test_too_many_waiting_requests_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others go on."""
    monkeypatch.setattr(text_exchange, "_MOST_WAITING", 2)

    async def body(exchange: TextExchange, _: socket.socket) -> None:
        taken = [Request(), Request()]
        for ticket in taken:
            exchange.submit(ticket, texts(LONG))
        with pytest.raises(Overloaded):
            exchange.submit(Request(), texts(LONG))
        await until(lambda: exchange.leased_rows == 2)

    in_exchange(tmp_path, body)


def test_a_tokenizer_that_has_become_unreadable_is_an_error(tmp_path: Path) -> None:
    """Each request fails, and none is left without an answer."""

    async def body(exchange: TextExchange, _: socket.socket) -> None:
        loading: asyncio.Future[Tokenizing] = asyncio.get_running_loop().create_future()
        exchange._tokenizing.cancel()
        exchange._tokenizing = loading
        ticket = Request()
        exchange.submit(ticket, texts(b"a"))
        loading.set_exception(LoadFailed("tokenizer.json cannot be used"))
        await until(lambda: ticket.completions == 1)
        assert isinstance(ticket.error, StokerError)

    in_exchange(tmp_path, body)
