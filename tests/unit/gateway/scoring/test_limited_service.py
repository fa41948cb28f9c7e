"""A limit on the requests in flight: admission, waits, refusals."""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.http.raw_http import rows_body
from tests.patience import PATIENCE_S
from tests.puppets import TEXTS, Joined, PuppetRuntime, metric_memory, puppet_service

from stoker.gateway.protocols.infer import InferDialect
from stoker.gateway.scoring.call import Call


class Agenda:
    """Keeps delayed calls, and makes them when a test says so."""

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self.clock_ns = clock_ns
        self.entries: list[tuple[float, Callable[[], None]]] = []

    def __call__(self, delay_s: float, function: Callable[[], None]) -> None:
        self.entries.append((delay_s and self.clock_ns() + delay_s * 1e9, function))

    @property
    def delays_s(self) -> list[float]:
        """How long each of them is due in."""
        return [(due_ns - self.clock_ns()) / 1e9 for due_ns, _ in self.entries]

    def run(self, *, timers: bool = False) -> None:
        """Make the calls without a delay, and with `timers` those whose delay has passed."""
        due = [entry for entry in self.entries if entry[0] <= (self.clock_ns() if timers else 0)]
        self.entries = [entry for entry in self.entries if entry not in due]
        for _, function in due:
            function()


class Answer:
    """Takes one answer."""

    def __init__(self) -> None:
        self.status = 0
        self.lines = b""
        self.body = b""

    def __call__(self, status: int, lines: bytes, body: bytes) -> None:
        assert not self.status, "an answer is given once"
        self.status, self.lines, self.body = status, lines, body


class Limited:
    """A limited service joined with a puppet."""

    def __init__(self, joined: Joined, *, limit: int, max_wait_ms: int, timeout_ms: int = 1000) -> None:
        self.memory = metric_memory()
        self.joined, self.agenda = joined, Agenda(joined.clock)
        self.service = puppet_service(
            memory=self.memory,
            timeout_ms=timeout_ms,
            max_concurrent_requests=limit,
            max_queue_wait_ms=max_wait_ms,
            clock_ns=joined.clock,
            call_later=self.agenda,
        )
        self.service.attach(joined.exchange)

    def score(self, number: float) -> tuple[Call, Answer]:
        """Score one row that begins with this number."""
        answer = Answer()
        return self.service.score(rows_body([number, 0]), None, answer, self.joined.clock()), answer

    def settle(self) -> None:
        """Let the device answer, and run newly admitted requests, until nothing moves."""
        while True:
            self.joined.settle()
            before = len(self.joined.runtime.batches)
            self.agenda.run()
            self.joined.settle()
            if len(self.joined.runtime.batches) == before:
                return

    def statuses(self) -> dict[int, int]:
        """How often each status was counted."""
        self.service.metrics.flush()
        return {s: n for s, n in self.memory.totals().model(0).requests().items() if n}


@pytest.fixture(params=["joining", "single"])
def joined(request: pytest.FixtureRequest) -> Iterator[Joined]:
    """A model whose answers are encoded together, and one whose answers are not."""
    texts = PuppetRuntime(TEXTS, lambda inputs: [[b"%d" % row[0] for row in inputs[0]]])
    with Joined(None if request.param == "joining" else texts) as joined:
        yield joined


def test_no_more_than_the_limit_are_in_flight(joined: Joined) -> None:
    """The others wait, and come in in their order as answers go out; each has its own answer."""
    limited = Limited(joined, limit=2, max_wait_ms=500)
    answers = [limited.score(number)[1] for number in range(5)]
    assert joined.exchange.leased_rows == 2
    limited.service.sweep(joined.clock())
    assert limited.memory.totals().model(0).held_requests == (5, 2)
    limited.settle()
    limited.service.sweep(joined.clock())
    assert limited.memory.totals().model(0).held_requests == (0, 2)
    assert [answer.status for answer in answers] == [200] * 5
    assert [json.dumps(json.loads(answer.body)[0])[:2].strip("[.,]") for answer in answers] == [
        str(number * (1 if joined.runtime.signature is TEXTS else 2)) for number in range(5)
    ]
    assert joined.runtime.rows_run == [0, 1, 2, 3, 4]
    assert max(len(batch) for batch in joined.runtime.batches) == 2
    assert (limited.service.in_flight, limited.service.idle) == (0, True)


def test_server_timing_has_the_wait_for_admission(joined: Joined) -> None:
    """An answer without a wait has no such stage."""
    limited = Limited(joined, limit=1, max_wait_ms=500)
    (_, first), (_, second) = limited.score(1), limited.score(2)
    joined.clock.advance_ms(12.5)
    limited.settle()
    assert b"admission" not in first.lines
    assert b"server-timing: admission;dur=12.500\r\n" in second.lines


def test_request_that_waits_past_max_wait_gets_503(joined: Joined) -> None:
    """A request waits for `max_wait_ms`, then gets 503 with Retry-After; later ones wait on."""
    limited = Limited(joined, limit=1, max_wait_ms=500)
    limited.score(1)
    _, early = limited.score(2)
    joined.clock.advance_ms(200)
    _, late = limited.score(3)
    assert limited.agenda.delays_s == pytest.approx([0.3, 0.5])
    joined.clock.advance_ms(300)
    limited.agenda.run(timers=True)
    assert (early.status, json.loads(early.body)["code"], late.status) == (503, "overloaded", 0)
    assert b"retry-after: 1\r\n" in early.lines
    assert limited.agenda.delays_s == [pytest.approx(0.2)]
    limited.settle()
    assert late.status == 200
    assert limited.statuses() == {200: 2, 503: 1}
    joined.clock.advance_ms(300)
    limited.agenda.run(timers=True)
    assert limited.agenda.entries == []


def test_a_deadline_in_the_queue_is_a_deadline(joined: Joined) -> None:
    """A request whose `timeout_ms` passes while it waits gets 504, as one that the device does not answer."""
    limited = Limited(joined, limit=1, max_wait_ms=5000, timeout_ms=100)
    limited.score(1)
    _, answer = limited.score(2)
    assert limited.agenda.delays_s == [pytest.approx(0.1)]
    joined.clock.advance_ms(100)
    limited.agenda.run(timers=True)
    assert (answer.status, json.loads(answer.body)["code"]) == (504, "deadline_exceeded")


@pytest.mark.parametrize("joined", ["joining"], indirect=True)
def test_an_own_timeout_counts_from_the_arrival(joined: Joined) -> None:
    """A request with a shorter timeout gets 504 when that has passed, not when it is admitted."""
    limited = Limited(joined, limit=1, max_wait_ms=500)
    (name,) = (spec.name for spec in joined.runtime.signature.inputs)
    tensor = {"name": name, "shape": [1, 2], "datatype": "FP32", "data": [[3, 0]]}
    _, running = limited.score(1)
    _, patient = limited.score(2)
    answers = []
    for parameters in ({"timeout": 100_000}, {"timeout": 50_000}, {"timeout": "soon"}, {}):
        body, answer = json.dumps({"inputs": [tensor], "parameters": parameters}).encode(), Answer()
        limited.service.score(body, None, answer, joined.clock(), dialect=InferDialect(None))
        answers.append(answer)
    hasty = Answer()

    class Hasty(InferDialect):
        """Its callers say how long they wait, as those of gRPC do."""

        def timeout_ns(self, *_: Any) -> int:
            return 75_000_000

    limited.service.score(b"", None, hasty, joined.clock(), dialect=Hasty(None))
    joined.clock.advance_ms(50)
    limited.agenda.run(timers=True)
    assert [answer.status for answer in answers] == [0, 504, 0, 0]
    joined.clock.advance_ms(25)
    limited.agenda.run(timers=True)
    assert ([answer.status for answer in answers], hasty.status) == ([0, 504, 0, 0], 504)
    joined.clock.advance_ms(25)
    limited.agenda.run(timers=True)
    assert [answer.status for answer in answers] == [504, 504, 0, 0]
    assert limited.agenda.delays_s == pytest.approx([0.4, 0.4, 0.4])
    limited.settle()
    assert [running.status, patient.status] == [200, 200]
    assert [answer.status for answer in answers] == [504, 504, 400, 200]


def test_without_a_wait_the_next_is_refused_at_once(joined: Joined) -> None:
    """`max_queue_wait_ms` of 0 lets nobody wait."""
    limited = Limited(joined, limit=1, max_wait_ms=0)
    (_, first), (_, second) = limited.score(1), limited.score(2)
    assert (first.status, second.status) == (0, 503)
    limited.settle()
    assert (first.status, limited.agenda.entries) == (200, [])


def test_the_queue_has_an_end(joined: Joined, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bodies that wait are held in memory: only so many do."""
    monkeypatch.setattr("stoker.gateway.scoring.limited_service._MAX_WAITING", 2)
    limited = Limited(joined, limit=1, max_wait_ms=500)
    answers = [limited.score(number)[1] for number in range(4)]
    assert [answer.status for answer in answers] == [0, 0, 0, 503]
    limited.settle()
    assert [answer.status for answer in answers] == [200, 200, 200, 503]


def test_abandoned_requests_make_room(joined: Joined) -> None:
    """One abandoned in flight admits the next; one abandoned in the queue is skipped."""
    limited = Limited(joined, limit=1, max_wait_ms=500)
    (running, gone_running), (waiting, gone_waiting), (_, stays) = (limited.score(n) for n in (1, 2, 3))
    waiting.abandon()
    waiting.abandon()
    running.abandon()
    limited.settle()
    assert (gone_running.status, gone_waiting.status, stays.status) == (0, 0, 200)
    assert joined.runtime.rows_run == [3]
    assert limited.statuses() == {200: 1, 499: 2}
    assert limited.service.in_flight == 0


def test_bad_bodies_hold_no_place(joined: Joined) -> None:
    """A request that is refused when it is admitted gives its place to the next one at once."""
    limited = Limited(joined, limit=1, max_wait_ms=500)
    bad = [Answer() for _ in range(50)]
    _, first = limited.score(1)
    for answer in bad:
        limited.service.score(b"{", None, answer, joined.clock())
    _, last = limited.score(2)
    limited.settle()
    assert {answer.status for answer in bad} == {400}
    assert (first.status, last.status, limited.service.in_flight) == (200, 200, 0)


def test_a_lost_device_empties_the_queue(joined: Joined) -> None:
    """Waiting requests get 503 at once, not when their wait is over."""
    limited = Limited(joined, limit=1, max_wait_ms=500)
    answers = [limited.score(number)[1] for number in range(3)]
    joined.kill_device()
    joined.turn_frontends()
    limited.service.detach(joined.exchange)
    limited.agenda.run()
    assert [answer.status for answer in answers] == [503, 503, 503]
    assert limited.service.in_flight == 0


def test_a_fault_in_an_answer_costs_no_place(joined: Joined) -> None:
    """A connection that raises when it is written to does not take its place along."""
    limited = Limited(joined, limit=1, max_wait_ms=500)

    def fail(*_: Any) -> None:
        raise RuntimeError("a fault of the test")

    limited.service.score(rows_body([1, 0]), None, fail, joined.clock())
    _, after = limited.score(2)
    limited.settle()
    assert after.status == 200


def test_the_running_loop_is_the_default() -> None:
    """Without a test's agenda, the event loop refuses requests that wait too long."""
    with Joined() as joined:

        async def overload() -> int:
            service = puppet_service(timeout_ms=9000, max_concurrent_requests=1, max_queue_wait_ms=1)
            service.attach(joined.exchange)
            answered = asyncio.get_running_loop().create_future()
            service.score_soon(rows_body([1, 0]), None, Answer())
            service.score_soon(rows_body([2, 0]), None, lambda status, *_: answered.set_result(status))
            return int(await asyncio.wait_for(answered, PATIENCE_S))

        assert joined.loop.run_until_complete(overload()) == 503
