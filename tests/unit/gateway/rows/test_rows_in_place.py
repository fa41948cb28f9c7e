"""Single rows that are written where they are to lie, by what reads them; every turn is the test's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.puppets import BODIES, ROWS, Joined, PuppetRuntime, PuppetTicket, double, rows_of

from stoker.errors import DeviceLost, InvalidInput, Overloaded, StokerError
from stoker.gateway.rows.cache import AnswerCache
from stoker.gateway.rows.ticket import Decode, Rows
from stoker.gateway.takeover.samples import Samples
from stoker.tensors import Signature, TensorSpec

BODY = b"whatever"


def writes(*numbers: float) -> Decode[bytes]:
    """Write a row as a decoder of float32 does; its arrays where it has no memory for them."""

    def decode(body: bytes, row: memoryview | None) -> Rows:
        assert body == BODY
        values = np.array(numbers, np.float32)
        if row is None:
            return [values[np.newaxis]]
        row[:] = values.tobytes()
        return []

    return decode


def returns(*first: float) -> Decode[bytes]:
    """Return rows, after it has written some of them in vain."""

    def decode(_: bytes, row: memoryview | None) -> Rows:
        if row is not None:
            row[:4] = b"\xff" * 4
        return rows_of(*first)

    return decode


def fails(error: StokerError) -> Decode[bytes]:
    """Refuse a body, of which it has written a part in vain."""

    def decode(_: bytes, row: memoryview | None) -> Rows:
        if row is not None:
            row[:4] = b"\xff" * 4
        raise error

    return decode


def answers(*tickets: PuppetTicket) -> list[list[list[float]]]:
    """The only output of each."""
    assert all(ticket.answer is not None for ticket in tickets)
    return [array.tolist() for ticket in tickets for array in ticket.answer or ()]


def test_each_row_is_the_one_that_was_written_for_it() -> None:
    """Beside others, of which several rows come as arrays, and again when rows have been freed."""
    with Joined() as joined:
        for _ in range(3):
            tickets = [PuppetTicket() for _ in range(4)]
            joined.exchange.submit_decoded(tickets[0], BODY, writes(1, 2))
            joined.exchange.submit_decoded(tickets[1], BODY, returns(3, 4))
            joined.exchange.submit_decoded(tickets[2], BODY, returns(5))
            joined.exchange.submit_decoded(tickets[3], BODY, writes(6, 7))
            joined.settle()
            assert answers(*tickets) == [[[2, 4]], [[6, 7], [8, 9]], [[10, 11]], [[12, 14]]]
            assert joined.exchange.idle


def test_a_model_without_rows_of_one_input_gets_arrays() -> None:
    """Where there is no row to write to, the decoder has no memory."""
    seen: list[memoryview | None] = []

    def decode(_: bytes, row: memoryview | None) -> Rows:
        seen.append(row)
        return rows_of(1)

    with Joined(cache=AnswerCache(1 << 20, lambda size_bytes, evicted: None)) as joined:
        for _ in range(2):
            ticket = PuppetTicket()
            joined.exchange.submit_decoded(ticket, BODY, decode)
            joined.settle()
            assert answers(ticket) == [[[2, 3]]]
        assert joined.runtime.rows_run == [1], "what is kept is compared with what was read"
    assert seen == [None, None]


@pytest.mark.parametrize("decode", [writes(1, 2), returns(1), fails(InvalidInput("no rows"))])
def test_refused_request_leaves_no_row_reserved(decode: Decode) -> None:
    """A request that is refused leaves no row behind, before its body is read or after that."""
    with Joined(capacity=2) as joined:
        exchange = joined.exchange
        refused = PuppetTicket()
        with pytest.raises(InvalidInput):
            exchange.submit_decoded(refused, BODY, fails(InvalidInput("no rows")))
        tickets = [joined.submit(8), joined.submit(9)]
        with pytest.raises((Overloaded, InvalidInput)):
            exchange.submit_decoded(refused, BODY, decode)
        joined.settle()
        assert answers(*tickets) == [[[16, 17]], [[18, 19]]]
        assert exchange.idle
        exchange.close()
        with pytest.raises((DeviceLost, InvalidInput)):
            exchange.submit_decoded(refused, BODY, decode)
        assert exchange.idle
        assert not refused.completions


@pytest.mark.parametrize("quota", [False, True])
def test_row_of_a_refused_request_is_no_sample(quota: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds no request with a known answer."""

    def claim(*_: object) -> None:
        raise InvalidInput("over its quota")

    with Joined() as joined:
        joined.clock.advance_ms(1)
        joined.submit(1)
        joined.settle()
        assert len(joined.exchange.done_since(0, 1)) == 1
        ticket = PuppetTicket()
        if quota:
            monkeypatch.setattr(PuppetTicket, "claim", claim)
            ticket.urgency = object()  # type: ignore[assignment]  # only that there is one counts
        with pytest.raises(InvalidInput):
            joined.exchange.submit_decoded(
                ticket, BODY, writes(5, 6) if quota else fails(InvalidInput("no rows"))
            )
        assert joined.exchange.done_since(0, 1) == []
        samples = Samples(3)
        joined.clock.advance_ms(300)
        samples.collect(joined.exchanges, joined.clock())
        assert samples.contents == []


@pytest.mark.parametrize("signature", [ROWS, BODIES], ids=["rows", "body"])
def test_rows_of_a_request_that_was_not_queued_are_no_samples(
    signature: Signature, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They hold refused inputs beside older answers."""

    def submit(ticket: PuppetTicket, number: int) -> None:
        if signature is BODIES:
            joined.exchange.submit_body(ticket, b"%d" % number)
        else:
            joined.exchange.submit(ticket, rows_of(number, number))

    def claim(*_: object) -> None:
        raise InvalidInput("over its quota")

    runtime = PuppetRuntime(signature, (lambda inputs: [inputs[0]]) if signature is BODIES else double)
    with Joined(runtime) as joined:
        joined.clock.advance_ms(1)
        submit(PuppetTicket(), 1)
        joined.settle()
        assert joined.exchange.done_since(0, 4)
        monkeypatch.setattr(PuppetTicket, "claim", claim)
        with pytest.raises(InvalidInput):
            submit(PuppetTicket(), 2)
        assert joined.exchange.done_since(0, 4) == []
        assert joined.exchange.idle


def test_rows_of_several_inputs_have_no_memory_to_write_to() -> None:
    """They lie in several places, and come as arrays."""
    spec = TensorSpec("x", "float32", (2,))
    pairs = Signature((spec, replace(spec, name="z")), (replace(spec, name="y"),))
    ones, twos = (np.full((1, 2), number, np.float32) for number in (1, 2))
    with Joined(PuppetRuntime(pairs, lambda inputs: [inputs[0] - inputs[1]])) as joined:
        ticket = PuppetTicket()
        joined.exchange.submit_decoded(ticket, BODY, lambda _, row: [ones, twos] if row is None else [])
        joined.settle()
        assert answers(ticket) == [[[-1, -1]]]
