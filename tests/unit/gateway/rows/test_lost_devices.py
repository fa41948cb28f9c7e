"""A device that dies, completions that raise, and doorbells that are full or say nonsense."""

import weakref

import numpy as np
import pytest
from tests.puppets import SMALL_DOORBELL_BYTES, Joined, PuppetTicket, answer_of, doubled
from tests.unit.gateway.rows.test_large_requests import hungry_request

from stoker.device.batch_decisions import BatchPolicy
from stoker.errors import DeviceLost


def test_everybody_hears_that_the_device_is_gone() -> None:
    """Requests that wait, run, flow, or wait between slices each get one DeviceLost; cancelled ones nothing."""
    with Joined(capacity=64) as joined:
        large, others = hungry_request(joined)
        joined.turn_frontends()
        cancelled, single = PuppetTicket(), PuppetTicket()
        others[0].cancel()
        joined.kill_device()
        joined.turn_frontends()
        assert joined.lost == [0]
        assert (large.completions, large.failure()) == (1, DeviceLost)
        assert others[0].completions == 0
        assert {(ticket.completions, ticket.failure()) for ticket in others[1:]} == {(1, DeviceLost)}
        for ticket, first in ((cancelled, [1]), (single, range(60))):
            with pytest.raises(DeviceLost) as refused:
                joined.submit(*first, ticket=ticket)
            assert refused.value.retry_after_s == 1
            assert ticket.completions == 0


def test_an_idle_exchange_notices_that_the_device_is_gone() -> None:
    """EOF is seen without a request; the owner hears of it once."""
    with Joined() as joined:
        joined.kill_device()
        joined.turn_frontends()
        joined.exchange.close()
        joined.turn_frontends()
        assert (joined.lost, joined.exchange.lost) == ([0], True)


@pytest.mark.parametrize("rows", [1, 3, 60])
def test_a_request_to_a_device_that_has_just_died_is_lost_not_stuck(rows: int) -> None:
    """Between the death of the device and the EOF a request is taken and then completed with DeviceLost."""
    with Joined() as joined:
        joined.kill_device()
        ticket = joined.submit(*range(rows))
        joined.turn_frontends()
        assert (ticket.completions, ticket.failure(), joined.lost) == (1, DeviceLost, [0])


def test_answers_that_were_sent_before_the_device_died_still_count() -> None:
    """The frontend reads the doorbell's bytes before its EOF."""
    with Joined() as joined:
        done = joined.submit(1)
        joined.turn_frontends()
        joined.turn_device()
        open_ = joined.submit(2)
        joined.kill_device()
        joined.turn_frontends()
        joined.turn_frontends()
        assert answer_of(done) == doubled(1)
        assert open_.failure() is DeviceLost


def test_closing_completes_requests_in_flight() -> None:
    """Their callers get `DeviceLost`; the exchange's owner gets no call, since it closed it."""
    with Joined() as joined:
        tickets = [joined.submit(1), joined.submit(2, 3), joined.submit(*range(40))]
        joined.exchange.close()
        joined.exchange.close()
        assert {(ticket.completions, ticket.failure()) for ticket in tickets} == {(1, DeviceLost)}
        assert joined.lost == []


def boom() -> None:
    """A completion that raises."""
    raise RuntimeError("a fault of ours")


@pytest.mark.parametrize("fate", ["answer", "deadline", "device"])
def test_a_completion_that_raises_harms_no_other_request(fate: str, caplog: pytest.LogCaptureFixture) -> None:
    """A fault in one completion is logged; every other request completes, and the rows come back."""
    with Joined() as joined:
        tickets = [
            joined.submit(
                number, ticket=PuppetTicket(joined.clock() + 5_000_000, then=boom if number < 2 else int)
            )
            for number in range(4)
        ]
        match fate:
            case "deadline":
                joined.clock.advance_ms(5)
                joined.sweep()
            case "device":
                joined.kill_device()
        joined.settle()
        assert [ticket.completions for ticket in tickets] == [1, 1, 1, 1]
        assert caplog.text.count("RuntimeError: a fault of ours") == 2
        if fate == "device":
            assert joined.lost == [0]
        else:
            assert joined.exchange.leased_rows == 0


@pytest.mark.parametrize("number", [-16, -1, 16, 1 << 20])
def test_an_unknown_row_number_is_logged_and_ignored(number: int, caplog: pytest.LogCaptureFixture) -> None:
    """A number that the arena does not have completes nobody, and does not swallow those behind it."""
    with Joined(capacity=16) as joined:
        ticket = joined.submit(1)
        joined.turn_frontends()
        (lane,) = joined.lanes
        lane.doorbell.send(np.array([number], np.int32).tobytes())
        joined.turn_device()
        joined.turn_frontends()
        assert answer_of(ticket) == doubled(1)
        assert f"row {number}, which nobody had queued" in caplog.text


def test_a_row_that_is_handed_back_twice_is_logged_and_ignored(caplog: pytest.LogCaptureFixture) -> None:
    """The second time nobody has queued it."""
    with Joined() as joined:
        joined.submit(1)
        joined.turn_frontends()
        joined.turn_device()
        (lane,) = joined.lanes
        lane.send(np.array([0], np.int32))
        joined.settle()
        assert joined.exchange.leased_rows == 0
        assert "row 0, which nobody had queued" in caplog.text


def test_a_full_doorbell_to_the_device_loses_nothing() -> None:
    """Numbers that the doorbell did not take wait in the frontend until it is writable."""
    with Joined(capacity=1024, doorbell_bytes=SMALL_DOORBELL_BYTES) as joined:
        tickets = []
        for number in range(600):
            tickets.append(joined.submit(number))
            joined.turn_frontends()
        assert len(joined.exchange.doorbell.unsent) > 0
        joined.settle()
        assert [answer_of(ticket) for ticket in tickets] == [doubled(number) for number in range(600)]
        assert joined.exchange.leased_rows == 0
        watched = joined.loop.remove_writer(joined.exchange.doorbell.socket.fileno())
        assert not watched, "a loop that watches a writable doorbell never sleeps"


def test_a_full_doorbell_to_the_frontend_loses_nothing() -> None:
    """A frontend that does not read stops neither the device nor its answers to other frontends."""
    with Joined(
        capacity=1024, policy=BatchPolicy(1), doorbell_bytes=SMALL_DOORBELL_BYTES, frontends=2
    ) as joined:
        tickets = [joined.submit(number, frontend=number % 2) for number in range(600)]
        joined.turn_frontends()
        for _ in range(600):
            joined.turn_device()
        assert all(len(lane.unsent) > 0 for lane in joined.lanes)
        joined.settle()
        assert [answer_of(ticket) for ticket in tickets] == [doubled(number) for number in range(600)]
        assert [exchange.leased_rows for exchange in joined.exchanges] == [0, 0]


def test_a_doorbell_that_is_full_when_the_device_dies_is_no_trouble() -> None:
    """Row numbers that never went out belong to requests that get `DeviceLost`."""
    with Joined(capacity=4096, doorbell_bytes=SMALL_DOORBELL_BYTES) as joined:
        tickets = []
        while not joined.exchange.doorbell.unsent:
            tickets.append(joined.submit(len(tickets)))
            joined.turn_frontends()
        joined.kill_device()
        joined.turn_frontends()
        assert {(ticket.completions, ticket.failure()) for ticket in tickets} == {(1, DeviceLost)}


def test_row_numbers_may_arrive_in_pieces() -> None:
    """A stream cuts where it likes: the bytes of a number that has not arrived whole are kept."""
    with Joined() as joined:
        tickets = [joined.submit(number) for number in range(3)]
        joined.turn_frontends()
        (lane,) = joined.lanes
        sent = lane.doorbell
        joined.turn_device()
        whole = joined.exchange.doorbell.socket.recv(100)
        assert len(whole) == 12
        for piece in (whole[:1], whole[1:6], whole[6:8], whole[8:]):
            sent.send(piece)
            joined.turn_frontends()
        assert [answer_of(ticket) for ticket in tickets] == [doubled(number) for number in range(3)]


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize("rows", [1, 3, 40])
def test_a_device_that_dies_leaves_no_arena_mapped(rows: int) -> None:
    """Its requests know their exchange; a frontend rarely collects garbage, so they must not be in a circle."""
    with Joined() as joined:
        ticket = joined.submit(*range(rows))
        arena = weakref.ref(joined.exchange.arena)
        joined.kill_device()
        joined.turn_frontends()
        assert ticket.failure() is DeviceLost
        joined.exchanges.clear()
        del ticket
        assert arena() is None
