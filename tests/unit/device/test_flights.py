"""Batches in flight: what the two threads tell each other, and the arenas that stay attached."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from tests.patience import PATIENCE_S

from stoker.device.flights import AttachedArenas, Flight, Flights


def make_flight(*arenas: str) -> Flight:
    """A batch with a row of each of these arenas."""
    lanes = {place: SimpleNamespace(arena=arena) for place, arena in enumerate(arenas)}
    blocks = [SimpleNamespace(lane=place) for place in lanes]
    batch: Any = SimpleNamespace(lanes=lanes, blocks=blocks)
    return Flight(batch, 1, 1, 0)


def begin(flights: Flights, *arenas: str) -> Flight:
    flight = make_flight(*arenas)
    flights.unfinished.append(flight)
    return flight


@pytest.fixture
def instance() -> Any:
    return SimpleNamespace(run_began_ns=5)


def test_the_last_batch_that_ends_leaves_the_device_idle(instance: Any) -> None:
    """The first thread is woken then, and the instance runs nothing."""
    flights = Flights()
    first, second = begin(flights), begin(flights)
    assert not flights.leave(first, None, instance)
    assert (flights.has_news, instance.run_began_ns) == (False, 5)
    assert flights.leave(second, None, instance)
    assert (flights.has_news, instance.run_began_ns) == (True, 0)


def test_a_thread_that_wants_room_is_woken_by_each_end(instance: Any) -> None:
    """Others still run."""
    flights = Flights()
    first, _ = begin(flights), begin(flights)
    flights.wants_room = True
    flights.leave(first, None, instance)
    assert flights.has_news


def test_a_failed_batch_is_kept_with_its_reason(instance: Any) -> None:
    """The first thread runs it again in parts."""
    flights, error = Flights(), ValueError("no")
    flight = begin(flights)
    flights.leave(flight, error, instance)
    assert list(flights.failed) == [(flight, error)]
    assert not flights.unfinished


def test_waiting_for_landed_batches_ends_with_the_last_one(instance: Any) -> None:
    """A crash of the second thread ends the wait too: no batch would ever land."""
    flights = Flights()
    flight = begin(flights)
    waiting = threading.Thread(target=flights.wait_until_landed, daemon=True)
    waiting.start()
    flights.leave(flight, None, instance)
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()
    begin(flights)
    flights.note_crash(ZeroDivisionError())
    flights.wait_until_landed()


def test_news_ends_a_wait_at_once() -> None:
    """News that came before the wait counts."""
    flights = Flights()
    flights.wait_for_news(0)
    assert not flights.has_news
    flights.note_news()
    flights.wait_for_news(None)


def test_an_arena_is_detached_when_no_batch_reads_it(instance: Any) -> None:
    """The arena of a lost frontend stays attached until the batches that read it have ended."""
    calls: list[tuple[str, str]] = []
    runtime: Any = SimpleNamespace(
        attach=lambda arena: calls.append(("attach", arena)),
        detach=lambda arena: calls.append(("detach", arena)),
    )
    flights = Flights()
    arenas: Any = AttachedArenas(runtime, flights)
    arenas.update({"a"})
    flight = begin(flights, "a")
    arenas.update({"b"})
    assert calls == [("attach", "a"), ("attach", "b")]
    assert arenas.leaving == {"a"}
    flights.leave(flight, None, instance)
    arenas.detach_unread()
    assert calls[2:] == [("detach", "a")]
    assert arenas.leaving == set()
