"""Receiving bodies in the app: the limit of each, and the budget of all large ones."""

import asyncio
import gzip
import tracemalloc

import pytest
from starlette.types import Message
from tests.body_budgets import least_budget_bytes
from tests.puppets import metric_memory, puppet_service

from stoker.errors import BodyTooLarge, Overloaded
from stoker.gateway.gateway import Gateway
from stoker.gateway.http.body_budget import (
    LARGE_BODY_BYTES,
    Allowance,
    BodyBudget,
    Caller,
)
from stoker.gateway.http.encodings import inflater_for
from stoker.gateway.model_directory import ModelDirectory
from stoker.gateway.protocols.endpoint import receive_body

MIB = 1 << 20
LIMIT_BYTES = 16 * MIB


def a_caller() -> Caller:
    """Return the caller of the bodies."""
    return Caller.at("127.0.0.1")


def gateway(budget_bytes: int = 64 * MIB) -> Gateway:
    """A gateway with one service that takes 16 MiB."""
    memory = metric_memory()
    service = puppet_service("a", memory, max_body_bytes=LIMIT_BYTES)
    return Gateway(ModelDirectory({"a": service}), memory, bodies=BodyBudget(budget_bytes))


def receive(made: Gateway, *chunks: bytes, encoding: bytes = b"") -> bytes | None:
    """Return the body of these chunks; the budget is free again afterwards."""
    messages: list[Message] = [
        {"type": "http.request", "body": chunk, "more_body": index < len(chunks) - 1}
        for index, chunk in enumerate(chunks)
    ] or [{"type": "http.disconnect"}]
    waiting = iter(messages)

    async def next_message() -> Message:
        return next(waiting)

    received = []

    async def run() -> None:
        with Allowance(made.bodies, a_caller) as allowance:
            inflater = inflater_for([encoding])
            received.append(
                await receive_body(next_message, made.directory.services["a"], inflater, allowance)
            )

    before = made.bodies.left_bytes
    try:
        # asyncio would write the result of the coroutine into a message that nobody sees.
        asyncio.run(run())
    finally:
        assert made.bodies.left_bytes == before
    return received[0]


def test_chunks_are_put_together() -> None:
    """None of them is a body too, and so is no caller."""
    assert receive(gateway(), b"a", b"", b"bc") == b"abc"
    assert receive(gateway(), b"") == b""
    assert receive(gateway()) is None


@pytest.mark.parametrize("encoding", [b"", b"gzip"])
def test_the_limit_is_exact(encoding: bytes) -> None:
    """A byte more than the limit is refused, however it comes."""
    pack = gzip.compress if encoding else bytes
    body = b" " * LIMIT_BYTES
    assert receive(gateway(), pack(body), encoding=encoding) == body
    with pytest.raises(BodyTooLarge):
        receive(gateway(), pack(body + b" "), encoding=encoding)


@pytest.mark.parametrize("encoding", [b"", b"gzip"])
def test_large_bodies_share_a_budget(encoding: bytes) -> None:
    """A body that grows beyond it is refused; small bodies are not counted."""
    pack = gzip.compress if encoding else bytes
    tight = gateway(least_budget_bytes(2 * MIB))
    assert receive(tight, pack(b" " * 2 * MIB), encoding=encoding) is not None
    with pytest.raises(Overloaded):
        receive(tight, pack(b" " * (2 * MIB + 1)), encoding=encoding)
    nothing_left = gateway(budget_bytes=0)
    assert receive(nothing_left, pack(b" " * LARGE_BODY_BYTES), encoding=encoding) is not None
    with pytest.raises(Overloaded):
        receive(nothing_left, pack(b" " * (LARGE_BODY_BYTES + 1)), encoding=encoding)


@pytest.mark.parametrize("size", [LIMIT_BYTES, 1000 * MIB])
def test_a_bomb_takes_less_memory_than_two_bodies(size: int) -> None:
    """However much a compressed body would make, no more than the limit is made, once."""
    compress = gzip_of_blanks(size)
    made = gateway()
    tracemalloc.start()
    try:
        if size > LIMIT_BYTES:
            with pytest.raises(BodyTooLarge):
                receive(made, compress, encoding=b"gzip")
        else:
            receive(made, compress, encoding=b"gzip")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * LIMIT_BYTES


def gzip_of_blanks(size: int) -> bytes:
    """A body of this size, compressed as several members of 10 MiB."""
    member, rest = gzip.compress(b" " * 10 * MIB), size % (10 * MIB)
    return member * (size // (10 * MIB)) + (gzip.compress(b" " * rest) if rest else b"")


def test_other_requests_have_their_turn_while_one_is_inflated() -> None:
    """A body that makes very much gives the event loop back between its pieces."""
    made, turns = gateway(), 0
    packed = gzip_of_blanks(LIMIT_BYTES)

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def next_message() -> Message:
        return {"type": "http.request", "body": packed, "more_body": False}

    async def run() -> None:
        other = asyncio.ensure_future(count_turns())
        with Allowance(made.bodies, a_caller) as allowance:
            await receive_body(next_message, made.directory.services["a"], inflater_for([b"gzip"]), allowance)
        other.cancel()

    asyncio.run(run())
    assert turns >= LIMIT_BYTES // MIB
