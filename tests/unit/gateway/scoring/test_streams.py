"""Streams of pieces between a script's process and a frontend."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Any

import pytest
from tests.puppets import metric_memory, puppet_service

from stoker.gateway.scoring.call import Call
from stoker.gateway.scoring.streams import PiecewiseAnswer, ScriptStreams
from stoker.metrics import table
from stoker.wire.script_streams import CallerGone, PieceWriter, new_address, token_of


def test_pieces_come_in_order_and_end() -> None:
    """Pieces have any content and length; after the last one the stream ends."""
    pieces = [b"1", b"", secrets.token_bytes(300_000), b"\n"]

    async def receive() -> list[bytes]:
        streams = ScriptStreams()
        expected = streams.expect()
        writer = PieceWriter(expected.place, 5)

        def send() -> None:
            for piece in pieces:
                writer.send(piece)
            writer.close()

        sending = asyncio.get_running_loop().run_in_executor(None, send)
        reader = await expected.begun
        received = []
        while (piece := await reader.next()) is not None:
            received.append(piece)
        await sending
        expected.close()
        streams.close()
        return received

    assert asyncio.run(receive()) == pieces


@pytest.mark.parametrize("in_pieces", [True, False])
def test_the_first_piece_is_timed_from_the_request(in_pieces: bool) -> None:
    """In a histogram of its own, which an answer without pieces is no part of."""
    memory = metric_memory()
    service = puppet_service(memory=memory)
    received_ns = time.monotonic_ns() - 5_000_000_000

    async def begin() -> bool:
        streams, loop = ScriptStreams(), asyncio.get_running_loop()
        expected, answered = streams.expect(), loop.create_future()
        writer = PieceWriter(expected.place, 5)
        call = Call(service, None, lambda status, lines, body: None, received_ns)
        if in_pieces:
            await loop.run_in_executor(None, writer.send, b"1")
        else:
            answered.set_result(None)
        begun = await PiecewiseAnswer(call, answered, expected).begin()
        writer.close()
        expected.close()
        streams.close()
        return begun

    assert asyncio.run(begin()) is in_pieces
    timed = table.FIRST_RESPONSES.histogram(memory.totals().model(0).words)
    assert sum(timed.counts) == in_pieces
    assert 5 * in_pieces <= timed.sum <= (time.monotonic_ns() - received_ns) / 1e9


def test_writer_without_the_token_is_disconnected() -> None:
    """A writer without the token, a second one, and one after the end of the stream send nothing."""

    async def refuse() -> None:
        streams = ScriptStreams()
        expected = streams.expect()
        name, _ = token_of(expected.place)
        _, foreign = new_address(name)
        loop = asyncio.get_running_loop()
        first, second = PieceWriter(expected.place, 5), PieceWriter(expected.place, 5)
        with pytest.raises(ConnectionResetError):
            await loop.run_in_executor(None, PieceWriter(foreign, 5).send, b"1")
        await loop.run_in_executor(None, first.send, b"1")
        with pytest.raises(ConnectionResetError):
            await loop.run_in_executor(None, second.send, b"1")
        expected.close()
        late = streams.expect()
        late.close()
        with pytest.raises(ConnectionResetError):
            await loop.run_in_executor(None, PieceWriter(late.place, 5).send, b"1")
        streams.close()
        first.close()

    asyncio.run(refuse())


def result_while_open(awaiting: Any, *, cancelled: bool = False) -> Any:
    """The result of awaiting it while the frontend ends the stream, or while it is cancelled."""

    async def end() -> Any:
        streams = ScriptStreams()
        expected = streams.expect()
        writer = PieceWriter(expected.place, 5)
        assert await writer.while_open(asyncio.sleep(0, "not begun")) == "not begun"
        await asyncio.get_running_loop().run_in_executor(None, writer.send, b"1")
        assert await writer.while_open(asyncio.sleep(0, "wanted")) == "wanted"
        begun = asyncio.Event()
        waiting = asyncio.ensure_future(writer.while_open(awaiting(begun)))
        await begun.wait()
        if cancelled:
            waiting.cancel()
        else:
            expected.close()
        try:
            return await waiting
        finally:
            writer.close()
            expected.close()
            streams.close()

    return asyncio.run(end())


async def waits(begun: asyncio.Event) -> None:
    begun.set()
    await asyncio.Event().wait()


async def goes_on(begun: asyncio.Event) -> str:
    try:
        await waits(begun)
    except asyncio.CancelledError:
        return "one more"
    return ""


async def fails(begun: asyncio.Event) -> None:
    try:
        await waits(begun)
    finally:
        raise ValueError("at the end")


@pytest.mark.parametrize("awaiting", [waits, goes_on])
def test_awaited_step_is_cancelled_when_its_caller_leaves(awaiting: Any) -> None:
    """An awaited step is cancelled once nobody waits, whether it heeds that or not."""
    with pytest.raises(CallerGone):
        result_while_open(awaiting)


def test_error_raised_during_cancellation_is_the_script_s() -> None:
    """An error that a cancelled step raises is reported as the script's fault."""
    with pytest.raises(ValueError, match="at the end"):
        result_while_open(fails)


def test_cancellation_for_another_reason_is_passed_on() -> None:
    """A cancellation whose caller is still there stays a cancellation."""
    with pytest.raises(asyncio.CancelledError):
        result_while_open(waits, cancelled=True)
