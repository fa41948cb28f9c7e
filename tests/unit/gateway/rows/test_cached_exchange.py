"""An exchange that keeps answers, joined with a worker by a real doorbell; every turn is the test's."""

import numpy as np
import pytest
from tests.puppets import BODIES, TEXTS, Joined, JoiningTicket, PuppetRuntime, PuppetTicket, rows_of

from stoker.errors import DeviceLost, InvalidInput, ModelFailed, Overloaded
from stoker.gateway.rows.cache import AnswerCache
from stoker.gateway.rows.exchange import ArenaExchange
from stoker.metrics.totals import CacheTotals
from stoker.wire.script_requests import RequestHead, ScriptAnswer, ScriptRequest


@pytest.fixture
def cache() -> AnswerCache:
    return AnswerCache(1 << 20, lambda size_bytes, evicted: None)


def cache_totals(joined: Joined) -> CacheTotals:
    """The cache's counters of the first frontend."""
    return joined.memory.totals().model(0).cache()


@pytest.mark.parametrize("rows", [1, 2, 8])
@pytest.mark.parametrize("kind", [PuppetTicket, JoiningTicket])
def test_the_same_rows_have_the_same_answer(cache: AnswerCache, rows: int, kind: type[PuppetTicket]) -> None:
    """The second request is answered at once, bit for bit, and nothing runs for it."""
    with Joined(cache=cache) as joined:
        first = joined.submit(*range(rows), ticket=kind())
        joined.settle()
        again = joined.submit(*range(rows), ticket=kind())
        assert (again.completions, again.rows, again.error) == (1, rows, None)
        assert first.answer is not None
        assert again.answer is not None
        assert [one.tobytes() for one in again.answer] == [one.tobytes() for one in first.answer]
        assert joined.runtime.rows_run == list(range(rows))
        assert again.started_ns == again.finished_ns == again.enqueued_ns == joined.clock()
        assert joined.exchange.idle
        assert (cache_totals(joined).hits, cache_totals(joined).misses) == (1, 1)


def test_other_rows_are_run(cache: AnswerCache) -> None:
    """A request with one number that differs has an answer of its own."""
    with Joined(cache=cache) as joined:
        for first in ((1, 2), (1, 3), (1,), (1, 2, 3)):
            joined.submit(*first)
            joined.settle()
        assert joined.runtime.rows_run == [1, 2, 1, 3, 1, 1, 2, 3]
        assert cache_totals(joined).hits == 0


def test_rows_of_another_dtype_are_the_same_rows(cache: AnswerCache) -> None:
    """JSON's float64 and binary float32 become one input of the model, so they share an answer."""
    with Joined(cache=cache) as joined:
        joined.submit(1, 2)
        joined.settle()
        ticket = PuppetTicket()
        joined.exchange.submit(ticket, [rows_of(1, 2)[0].astype(np.float32)])
        assert ticket.completions == 1


def test_full_arena_still_gives_kept_answers(cache: AnswerCache) -> None:
    """Only requests that have to run are refused."""
    with Joined(cache=cache, capacity=2) as joined:
        joined.submit(1)
        joined.settle()
        joined.submit(2)
        joined.submit(3)
        known = PuppetTicket()
        assert joined.exchange.refusal(known) is None
        joined.submit(1, ticket=known)
        assert known.completions == 1
        with pytest.raises(Overloaded):
            joined.submit(4)
        joined.settle()
        assert joined.submit(2).completions == 1
        assert not joined.exchange.pending_keys


def test_errors_are_not_kept(cache: AnswerCache) -> None:
    """A request that has failed is run again the next time, and a number that does not fit is refused each time."""
    with Joined(cache=cache) as joined:
        joined.runtime.fails_for = {7}
        failed = joined.submit(7)
        joined.settle()
        assert failed.failure() is ModelFailed
        joined.runtime.fails_for = set()
        again = joined.submit(7)
        joined.settle()
        assert again.failure() is None
        for _ in range(2):
            with np.errstate(over="raise"), pytest.raises(InvalidInput):
                joined.exchange.submit(PuppetTicket(), [np.full((1, 2), 1e300)])
        assert not joined.exchange.pending_keys


def test_abandoned_request_leaves_nothing_in_the_cache(cache: AnswerCache) -> None:
    """Answers of requests that were given up or late are not kept, and their keys are removed."""
    with Joined(cache=cache) as joined:
        joined.submit(1).cancel()
        joined.submit(2, timeout_ms=1)
        joined.clock.advance_ms(5)
        joined.exchange.sweep(joined.clock())
        joined.settle()
        assert (len(cache), joined.exchange.pending_keys) == (0, {})
        joined.submit(3)
        joined.kill_device()
        joined.turn_frontends()
        assert (len(cache), joined.exchange.pending_keys) == (0, {})


def test_requests_that_flow_in_slices_are_run(cache: AnswerCache) -> None:
    """More rows than half of the arena are neither looked for nor kept."""
    with Joined(cache=cache) as joined:
        for _ in range(2):
            ticket = joined.submit(*range(9))
            joined.settle()
            assert ticket.completions == 1
        assert (len(cache), cache_totals(joined)) == (0, CacheTotals(0, 0, 0, 0, 0, 0))
        assert len(joined.runtime.rows_run) == 18


def test_frontends_can_share_a_cache(cache: AnswerCache) -> None:
    """Exchanges with one cache find each other's answers; a closed exchange loses only its own requests."""
    with Joined(cache=cache, frontends=2) as joined:
        joined.submit(1, frontend=0)
        joined.settle()
        assert joined.submit(1, frontend=1).completions == 1


def test_texts_are_kept_as_they_are(cache: AnswerCache) -> None:
    """An output of free size is kept row by row."""
    runtime = PuppetRuntime(TEXTS, lambda inputs: [[b'{"x":%d}' % row[0] for row in inputs[0]]])
    with Joined(runtime, cache=cache) as joined:
        joined.submit(1, 2)
        joined.settle()
        assert joined.submit(1, 2).texts == [b'{"x":1}', b'{"x":2}']
        assert len(runtime.batches) == 1


def script(answer: ScriptAnswer) -> PuppetRuntime:
    """A script that answers each body with this."""
    return PuppetRuntime(BODIES, lambda inputs: [[answer.pack() for _ in inputs[0]]])


def ask(joined: Joined, request: ScriptRequest) -> PuppetTicket:
    """Submit a body, and let it be answered."""
    ticket = PuppetTicket()
    joined.exchange.submit_body(ticket, request.pack())
    joined.settle()
    return ticket


def test_bodies_of_scripts_are_compared_without_their_ids(cache: AnswerCache) -> None:
    """Each request has an id of its own, and the answer to one body is the answer to that body."""
    runtime = script(ScriptAnswer(b"[1]"))
    with Joined(runtime, cache=cache) as joined:
        first, again = (ask(joined, ScriptRequest(name, b'{"a": 1}')) for name in (b"one", b"two"))
        assert first.texts == again.texts
        ask(joined, ScriptRequest(b"one", b'{"a": 2}'))
        assert len(runtime.batches) == 2


@pytest.mark.parametrize(
    "answer", [ScriptAnswer(b"{}", 404), ScriptAnswer(b"{}", 500, failed=True), ScriptAnswer(b"", 204)]
)
def test_only_good_answers_of_scripts_are_kept(cache: AnswerCache, answer: ScriptAnswer) -> None:
    """Requests with other answers than 200 run again."""
    runtime = script(answer)
    with Joined(runtime, cache=cache) as joined:
        for _ in range(2):
            assert ask(joined, ScriptRequest(b"one", b"{}")).completions == 1
        assert len(runtime.batches) == 2


def test_requests_that_scripts_see_whole_are_run(cache: AnswerCache) -> None:
    """A script that looks at headers may answer each caller in another way."""
    runtime = script(ScriptAnswer(b"[1]"))
    head = RequestHead("POST", "/score", "", [("a", "b")], "127.0.0.1")
    with Joined(runtime, cache=cache) as joined:
        for _ in range(2):
            ask(joined, ScriptRequest(b"one", b"{}", head=head))
        assert (len(runtime.batches), len(cache)) == (2, 0)


def test_a_lost_device_tells_its_requests(cache: AnswerCache) -> None:
    """Requests that wait for the device get `DeviceLost`, as without a cache."""
    with Joined(cache=cache) as joined:
        waiting = joined.submit(1)
        joined.kill_device()
        joined.turn_frontends()
        assert waiting.failure() is DeviceLost


def test_late_request_is_refused_unless_cached(cache: AnswerCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where targets refuse requests, cached answers are given, and no other request is queued."""
    with Joined(cache=cache) as joined:
        joined.submit(1)
        joined.settle()
        monkeypatch.setattr(ArenaExchange, "refusal", lambda exchange, ticket: Overloaded("too late"))
        assert joined.submit(1).completions == 1
        for rows in (1, 9):
            with pytest.raises(Overloaded, match="too late"):
                joined.submit(*range(5, 5 + rows))
        assert (joined.exchange.pending_keys, joined.runtime.rows_run) == ({}, [1])
