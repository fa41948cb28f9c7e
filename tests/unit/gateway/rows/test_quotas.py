"""Limits of callers and of models, over all frontends of a server."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.puppets import STEADY, HandClock, Joined, PuppetTicket, metric_memory

from stoker.device.row_blocks import RowBlock
from stoker.device.row_queue import callers_of
from stoker.errors import InvalidInput, QuotaExceeded, RequestOverQuota
from stoker.gateway.rows.cache import AnswerCache
from stoker.gateway.rows.urgency import DEFAULT_URGENCY, REFRESH_NS, Quota, Quotas
from stoker.keys.callers import MOST_CALLERS, CallerBook, CallerTerms, KnownCallers
from stoker.keys.keyring import Keyring
from stoker.metrics.layout import CALLERS, FIRST_DEVICE_PAGE
from stoker.settings.model_limits import ModelLimit

MS = 1_000_000
SWEEP_NS = 25 * MS
"""How often a frontend looks whether it is time to look."""
BRIEF = settings(STEADY, max_examples=40)
ADS = CallerTerms("ads", 5, rows_per_s=100.0)


class Frontends:
    """Some frontends' knowledge of callers, with one clock and one memory of counters."""

    def __init__(self, count: int = 1, keys_dir: Path = Path("no-keys")) -> None:
        self.clock = HandClock()
        self.memory = metric_memory()
        self.device = self.memory.page(FIRST_DEVICE_PAGE).callers
        self.quotas = [
            Quotas(
                self.memory.caller_usage(),
                self.memory.page(page).callers,
                KnownCallers(keys_dir),
                several=count > 1,
                clock_ns=self.clock,
            )
            for page in range(count)
        ]

    def of(self, terms: CallerTerms = ADS, frontend: int = 0) -> Quota:
        """The quota of a caller in a frontend."""
        quota = self.quotas[frontend].of(terms)
        assert quota is not None
        return quota

    def advance_ns(self, elapsed_ns: int) -> None:
        """Let time pass, in which all frontends look at their buckets as they should."""
        until_ns = self.clock.now_ns + elapsed_ns
        while self.clock.now_ns < until_ns:
            self.clock.now_ns = min(until_ns, self.clock.now_ns + SWEEP_NS)
            for quotas in self.quotas:
                quotas.refresh()

    def granted(self, frontend: int, rows: int, terms: CallerTerms = ADS) -> bool:
        """Whether a request is let in."""
        try:
            claim(self.of(terms, frontend), rows)
        except QuotaExceeded:
            return False
        return True


def claim(quota: Quota, rows: int) -> None:
    """Draw the rows of a request, if all of them may be drawn."""
    quota.check_rows(rows)
    quota.draw(rows)


def refusal_ms(quota: Quota, rows: int) -> int:
    """In how long a refused request may come back."""
    with pytest.raises(QuotaExceeded) as caught:
        claim(quota, rows)
    assert caught.value.retry_after_ms is not None
    return caught.value.retry_after_ms


def test_a_caller_has_their_rows_and_then_waits() -> None:
    """It is the time until the bucket has the requested rows."""
    frontends = Frontends()
    quota = frontends.of()
    claim(quota, 200)
    assert refusal_ms(quota, 1) == 10
    assert refusal_ms(quota, 50) == 500
    assert quota.lines(429) == (
        b'ratelimit-policy: "rows";q=200;qu="rows";w=2\r\nratelimit: "rows";r=0;t=1\r\n'
    )
    frontends.advance_ns(500 * MS)
    claim(quota, 8)
    assert quota.lines(200).endswith(b'ratelimit: "rows";r=42;t=2\r\n')
    assert quota.lines(503) == b""


def test_a_key_that_is_new_has_one_burst_over_all_frontends() -> None:
    """Also where one of them has let rows in before another one has heard of the key."""
    frontends = Frontends(2)
    frontends.advance_ns(10 * REFRESH_NS)
    assert frontends.granted(0, 150)
    frontends.clock.now_ns += SWEEP_NS
    assert not frontends.granted(1, 60)
    assert frontends.granted(1, 50)


def test_reused_caller_number_begins_with_a_full_bucket() -> None:
    """The usage of the removed caller with this number does not count."""
    frontends = Frontends(2)
    claim(frontends.of(), 200)
    frontends.advance_ns(2 * REFRESH_NS)
    assert frontends.granted(1, 200, CallerTerms("other", 5, rows_per_s=100.0))


def test_name_that_is_used_again_has_a_quota_of_its_own() -> None:
    """This holds before a frontend has read the keys again, too: the former caller's usage counts for nobody."""
    server = Frontends()
    former, later = (CallerTerms("ads", 5, name, rows_per_s=100.0) for name in ("0a", "0b"))
    assert server.of(later) is not server.of(former)
    assert server.of(former) is server.of(former)


def test_more_rows_than_the_bucket_holds_are_never_taken() -> None:
    """Waiting does not help, so the error has no time, but the number of rows that may be sent."""
    with pytest.raises(RequestOverQuota, match=r"has 201 rows.*at most 200 at once, 100 a second") as caught:
        claim(Frontends().of(), 201)
    assert (caught.value.status, caught.value.retry_after_ms) == (413, None)


def test_device_time_is_charged_when_it_was_spent() -> None:
    """Any process may charge it, so it may fall below zero; of two limits the later retry time counts."""
    frontends = Frontends()
    quota = frontends.of(CallerTerms("ads", 5, rows_per_s=100.0, device_ms_per_s=50.0, burst_s=2.0))
    claim(quota, 1)
    frontends.device.count_times(400 * MS, {5: 3, 0: 1})
    assert refusal_ms(quota, 1) == 4000
    assert b'"device-ms";r=0;t=4' in quota.lines(429)
    assert b'"device-ms";q=100;qu="device-ms";w=2' in quota.lines(429)
    frontends.advance_ns(4000 * MS)
    claim(quota, 1)


def test_a_long_body_is_not_read_where_nothing_may_be_sent() -> None:
    """Its rows are not known, so it may come back when any number is taken."""
    frontends = Frontends()
    quota = frontends.of()
    quota.check()
    claim(quota, 200)
    with pytest.raises(QuotaExceeded) as caught:
        quota.check()
    assert caught.value.retry_after_ms == 2000
    frontends.advance_ns(10 * MS)
    quota.check()


def test_caller_without_a_limit_has_no_quota() -> None:
    """A caller without limits costs no look at a quota."""
    assert Frontends().quotas[0].of(CallerTerms("free", 3)) is None


def test_models_share_a_limit_over_all_callers() -> None:
    """It holds over all frontends; its refusals do not count against the caller's limit, nor the reverse."""
    frontends, limit = Frontends(2), ModelLimit("customer-*", 0, rows_per_s=100.0)
    first, second = PuppetTicket(), PuppetTicket()
    first.urgency = second.urgency = DEFAULT_URGENCY._replace(
        quota=frontends.of(), shared=frontends.quotas[0].of_models(limit)
    )
    other = frontends.quotas[1].of_models(limit)
    assert frontends.quotas[1].of_models(ModelLimit("customer-*", 0)) is other
    first.claim(150)
    claim(other, 50)
    with pytest.raises(QuotaExceeded, match=r"limit of the models customer-\* is reached, 100 rows a second"):
        second.claim(1)
    claim(frontends.of(), 50)
    frontends.advance_ns(100 * MS)
    with pytest.raises(QuotaExceeded, match="limit of this caller"):
        second.claim(11)
    with pytest.raises(RequestOverQuota, match=r"201 rows, and the models customer-\* may have at most 200"):
        claim(other, 201)


def test_models_share_device_time() -> None:
    """All that their batches took, beside what counts for callers."""
    frontends, limit = Frontends(), ModelLimit("customer-*", 3, device_ms_per_s=50.0)
    quota = frontends.quotas[0].of_models(limit)
    metrics = frontends.memory.page(FIRST_DEVICE_PAGE).model(0)
    metrics.count_busy(400 * MS, {0: 1})
    claim(quota, 1000)
    metrics.limit = CALLERS + limit.number
    metrics.count_busy(300 * MS, {0: 1, 5: 2})
    assert refusal_ms(quota, 1) == 4000
    frontends.advance_ns(4000 * MS)
    claim(quota, 1)
    usage = frontends.memory.caller_usage()
    assert (usage.device_ns(0), usage.device_ns(5)) == (500 * MS, 200 * MS)


def test_limits_change_while_callers_ask() -> None:
    """Used rows stay used; without a limit all requests pass, and another limit begins anew."""
    frontends = Frontends()
    claim(frontends.of(), 200)
    raised = CallerTerms("ads", 5, rows_per_s=1000.0)
    assert refusal_ms(frontends.of(raised), 100) == 100
    other = CallerTerms("ads", 5, device_ms_per_s=10.0)
    claim(frontends.of(other), 100_000)
    assert b"rows" not in frontends.of(other).lines(200)
    # Somebody else of the same name.
    claim(frontends.of(CallerTerms("ads", 6, rows_per_s=100.0)), 200)


def test_frontends_know_of_limits_before_the_first_request(tmp_path: Path) -> None:
    """They follow named keys, so a frontend knows of usage at another one without a request of its own."""
    keyring = Keyring(tmp_path / "keys", "mnist")
    frontends = Frontends(2, keyring.keys_dir)
    for quotas in frontends.quotas:
        quotas.refresh()
    keyring.ensure()
    book = CallerBook(keyring.keys_dir)
    book.add("ads", terms={"rows_per_s": 100.0})
    (terms,) = book.callers()
    for quotas in frontends.quotas:
        quotas.refresh()
    assert frontends.quotas[0].names == {0: "default", 1: "ads"}
    claim(frontends.of(terms), 200)
    assert not frontends.granted(1, 1, terms)
    book.remove("ads")
    for quotas in frontends.quotas:
        quotas.refresh()
    assert frontends.quotas[1].names == {0: "default"}


@BRIEF
@given(
    count=st.integers(1, 3),
    requests=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 400 * MS), st.integers(1, 150)), min_size=1, max_size=40
    ),
)
def test_all_frontends_together_keep_to_the_rate(count: int, requests: list[tuple[int, int, int]]) -> None:
    """From the beginning it is rate x time + burst at most; over any time what flows in between two looks more."""
    frontends = Frontends(count)
    for frontend in range(count):
        frontends.of(frontend=frontend)
    began_ns = frontends.clock.now_ns
    granted: list[tuple[int, int]] = []
    for frontend, pause_ns, rows in requests:
        frontends.advance_ns(pause_ns)
        if frontends.granted(frontend % count, rows):
            granted.append((frontends.clock.now_ns, rows))
    sent = sum(rows for _, rows in granted)
    assert sent <= 200 + 100 * (frontends.clock.now_ns - began_ns) / 1e9 + 1e-3
    for first in range(len(granted)):
        for last in range(first, len(granted)):
            spent_ns = granted[last][0] - granted[first][0] + REFRESH_NS + SWEEP_NS
            assert sum(rows for _, rows in granted[first : last + 1]) <= 200 + 100 * spent_ns / 1e9 + 1e-3


@BRIEF
@given(
    history=st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 300 * MS), st.integers(1, 150)), max_size=20
    ),
    rows=st.integers(1, 200),
    back_at=st.integers(0, 1),
)
def test_caller_that_retries_as_advised_is_within_its_quota(
    history: list[tuple[int, int, int]], rows: int, back_at: int
) -> None:
    """A caller that comes back after the advised time is admitted by every frontend."""
    frontends = Frontends(2)
    for frontend in range(2):
        frontends.of(frontend=frontend)
    for frontend, pause_ns, sent in history:
        frontends.advance_ns(pause_ns)
        frontends.granted(frontend, sent)
    try:
        claim(frontends.of(), rows)
    except QuotaExceeded as error:
        wait_ms = error.retry_after_ms or 0
        frontends.advance_ns(wait_ms * MS)
        taken = frontends.granted(back_at, rows)
    else:
        taken = True
    assert taken


def test_a_lone_busy_frontend_has_the_whole_rate() -> None:
    """Nothing is kept for frontends that nobody asks."""
    frontends = Frontends(3)
    for frontend in range(3):
        frontends.of(frontend=frontend)
    sent = 0
    for _ in range(800):
        frontends.advance_ns(5 * MS)
        sent += frontends.granted(0, 1)
    assert 599 <= sent <= 200 + 100 * 4


def test_rows_count_when_they_are_queued() -> None:
    """Requests refused for their contents do not count, and slices do not count twice."""
    frontends = Frontends()
    quota = frontends.of()
    with Joined(capacity=16) as joined:
        for rows in (1, 3, 12):
            ticket = joined.submit(*map(float, range(rows)), ticket=_limited(quota))
            joined.settle()
            assert ticket.answer is not None
        assert frontends.memory.caller_usage().rows(5) == 16
        for rows in (1, 3):
            with np.errstate(over="raise"), pytest.raises(InvalidInput):
                joined.submit(*[1e300] * rows, ticket=_limited(quota))
        assert frontends.memory.caller_usage().rows(5) == 16
        claim(quota, 184)
        free = joined.exchange.free_rows
        for rows in (1, 3, 12):
            with pytest.raises(QuotaExceeded):
                joined.submit(*map(float, range(rows)), ticket=_limited(quota))
        assert joined.exchange.free_rows == free
        assert joined.exchange.idle


@pytest.mark.parametrize("rows", [1, 3])
def test_kept_answers_cost_no_rows(rows: int) -> None:
    """A caller at its limit gets kept answers and is refused new ones; a refusal leaves no rows behind."""
    frontends = Frontends()
    quota = frontends.of()
    values = [float(number) for number in range(rows)]
    with Joined(cache=AnswerCache(1 << 20, lambda size_bytes, evicted: None)) as joined:
        joined.submit(*values, ticket=_limited(quota))
        joined.settle()
        claim(quota, 200 - rows)
        for _ in range(3):
            assert joined.submit(*values, ticket=_limited(quota)).completions == 1
        assert frontends.memory.caller_usage().rows(5) == 200
        with pytest.raises(QuotaExceeded):
            joined.submit(*values, 7.0, ticket=_limited(quota))
        assert not joined.exchange.pending_keys
        assert joined.exchange.idle
        assert len(joined.runtime.rows_run) == rows


def _limited(quota: Quota) -> PuppetTicket:
    ticket = PuppetTicket()
    ticket.urgency = DEFAULT_URGENCY._replace(caller=ADS, quota=quota)
    return ticket


def test_batches_are_charged_to_the_callers_of_their_rows() -> None:
    """Each pays for its share of the rows; rows without a caller are the default caller's."""
    numbers = np.arange(3, dtype=np.int32)
    words = np.zeros(3, np.int64)
    placed = RowBlock(
        0, numbers, words, words, words, 0, placed=np.array([1 << 16 | 7, 2 << 16 | 7, 1 << 16])
    )
    unplaced = RowBlock(1, numbers, words, words, words, 0)
    assert callers_of([placed, unplaced]) == {7: 2, 0: 4}
    frontends = Frontends()
    frontends.device.count_times(600, callers_of([placed, unplaced]))
    usage = frontends.memory.caller_usage()
    assert (usage.device_ns(7), usage.device_ns(0), usage.device_ns(5)) == (200, 400, 0)
    assert CALLERS == MOST_CALLERS
