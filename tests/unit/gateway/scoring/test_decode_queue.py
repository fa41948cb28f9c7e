"""The queue of requests to decode, turn by turn of the loop."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.http.raw_http import rows_body
from tests.puppets import Joined, puppet_service

from stoker.gateway.scoring.staging import LONG_BODY_BYTES, TURN_BYTES, DecodeQueue, StagedCall

TURN, LONG = 50, 10


def staged(size: int) -> Any:
    """A request with a body of this size, whose caller waits."""
    return SimpleNamespace(wanted=True), b"x" * size, None


@settings(max_examples=40)
@given(st.lists(st.lists(st.tuples(st.integers(0, 80), st.booleans()), max_size=6), max_size=8))
def test_each_request_has_its_turn(arrivals: list[list[tuple[int, bool]]]) -> None:
    """Short ones at once, long ones in their order and by portions; none twice, nor if given up."""
    turns = DecodeQueue(TURN, LONG)
    sent: list[StagedCall] = []
    taken: list[StagedCall] = []
    arrivals = [*arrivals, *([] for _ in range(60))]
    for arrived in arrivals:
        come = [staged(size) for size, _ in arrived]
        for request, (_, leaves) in zip(come, arrived, strict=True):
            request[0].is_awaited = not leaves or len(request[1]) <= LONG
        sent += come
        waited = any(call.is_awaited for call, *_ in [*turns, *(one for one in come if len(one[1]) > LONG)])
        portion = turns.portion(come)
        taken += portion
        long = [len(body) for _, body, _ in portion if len(body) > LONG]
        assert [one for one in portion if len(one[1]) <= LONG] == [one for one in come if len(one[1]) <= LONG]
        assert portion[len(portion) - len(long) :] == [one for one in portion if len(one[1]) > LONG]
        assert bool(long) == waited
        assert sum(long) <= TURN or len(long) == 1
    assert len(turns) == 0
    for of_size in (lambda size: size <= LONG, lambda size: size > LONG):
        expected = [id(one) for one in sent if one[0].is_awaited and of_size(len(one[1]))]
        assert [id(one) for one in taken if of_size(len(one[1]))] == expected


def long_body(number: int) -> bytes:
    """One row, in so many bytes that one turn has no room for a second such body."""
    body = rows_body([number, 0])
    return body + b" " * (TURN_BYTES - len(body))


def test_a_short_request_is_decoded_before_long_ones_that_came_earlier() -> None:
    """Long bodies that wait for their turns do not make a short one wait, and have their turns by either door."""
    service = puppet_service()
    answered: list[int] = []
    with Joined() as joined:
        service.attach(joined.exchange)

        async def arrive() -> None:
            for number in (1, 2, 3, 4):
                respond = lambda *_, number=number: answered.append(number)  # noqa: E731
                if number % 2:
                    service.score_soon(long_body(number), None, respond)
                else:
                    service.score(long_body(number), None, respond, time.monotonic_ns())
            await asyncio.sleep(0)
            service.score_soon(rows_body([9, 0]), None, lambda *_: answered.append(9))

        joined.loop.run_until_complete(arrive())
        assert not service.idle
        for _ in range(8):
            joined.settle()
        assert answered.index(9) < answered.index(3)
        assert [number for number in answered if number != 9] == [1, 2, 3, 4]
        assert service.idle


def test_long_body_that_waits_past_its_deadline_gets_504() -> None:
    """A long body whose deadline passes before its turn gets 504 and is not decoded."""
    service = puppet_service()
    answered: list[tuple[int, int]] = []
    with Joined() as joined:
        service.attach(joined.exchange)

        async def arrive() -> None:
            for number in (1, 2, 3):
                service.score_soon(
                    long_body(number),
                    None,
                    lambda status, *_, number=number: answered.append((number, status)),
                )
            await asyncio.sleep(0)
            service.sweep(time.monotonic_ns() + 10**12)

        joined.loop.run_until_complete(arrive())
        assert sorted(answered)[-2:] == [(2, 504), (3, 504)]
        joined.settle()
        assert 3 not in joined.runtime.rows_run
        assert service.idle


def test_several_long_bodies_fit_one_turn() -> None:
    """A turn has room for several bodies that are just long enough to wait for one."""
    assert 4 * LONG_BODY_BYTES <= TURN_BYTES
