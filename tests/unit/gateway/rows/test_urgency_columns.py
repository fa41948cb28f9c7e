"""The urgency of rows, from a frontend's tickets to the order in which a device runs them."""

from tests.puppets import FAR_NS, Joined, PuppetTicket

from stoker.device.batch_decisions import BatchPolicy
from stoker.gateway.rows.urgency import Urgency
from stoker.keys.callers import CallerTerms

ADS = CallerTerms("ads", 5, weight=3.0)


class _Urgent(PuppetTicket):
    def __init__(self, urgency: Urgency | None = None) -> None:
        super().__init__(FAR_NS)
        self.urgency = urgency


def test_urgency_columns_without_urgent_requests_are_not_written() -> None:
    """The columns stay as they were made, and the device does not look at them."""
    with Joined() as joined:
        joined.submit(1)
        joined.submit(2, 3)
        joined.settle()
        assert not joined.exchange.arena.queued[:, 3:].any()
        assert not joined.exchange.arena.has_urgencies[0]
        assert joined.worker.queue.shares is None


def test_urgency_is_written_for_all_rows_after_the_first_urgent_request() -> None:
    """Rows before and after it are of the normal tier and of no caller."""
    with Joined(capacity=16) as joined:
        joined.submit(1)
        joined.submit(2, 3, ticket=_Urgent(Urgency(0, ADS)))
        joined.submit(4)
        columns = joined.exchange.arena.queued[:4, 3:].tolist()
        usual = 1 << 16
        high = 3000 << 32 | 0 << 16 | 5
        assert columns == [[0, 1, usual], [0, 2, high], [0, 2, high], [0, 1, usual]]
        joined.settle()
        assert joined.worker.cap.policy.weights == {0: 1.0, 5: 3.0}


def test_high_rows_run_first() -> None:
    """If more rows wait than fit in a batch, rows of the highest tier leave first, regardless of arrival."""
    with Joined(capacity=16, policy=BatchPolicy(2)) as joined:
        for number, tier in enumerate((2, 2, 1, 0, 2, 0)):
            joined.submit(number, ticket=_Urgent(Urgency(tier)))
        joined.settle()
        assert joined.runtime.rows_run == [3, 5, 0, 2, 1, 4]


def test_slices_of_a_large_request_are_as_urgent_as_it_is() -> None:
    """Each slice has the tier and the caller of its request."""
    with Joined(capacity=16) as joined:
        joined.submit(*range(40), ticket=_Urgent(Urgency(2, ADS)))
        joined.turn_frontends()
        assert {placed & 0xFFFFFFFF for placed in joined.exchange.arena.placed[:4].tolist()} == {2 << 16 | 5}
        joined.settle()
