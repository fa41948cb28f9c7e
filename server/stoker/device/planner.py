"""Which rows leave the queue now, and when to look again. Sans-I/O: no threads, no clock, no sockets.

A `RowQueue` holds the rows that wait; `plan` looks at it and says what to do at `now_ns`. Contract:

- A row is in exactly one place: in the queue, in the returned batch, or in the returned expired rows.
- A batch never exceeds `max_batch_rows`. It counts rows, not requests.
- While all that waits fits in one batch, all of it leaves; unless batches are filled up to buckets, and a smaller
  full one computes more rows in a second. When more waits, rows leave in the order of their virtual start time
  (start-time fair queueing, Goyal et al. 1996): the queue's virtual time on arrival plus the row's position within
  its request. So a request of one row is served beside a request of a thousand, not behind it.
- When more waits than fits in one batch, rows whose batch would hardly end before their deadline are given up at
  once, for others that can still be answered in time. Else an overloaded device would always be at work on what is
  about to be too late.
- Where several callers wait, or rows of several tiers, they take turns: see `stoker.device.ranked`.
- `max_delay_ms` = 0 (the default) means no added delay: whatever waits leaves as soon as the device is free.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import numpy as np

from stoker.device.in_order import cut
from stoker.device.in_time import carry_out, decide, offered
from stoker.device.lots import Lot, placed_of
from stoker.device.plans import BatchPolicy, Offer, Plan
from stoker.device.ranked import NEVER_NS, Candidates, classes_of, pick, served_of
from stoker.device.row_queue import RowQueue
from stoker.device.service_times import ServiceTimes, filled, worthwhile
from stoker.device.shares import Shares
from stoker.placed import tier_of

__all__ = ["BatchPolicy", "Lot", "Offer", "Plan", "RowQueue", "ServiceTimes", "offer", "plan"]

_MARGIN: Final = 1.5
"""By how many times its mean a batch may take longer, where rows have only deadlines."""


def plan(
    queue: RowQueue, now_ns: int, policy: BatchPolicy, times: ServiceTimes, free_ns: int | None = None
) -> Plan:
    """Decide what leaves the queue at `now_ns`, and remove it from the queue.

    Args:
        queue: The rows that wait.
        now_ns: The time.
        policy: Settings of batching.
        times: What batches take.
        free_ns: When the device is expected to be free, if later than now.
    """
    if not queue.rows:
        return Plan([], [], "", None)
    if policy.target_ms is not None or queue.has_targets:
        free_ns = now_ns if free_ns is None else max(now_ns, free_ns)
        decision = decide(queue, now_ns, policy, times, free_ns)
        assert decision is not None, "rows wait"
        return carry_out(queue, decision, policy, times, free_ns)
    expired = _remove_expired(queue, now_ns)
    if queue.rows > policy.max_batch_rows:
        expired += _remove_hopeless(queue, now_ns, times.mean_ns(policy.max_batch_rows))
    if not queue.rows:
        return Plan([], expired, "", None)
    if queue.shares is None:
        return _leave_or_wait(queue, now_ns, policy, times, expired)
    return _in_turn(queue, queue.shares, now_ns, policy, times, expired)


def _leave_or_wait(
    queue: RowQueue, now_ns: int, policy: BatchPolicy, times: ServiceTimes, expired: list[Lot]
) -> Plan:
    if queue.rows >= policy.max_batch_rows:
        return Plan(_take_fairest(queue, policy.max_batch_rows), expired, "full", None)
    if not policy.max_delay_ms:
        return _leave(queue, policy, times, expired, "idle")
    return _wait_for_company(queue, now_ns, policy, times, expired)


def offer(
    queue: RowQueue, now_ns: int, policy: BatchPolicy, times: ServiceTimes, free_ns: int | None = None
) -> Offer | None:
    """What `plan` would take now, without taking it; None if no row would run or wait to.

    Even if it is None there may be rows to hand back, so `plan` must be called in this case too.
    """
    if policy.target_ms is not None or queue.has_targets:
        decision = decide(queue, now_ns, policy, times, now_ns if free_ns is None else max(now_ns, free_ns))
        return None if decision is None else offered(decision)
    tried = queue.tried()
    planned = plan(tried, now_ns, policy, times)
    rows = sum(lot.rows for lot in planned.batch)
    if not rows and planned.look_again_ns is None:
        return None
    lots = planned.batch or tried.lots
    cost_ns = times.expected_ns(filled(rows or tried.rows, policy.buckets))
    latest_ns = min(int(lot.deadline_ns.min()) for lot in lots) - cost_ns
    tier = 1 if queue.shares is None else tier_of(min(served_of(list(lots))))
    return Offer(rows, cost_ns, latest_ns, tier, False, planned.look_again_ns)


def _in_turn(
    queue: RowQueue,
    shares: Shares,
    now_ns: int,
    policy: BatchPolicy,
    times: ServiceTimes,
    expired: list[Lot],
) -> Plan:
    """What leaves where callers or tiers may have to take turns, and rows have no targets."""
    costs_ns = times.costs_ns(policy.max_batch_rows, policy.buckets)
    tags = _tags(queue.lots)
    placed = np.concatenate([placed_of(lot) for lot in queue.lots])
    # Rows of one class run in the order of their tags; a stable sort, so equal tags stay in order of arrival.
    order = np.argsort(tags, kind="stable")
    never = np.full(len(tags), NEVER_NS)
    rows = Candidates(order, placed[order], never)
    picked = pick(shares, rows, never, now_ns, now_ns, policy, times, costs_ns)
    if picked is None or len(picked) == queue.rows:
        planned = _leave_or_wait(queue, now_ns, policy, times, expired)
    else:
        reason = "full" if len(picked) == policy.max_batch_rows else "largest"
        planned = Plan(_take(queue, picked, tags), expired, reason, None)
    if planned.batch:
        served = served_of(planned.batch)
        left = classes_of(np.concatenate([placed_of(lot) for lot in queue.lots])) if queue.lots else {}
        cost_ns = costs_ns[sum(served.values())]
        shares.charge(served, left, cost_ns, policy.weights, policy.tier_floor)
    return planned


def _leave(
    queue: RowQueue, policy: BatchPolicy, times: ServiceTimes, expired: list[Lot], reason: str
) -> Plan:
    rows = worthwhile(queue.rows, policy.buckets, times)
    if rows < queue.rows:
        return Plan(_take_fairest(queue, rows), expired, "full", None)
    return Plan(queue.take_all(), expired, reason, None)


def _wait_for_company(
    queue: RowQueue, now_ns: int, policy: BatchPolicy, times: ServiceTimes, expired: list[Lot]
) -> Plan:
    oldest_ns = min(int(lot.enqueued_ns.min()) for lot in queue.lots)
    size = filled(queue.rows, policy.buckets)
    pressing_ns = min(int(lot.deadline_ns.min()) for lot in queue.lots) - times.mean_ns(size)
    delayed_ns = oldest_ns + round(policy.max_delay_ms * 1e6)
    if now_ns >= delayed_ns:
        return _leave(queue, policy, times, expired, "delay")
    if now_ns >= pressing_ns:
        return Plan(queue.take_all(), expired, "deadline", None)
    return Plan([], expired, "", min(delayed_ns, pressing_ns))


def _remove_hopeless(queue: RowQueue, now_ns: int, batch_ns: int) -> list[Lot]:
    """Remove the rows for which no batch ends before their deadline.

    None if that is all rows: the times may be wrong.
    """
    until_ns = now_ns + round(_MARGIN * batch_ns)
    if queue.first_deadline_ns > until_ns:
        return []
    if all(lot.deadline_ns.max() <= until_ns for lot in queue.lots):
        return []
    return _remove_expired(queue, until_ns)


def _remove_expired(queue: RowQueue, now_ns: int) -> list[Lot]:
    if queue.first_deadline_ns > now_ns:
        return []
    expired: list[Lot] = []
    kept: list[Lot] = []
    for lot in queue.lots:
        late = lot.deadline_ns <= now_ns
        if late.any():
            expired.append(lot.part(late))
        if not late.all():
            kept.append(lot.part(~late) if late.any() else lot)
    queue.keep_lots(kept)
    queue.rows = sum(len(lot.numbers) for lot in kept)
    return expired


def _take_fairest(queue: RowQueue, rows: int) -> list[Lot]:
    if queue.rows == rows:
        return queue.take_all()
    tags = _tags(queue.lots)
    if (tags[1:] >= tags[:-1]).all():
        # The order of arrival.
        _advance(queue, int(tags[rows - 1]))
        batch: list[Lot] = cut(queue.lots, rows)
        queue.leave(queue.lots, rows)
        return batch
    # A stable sort: rows with equal tags stay in order of arrival.
    return _take(queue, np.argsort(tags, kind="stable")[:rows], tags)


def _tags(lots: deque[Lot]) -> np.ndarray:
    """The virtual start times of all rows, `int64[rows]`."""
    tags: np.ndarray = np.concatenate([lot.position for lot in lots])
    if lots[0].arrived == lots[-1].arrived:
        tags += lots[0].arrived
    else:
        tags += np.repeat([lot.arrived for lot in lots], [len(lot.numbers) for lot in lots])
    return tags


def _advance(queue: RowQueue, tag: int) -> None:
    # Only an overfull queue needs the virtual time: rows that arrive later compete with those left behind. It
    # advances by at least one per batch, otherwise a stream of small requests would hold it still and starve a
    # large one.
    queue.virtual_time = max(queue.virtual_time + 1, tag)


def _take(queue: RowQueue, places: np.ndarray, tags: np.ndarray) -> list[Lot]:
    """Remove and return the rows at these indices over all lots; `tags` are their virtual start times."""
    chosen = np.zeros(len(tags), bool)
    chosen[places] = True
    _advance(queue, int(tags[places].max()))
    stops = np.cumsum([len(lot.numbers) for lot in queue.lots])
    upto = np.concatenate(([0], chosen.cumsum()[stops - 1]))
    batch: list[Lot] = []
    rest: deque[Lot] = deque()
    for lot, stop, rows in zip(queue.lots, stops.tolist(), np.diff(upto).tolist(), strict=True):
        if not rows:
            rest.append(lot)
        elif rows == len(lot.numbers):
            batch.append(lot)
        else:
            mask = chosen[stop - len(lot.numbers) : stop]
            batch.append(lot.part(mask))
            rest.append(lot.part(~mask))
    queue.leave(rest, len(places))
    return batch
