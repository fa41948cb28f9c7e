"""Requests that arrive in one turn of a frontend's event loop are scored together at its end."""

import asyncio
import time

import pytest
from tests.http.raw_http import rows_body
from tests.puppets import Joined, metric_memory, puppet_service

from stoker.arena import LONE_ROWS
from stoker.gateway.gateway import Gateway
from stoker.gateway.model_directory import ModelDirectory
from stoker.gateway.protocols.repository import statistics
from stoker.gateway.scoring.service import Service
from stoker.metrics.memory import MetricMemory


class Answers:
    """Takes answers: statuses and bodies in the order in which they came."""

    def __init__(self) -> None:
        self.got: list[tuple[int, bytes]] = []

    def __call__(self, status: int, lines: bytes, body: bytes) -> None:
        self.got.append((status, body))


def made_service() -> tuple[Service, MetricMemory]:
    """A service without keys, not yet joined with a device."""
    memory = metric_memory()
    return puppet_service(memory=memory), memory


def test_requests_of_one_turn_are_one_batch() -> None:
    """They ring once, good and bad ones, and each gets its own answer."""
    service, _ = made_service()
    answers = [Answers() for _ in range(4)]
    with Joined() as joined:
        service.attach(joined.exchange)
        bodies = [rows_body([1, 2]), rows_body([3, 4]), b"{", rows_body([5, 6], [7, 8])]

        async def arrive() -> None:
            for body, respond in zip(bodies, answers, strict=True):
                service.score_soon(body, None, respond)

        joined.loop.run_until_complete(arrive())
        assert joined.runtime.batches == []
        joined.settle()
        assert len(joined.runtime.batches) == 1
    assert [answer.got[0] for answer in answers if answer.got[0][0] == 200] == [
        (200, b"[[2.0,4.0]]"),
        (200, b"[[6.0,8.0]]"),
        (200, b"[[10.0,12.0],[14.0,16.0]]"),
    ]
    assert [[status for status, _ in answer.got] for answer in answers] == [[200], [200], [400], [200]]


def test_a_large_turn_goes_to_the_device_in_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device can begin with the first half while the second one is decoded; a smaller turn goes as one."""
    service, _ = made_service()
    answers = [Answers() for _ in range(41 + 35)]
    with Joined(capacity=64) as joined:
        service.attach(joined.exchange)
        rung: list[int] = []
        ring = joined.exchange.doorbell.ring
        monkeypatch.setattr(
            joined.exchange.doorbell, "ring", lambda numbers: (rung.append(len(numbers)), ring(numbers))
        )

        async def arrive(callers: list[Answers]) -> None:
            for number, respond in enumerate(callers):
                service.score_soon(rows_body([number, 0]), None, respond)

        for callers in (answers[:41], answers[41:]):
            joined.loop.run_until_complete(arrive(callers))
            joined.settle()
    assert rung == [20, 21, 35]
    assert [answer.got for answer in answers] == [
        [(200, b"[[%.1f,0.0]]" % (2 * number))] for number in (*range(41), *range(35))
    ]


def test_request_abandoned_in_its_turn_is_not_decoded() -> None:
    """It is counted as given up, and the others of the turn are answered."""
    service, memory = made_service()
    gone, stays = Answers(), Answers()
    with Joined() as joined:
        service.attach(joined.exchange)

        async def arrive() -> None:
            call = service.score_soon(rows_body([1, 2]), None, gone)
            service.score_soon(rows_body([3, 4]), None, stays)
            call.abandon()
            call.abandon()

        joined.loop.run_until_complete(arrive())
        joined.settle()
        assert joined.runtime.rows_run == [3]
        assert joined.exchange.leased_rows == 0
    assert (gone.got, [status for status, _ in stays.got]) == ([], [200])
    assert memory.totals().model(0).requests()[499] == 1


def test_without_a_device_each_is_refused() -> None:
    """A service that is loading answers 503 at the end of the turn."""
    service, _ = made_service()
    answers = Answers()

    async def arrive() -> None:
        service.score_soon(rows_body([1, 2]), None, answers)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(arrive())
    assert [status for status, _ in answers.got] == [503]


def test_an_answer_that_cannot_be_given_does_not_harm_its_neighbours() -> None:
    """A fault while one answer is written is logged; those that came with it are given."""
    service, _ = made_service()
    stays = Answers()

    def fail(status: int, lines: bytes, body: bytes) -> None:
        raise RuntimeError("a fault of the test")

    with Joined() as joined:
        service.attach(joined.exchange)
        joined.runtime.answer = lambda inputs: [inputs[0]]
        service.score(rows_body([1, 2]), None, fail, time.monotonic_ns())
        service.score(rows_body([3, 4]), None, stays, time.monotonic_ns())
        joined.settle()
        assert joined.exchange.leased_rows == 0
    assert stays.got == [(200, b"[[3.0,4.0]]")]


def test_a_request_is_counted_before_its_answer_is_sent() -> None:
    """A caller with an answer finds it and its rows in the counters, for single answers and for several at once."""
    service, memory = made_service()
    seen: list[tuple[int, int]] = []

    def look(status: int, lines: bytes, body: bytes) -> None:
        totals = memory.totals().model(0)
        seen.append((totals.requests()[200], totals.rows))

    with Joined() as joined:
        service.attach(joined.exchange)
        for rows in ([[1, 2]], [[3, 4], [5, 6], [7, 8]]):
            service.score(rows_body(*rows), None, look, time.monotonic_ns())
            joined.settle()
        assert seen == [(1, 1), (2, 4)]
        for number in (1, 2):
            service.score(rows_body([number, 0]), None, look, time.monotonic_ns())
        joined.settle()
    assert [
        (requests >= 2 + place, rows >= 4 + place) for place, (requests, rows) in enumerate(seen[2:], 1)
    ] == [
        (True, True),
        (True, True),
    ]
    assert (memory.totals().model(0).requests()[200], memory.totals().model(0).rows) == (4, 6)


def test_statistics_include_times_noted_but_not_yet_counted() -> None:
    """A frontend counts its noted times before it answers requests for metrics or statistics."""
    service, memory = made_service()
    gateway = Gateway(ModelDirectory({"m": service}), memory)
    service.metrics.note_scored(2, 1_000, 9_000)
    (found,) = statistics(gateway, "m")
    assert found["inference_stats"]["success"] == {"count": 1, "ns": 9_000}
    assert found["last_inference"] > 0


def test_lone_request_is_submitted_at_once() -> None:
    """After some requests one at a time, the next does not wait for the end of its turn; one with company does."""
    service, _ = made_service()
    with Joined() as joined:
        service.attach(joined.exchange)
        queued: list[int] = []

        async def arrive(*numbers: int) -> None:
            for number in numbers:
                service.score_soon(rows_body([number, 0]), None, Answers())
                service.submit_lone()
                queued.append(joined.exchange.leased_rows)

        for number in range(LONE_ROWS + 1):
            joined.loop.run_until_complete(arrive(number))
            joined.settle()
        assert queued == [*[0] * LONE_ROWS, 1]
        joined.loop.run_until_complete(arrive(8, 9))
        joined.settle()
        assert queued[-2:] == [1, 1]
        assert joined.runtime.rows_run == [*range(LONE_ROWS + 1), 8, 9]
