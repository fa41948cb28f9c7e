"""The schedule of audits: batches to audit are chosen by counting them and by an account of time."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.puppets import STEADY

from stoker.device.auditing import AuditSchedule

MS = 1_000_000


def audits(schedule: AuditSchedule, batches: int, batch_ns: int, audit_ns: int) -> list[int]:
    """After which of so many batches an audit is made, if nobody ever waits."""
    made = []
    for number in range(batches):
        if schedule.count(batch_ns) and schedule.begin(batch_ns):
            schedule.end(audit_ns)
            made.append(number)
    return made


@pytest.mark.parametrize("rate", [1.0, 0.5, 0.01])
def test_one_batch_in_so_many_is_audited(rate: float) -> None:
    """Over many batches as often as the rate says, at intervals that differ, and the same each time."""
    made, again = (
        audits(AuditSchedule(rate, share=None, first_after_ns=0), 20_000, MS, MS) for _ in range(2)
    )
    assert made == again
    assert 0.8 * rate <= len(made) / 20_000 <= 1.2 * rate
    gaps = {after - before for before, after in pairwise(made)}
    assert len(gaps) > 1 or rate == 1


@settings(STEADY, max_examples=60)
@given(st.floats(1e-4, 1), st.integers(1, 200 * MS), st.integers(0, 3))
def test_audits_take_a_thousandth_of_the_time_at_most(rate: float, batch_ns: int, cost: int) -> None:
    """Holds for any rate and any time of a batch: a slow model is audited more seldom."""
    batches = 5000
    schedule = AuditSchedule(rate)
    made = audits(schedule, batches, batch_ns, min(cost, 2) * batch_ns)
    assert len(made) * min(cost, 2) * batch_ns <= 0.001 * batches * batch_ns
    assert not made or (made[0] + 1) * batch_ns >= 10**9


def test_an_audit_that_took_longer_is_paid_back() -> None:
    """One that had to repeat its batch keeps the next ones waiting until the account is even."""
    schedule = AuditSchedule(1)
    first, second = audits(schedule, 60_000, MS, 30 * MS)[:2]
    assert first + 1 == 2000
    assert second + 1 == 32_000


def test_only_one_audit_is_under_way() -> None:
    """While one instance audits, no other one begins or keeps a row."""
    schedule = AuditSchedule(1, share=None, first_after_ns=0)
    assert schedule.count(MS)
    assert schedule.begin(MS)
    assert not schedule.count(MS)
    assert not schedule.begin(MS)
    schedule.end(MS)
    assert schedule.count(MS)


def test_a_postponed_audit_waits_for_sixteen_batches() -> None:
    """While rows wait, no row is copied in vain after each batch."""
    schedule = AuditSchedule(0.01, share=None, first_after_ns=0)
    while not schedule.count(MS):
        pass
    schedule.postpone()
    assert [schedule.count(MS) for _ in range(16)] == [False] * 15 + [True]


def test_the_smallest_rate_is_accepted() -> None:
    """A rate at which no batch is ever audited is no error."""
    assert not AuditSchedule(5e-324).count(MS)
