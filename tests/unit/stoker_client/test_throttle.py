"""Requests that the client holds back because the server refuses most of them."""

from __future__ import annotations

from itertools import chain, repeat
from typing import TYPE_CHECKING

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.stoker_client.puppet_server import KEY, Behaviour, PuppetServer, Request, answer
from tests.unit.stoker_client.scripted import URI, Caller, Kind, Timeline, error, ok

from stoker_client import Client, InvalidInput, Overloaded, Throttled
from stoker_client.throttle import Throttle

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = np.zeros((1, 784), np.float32)


def throttle_after(requests: int, accepts: int, timeline: Timeline | None = None) -> Throttle:
    """A throttle that has seen so many requests at one moment."""
    throttle = Throttle((timeline or Timeline()).clock, lambda: 0.0)
    for number in range(requests):
        throttle.answered(accepted=number < accepts)
    return throttle


@pytest.mark.parametrize(
    ("requests", "accepts", "part"),
    [(0, 0, 0.0), (10, 10, 0.0), (10, 5, 0.0), (10, 4, 2 / 11), (9, 0, 0.9), (100, 10, 80 / 101)],
)
def test_the_part_is_that_of_the_book(requests: int, accepts: int, part: float) -> None:
    """The client refuses max(0, (requests - 2 accepts) / (requests + 1)), so nothing while half is accepted."""
    assert throttle_after(requests, accepts).refused_part == pytest.approx(part)


def test_only_the_last_two_minutes_count() -> None:
    """Refusals are forgotten after two minutes, accepted requests as well, each at its own time."""
    timeline = Timeline()
    throttle = throttle_after(9, 0, timeline)
    timeline.sleep(60)
    throttle.answered(accepted=True)
    assert throttle.refused_part == pytest.approx(8 / 11)
    timeline.sleep(59)
    assert throttle.refused_part == pytest.approx(8 / 11)
    timeline.sleep(1)
    assert throttle.refused_part == 0.0


def test_local_refusal_counts_as_not_accepted() -> None:
    """Each local refusal makes the next one likelier, as the offered load is unchanged."""
    throttle = throttle_after(3, 1)
    assert throttle.refuses()
    assert throttle.refused_part == pytest.approx(2 / 5)


def test_chance_decides() -> None:
    """A draw below the part holds a request back, any other one lets it pass."""
    draws = iter([0.49, 0.7, 0.0])
    throttle = Throttle(Timeline().clock, lambda: next(draws))
    assert not throttle.refuses()
    throttle.answered(accepted=False)
    assert [throttle.refuses(), throttle.refuses()] == [True, False]
    assert next(draws) == 0.0


@given(st.lists(st.tuples(st.floats(0, 40), st.booleans()), max_size=60))
def test_counts_are_those_of_the_window(events: list[tuple[float, bool]]) -> None:
    """The part follows from the requests of the last 119 to 120 seconds."""
    timeline, seen = Timeline(), []
    throttle = Throttle(timeline.clock, lambda: 1.0)
    for gap_s, accepted in events:
        timeline.sleep(gap_s)
        throttle.answered(accepted=accepted)
        seen.append((timeline.now_s, accepted))
    kept = [accepted for at_s, accepted in seen if int(at_s) > int(timeline.now_s) - 120]
    assert throttle.refused_part == max(0.0, (len(kept) - 2 * sum(kept)) / (len(kept) + 1))


def test_a_throttled_request_is_not_sent_again(kind: Kind) -> None:
    """After a refusal by the server the next attempt may be held back; the error has the server's message."""
    caller = Caller(
        kind, repeat(error(503, "overloaded", retry_after="1")), throttle=True, jitter=lambda: 0.4
    )
    with pytest.raises(Throttled, match="holds some back") as caught:
        caller.call("score", ROWS)
    assert isinstance(caught.value.__cause__, Overloaded)
    assert len(caller.requests) == caught.value.attempts == 1


def test_requests_are_not_throttled_by_default(kind: Kind) -> None:
    """By default a request is tried as often as it may be, however many were refused."""
    refused = repeat(error(429, "overloaded"), 6)
    caller = Caller(kind, chain(refused, [ok([3])]), jitter=lambda: 0.0)
    np.testing.assert_array_equal(caller.call("score", ROWS), [3])


@pytest.mark.parametrize(
    "away", [error(503, "not_ready"), error(503, "device_lost"), httpx.ConnectError("no")]
)
def test_a_server_that_is_away_holds_nothing_back(kind: Kind, away: httpx.Response | Exception) -> None:
    """A model that loads and a server that cannot be reached say nothing of load."""
    caller = Caller(kind, [away, away, away, ok([3])], throttle=True, jitter=lambda: 0.0)
    np.testing.assert_array_equal(caller.call("score", ROWS), [3])


def test_other_errors_are_accepted_requests(kind: Kind) -> None:
    """Requests that the server refused for the caller's fault were not refused for load."""
    caller = Caller(kind, repeat(error(422, "invalid_input")), throttle=True, jitter=lambda: 0.0)
    with pytest.raises(InvalidInput):
        caller.call("score", ROWS)


def test_calls_of_a_client_share_their_throttle(serve: Callable[[Behaviour], PuppetServer]) -> None:
    """While a server refuses all requests, ever fewer reach it, and all are there again when it takes them."""
    refusing = True

    def behave(request: Request) -> bytes:
        if refusing:
            return answer({"message": "full", "code": "overloaded"}, 503)
        return answer([1])

    server, timeline = serve(behave), Timeline()
    draws = iter(number / 101 for number in chain.from_iterable(repeat(range(100))))
    client = Client(
        server.uri, KEY, retries=0, throttle=True, clock=timeline.clock, jitter=lambda: next(draws)
    )
    with client:
        kinds = []
        for _ in range(100):
            with pytest.raises((Overloaded, Throttled)) as caught:
                client.score([[0.5]])
            kinds.append(caught.type)
        sent = len(server.requests)
        assert sent == kinds.count(Overloaded) < 10
        refusing = False
        timeline.sleep(121)
        assert [client.score([[0.5]]).tolist() for _ in range(10)] == [[1]] * 10
    assert len(server.requests) == sent + 10


def test_asking_for_readiness_is_never_held_back() -> None:
    """Only the scoring address is throttled."""
    timeline = Timeline()
    transport = httpx.MockTransport(lambda request: error(503, "overloaded"))
    options = {"clock": timeline.clock, "sleep": timeline.sleep, "jitter": lambda: 0.0}
    with Client(URI, transport=transport, throttle=True, retries=0, **options) as client:
        with pytest.raises(Overloaded):
            client.score(ROWS)
        with pytest.raises(Throttled):
            client.score(ROWS)
        assert not client.ready()
