"""Admission: requests refused before they wait, and their retry time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.arena import Board
from stoker.device.batch_decisions import BatchPolicy
from stoker.device.queue_report import classes_on_board, tiers_on_board
from stoker.errors import Refusal
from stoker.gateway.rows.admission import check_deadline, check_target, retry_after_ms
from stoker.keys.callers import DEFAULT, CallerTerms

MS = 1_000_000
NOW = 10**12


def board(
    *, cap: int = 64, batch_ms: float = 1.7, row_ms: float = 0.25, free_ms: float = 0.0, **more: Any
) -> Board:
    """The board of a device, by default an idle one."""
    made = Board()
    made.cap = cap
    sizes = [min(1 << place, cap) for place in range((cap - 1).bit_length() + 1)]
    made.costs_ns = [round((batch_ms + row_ms * rows) * MS) for rows in sizes]
    made.written_ns, made.free_ns = NOW, NOW + round(free_ms * MS)
    for name, value in more.items():
        setattr(made, name, value)
    return made


def ask(
    known: Board,
    rows: int = 1,
    *,
    target_ms: float = 50,
    tier: int = 1,
    caller: CallerTerms = DEFAULT,
    chance: Callable[[], float] = lambda: 0.0,
) -> Refusal | None:
    return check_target(NOW, rows, caller, tier, NOW + round(target_ms * MS), known, chance)


def test_late_request_is_refused_with_the_expected_wait() -> None:
    """A request that would miss its target learns the expected time, the rows ahead and when to retry."""
    refused = ask(board(free_ms=10, waiting=[0, 256, 0]))
    # 10 ms, four full batches, and one row.
    expected_ms = 10 + 4 * 17.7 + 1.95
    assert refused is not None
    assert (refused.status, refused.code, refused.reason) == (503, "overloaded", "target")
    assert refused.expected_ns == round(expected_ms * MS)
    assert refused.rows_ahead == 256
    assert refused.retry_after_ms == math.ceil(expected_ms - 50)
    assert refused.explained == "reason=target, expected-ms=83, target-ms=50, rows-ahead=256"


def test_a_quarter_more_than_the_target_is_taken() -> None:
    """The freshest rows fill the batches that are in time, so admission has to be lax."""
    known = board(waiting=[0, 192, 0])
    assert known.batch_ns(193) == round((3 * 17.7 + 1.95) * MS)
    assert ask(known) is None
    assert ask(known, target_ms=44.1) is None
    assert ask(known, target_ms=43.9) is not None


def test_request_that_fits_the_last_timely_batch_is_admitted() -> None:
    """Room in a later timely batch admits a request with any rows ahead, unless there are two tiers."""
    crowd: dict[str, Any] = {"free_ms": 10, "waiting": [0, 256, 0]}
    # Two full batches end within 50 ms of which 10 are spent.
    later = [250, 60, 0, 0, 0, 0, 0, 0]
    assert ask(board(**crowd)) is not None
    assert ask(board(**crowd, later=later), 4) is None
    assert ask(board(**crowd, later=later), 5) is not None
    assert ask(board(**crowd, later=later), target_ms=45) is not None
    assert ask(board(**crowd, later=later, other_ns=5 * MS)) is not None
    assert ask(board(**crowd | {"waiting": [0, 256, 1]}, later=later)) is not None


def test_request_to_an_idle_device_is_admitted() -> None:
    """An idle device, or one with unknown times, admits requests however long they take."""
    assert ask(board(), 1000, target_ms=1) is None
    assert ask(board(free_ms=100), 1, target_ms=1) is not None
    assert ask(Board(), 1000, target_ms=1) is None


def test_lower_tiers_do_not_delay_higher_ones() -> None:
    """A flood of a lower tier makes no request of a higher one late; it is itself refused."""
    known = board(waiting=[0, 0, 10_000])
    assert ask(known, tier=1) is None
    assert ask(known, tier=2) is not None


def test_flood_of_one_caller_does_not_delay_others() -> None:
    """Rows are served in turns by weight, so a caller without waiting rows is served soon."""
    flood, other = CallerTerms("flood", 1), CallerTerms("other", 2)
    known = board(waiting=[0, 1000, 0])
    known.set_classes({1 << 16 | 1: [990, 1.0], 1 << 16 | 2: [10, 1.0]})
    assert ask(known, caller=other) is None
    assert ask(known, caller=flood) is not None
    # One who is not known yet counts too.
    assert ask(known, caller=CallerTerms("third", 3)) is None


@pytest.mark.parametrize("flood", [DEFAULT, CallerTerms("flood", 1)])
def test_flood_waiting_alone_does_not_delay_another_caller(flood: CallerTerms) -> None:
    """Rows that wait for one caller only count for that caller; another is admitted beside them."""
    waiting, other = {1 << 16 | flood.number: 1000}, CallerTerms("other", 2)
    known = board(waiting=tiers_on_board(waiting))
    known.set_classes({of: [*found] for of, found in classes_on_board(waiting, BatchPolicy()).items()})
    for _ in range(3):
        assert ask(known, caller=other) is None
        known.take(1, 1, other.number, other.weight)
        known.take(10, 1, flood.number, flood.weight)
        assert ask(known, caller=flood) is not None
    assert {of & 0xFFFF: rows for of, (rows, _) in known.classes.items()} == {flood.number: 1030, 2: 3}


def test_deadline_shorter_than_one_row_is_refused() -> None:
    """The answer is 504 before the body is read; after a second without batches, one request may try."""
    known = board()
    refused = check_deadline(NOW, NOW + MS, known, lambda: 0.0)
    assert refused is not None
    assert (refused.status, refused.code, refused.reason) == (504, "deadline_exceeded", "deadline")
    assert refused.retry_after_ms == 1
    assert check_deadline(NOW, NOW + 2 * MS, known) is None
    assert check_deadline(NOW + 2000 * MS, NOW + 2001 * MS, known) is None
    assert check_deadline(NOW, NOW, Board()) is None


def test_when_to_come_back_leaves_room_for_others() -> None:
    """The time is longer the more others ask for, at most tenfold, and up to a quarter longer by chance."""
    known = board()
    assert retry_after_ms(40 * MS, known, lambda: 0.0) == 40
    assert retry_after_ms(40 * MS, known, lambda: 1.0) == 50
    known.load = 0.5
    assert retry_after_ms(40 * MS, known, lambda: 0.0) == 80
    known.load = 3.0
    assert retry_after_ms(40 * MS, known, lambda: 0.0) == 400
    known.crowding = 2.0
    assert retry_after_ms(40 * MS, known, lambda: 0.0) == 800
    assert retry_after_ms(4000 * MS, known, lambda: 0.0) == 60_000
    assert retry_after_ms(0, known, lambda: 0.0) == 1


callers = st.builds(
    lambda number, weight: CallerTerms(str(number), number, weight=weight),
    st.integers(0, 4),
    st.sampled_from([0.25, 1.0, 3.0]),
)


@st.composite
def boards(draw: st.DrawFn) -> Board:
    """Any state of a device, with callers told apart or not."""
    known = board(
        cap=draw(st.integers(1, 100)),
        batch_ms=draw(st.floats(0, 20)),
        row_ms=draw(st.floats(0, 2)),
        free_ms=draw(st.floats(-5, 60)),
        parallel=draw(st.integers(1, 3)),
        other_ns=draw(st.sampled_from([0, 5 * MS])),
        load=draw(st.floats(0, 5)),
    )
    if draw(st.booleans()):
        for tier in range(3):
            for caller in range(draw(st.integers(0, 4))):
                known.take(draw(st.integers(1, 200)), tier, caller, draw(st.sampled_from([0.5, 1.0, 2.0])))
    else:
        known.waiting = draw(st.lists(st.integers(0, 600), min_size=3, max_size=3))
        if draw(st.booleans()):
            rows = sum(known.waiting)
            known.later = sorted(draw(st.lists(st.integers(0, rows), min_size=8, max_size=8)), reverse=True)
    return known


@settings(max_examples=100, deadline=None)
@given(
    known=boards(),
    rows=st.integers(2, 300),
    tier=st.integers(1, 2),
    caller=callers,
    target_ms=st.floats(0, 200),
    more_ms=st.floats(0, 200),
    fewer=st.integers(1, 299),
)
def test_easier_request_is_never_refused_where_a_harder_one_is_admitted(
    known: Board,
    rows: int,
    tier: int,
    caller: CallerTerms,
    target_ms: float,
    more_ms: float,
    fewer: int,
) -> None:
    """A later target, fewer rows, a higher tier or a greater weight never gets a request refused."""
    request: dict[str, Any] = {"target_ms": target_ms, "tier": tier, "caller": caller}
    if ask(known, rows, **request) is not None:
        return
    heavier = CallerTerms(caller.name, caller.number, weight=caller.weight * 2)
    assert ask(known, rows, **request | {"target_ms": target_ms + more_ms}) is None
    assert ask(known, max(1, rows - fewer), **request) is None
    assert ask(known, rows, **request | {"tier": tier - 1}) is None
    assert ask(known, rows, **request | {"caller": heavier}) is None


@settings(max_examples=100, deadline=None)
@given(
    known=boards(), sizes=st.lists(st.integers(1, 90), min_size=1, max_size=60), target_ms=st.floats(1, 200)
)
def test_admitted_rows_exceed_the_target_by_at_most_a_quarter(
    known: Board, sizes: list[int], target_ms: float
) -> None:
    """Only a request that finds an idle device may exceed it further."""
    known.waiting, known.later = [0, 0, 0], [0] * len(known.later)
    known.set_classes({})
    taken = 0
    for rows in sizes:
        found_nobody = not taken and known.free_ns <= NOW
        if ask(known, rows, target_ms=target_ms) is None:
            known.take(rows, 1, 0, 1.0, NOW + round(target_ms * MS))
            taken += rows
            free_ns = max(0, known.free_ns - NOW)
            assert found_nobody or free_ns + known.batch_ns(taken) <= 1.25 * target_ms * MS + 2


@settings(max_examples=50, deadline=None)
@given(
    curve=st.tuples(st.integers(1, 64), st.floats(0, 20), st.floats(0.01, 2)),
    other=st.tuples(st.integers(1, 64), st.floats(0, 20), st.floats(0.01, 2)),
    flood=st.integers(0, 10_000),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=10),
)
def test_a_model_that_fits_is_not_refused_for_one_that_does_not(
    curve: tuple[int, float, float], other: tuple[int, float, float], flood: int, sizes: list[int]
) -> None:
    """Of another model only the batch that runs and the one that it offers are in the way, however many rows wait."""
    cap, batch_ms, row_ms = other
    crowded = board(cap=cap, batch_ms=batch_ms, row_ms=row_ms, waiting=[0, flood, 0])
    longest_ns = crowded.batch_ns(min(flood, cap))
    cap, batch_ms, row_ms = curve
    fits = board(cap=cap, batch_ms=batch_ms, row_ms=row_ms, free_ms=longest_ns / MS, other_ns=longest_ns)
    target_ms = (2 * longest_ns + fits.batch_ns(sum(sizes))) / MS + 1e-3
    for rows in sizes:
        assert ask(fits, rows, target_ms=target_ms) is None
        fits.take(rows, 1, 0, 1.0)


@settings(max_examples=100, deadline=None)
@given(known=boards(), rows=st.integers(1, 300), tier=st.integers(0, 2), target_ms=st.floats(1, 200))
def test_request_that_retries_as_advised_is_admitted(
    known: Board, rows: int, tier: int, target_ms: float
) -> None:
    """A request that comes back after the advised time is admitted if nobody else came meanwhile."""
    refused = ask(known, rows, tier=tier, target_ms=target_ms)
    if refused is None:
        return
    later_ns = NOW + refused.retry_after_ms * MS
    after = board(cap=known.cap)
    after.costs_ns, after.parallel = known.costs_ns, known.parallel
    # The worst that may be: all who were ahead are in batches that have left.
    after.free_ns = max(NOW, known.free_ns) + known.other_ns + known.batch_ns(refused.rows_ahead)
    assert check_target(later_ns, rows, DEFAULT, 1, later_ns + round(target_ms * MS), after) is None
