"""The choice of the rows that leave the queue now, and when to look again. Sans-I/O: no threads, clock or sockets.

A `RowQueue` holds the rows that wait; `schedule` looks at it and says what to do at `now_ns`. Contract:

- A row is in exactly one place: in the queue, in the returned batch, or in the returned expired rows.
- A batch never exceeds `max_batch_rows`. It counts rows, not requests.
- While all that waits fits in one batch, all of it leaves; unless batches are filled up to buckets, and a smaller
  full one computes more rows in a second. When more waits, rows leave in the order of their virtual start time
  (start-time fair queueing, Goyal et al. 1996): the queue's virtual time on arrival plus the row's position within
  its request. So a request of one row is served beside a request of a thousand, not behind it.
- When more waits than fits in one batch, rows whose batch would hardly end before their deadline are given up at
  once, for others that can still be answered in time. Else an overloaded device would always be at work on what is
  about to be too late.
- Where several callers wait, or rows of several tiers, they take turns: see `stoker.device.fairness`.
- Of texts, while more wait than fit in one batch, those leave that are about as long as the first one. The virtual
  time follows the first one, so each batch runs the row that has waited longest by its tag.
- `max_delay_ms` = 0 (the default) means no added delay: whatever waits leaves as soon as the device is free.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np

from stoker.arena import tier_of
from stoker.device.batch_decisions import BatchDecision, BatchPolicy, Proposal
from stoker.device.batch_sizes import ServiceTimes, filled, worthwhile
from stoker.device.fairness import NEVER_NS, Candidates, classes_of, pick, served_of
from stoker.device.row_blocks import RowBlock, cut, placed_of
from stoker.device.row_queue import RowQueue
from stoker.device.shares import Shares
from stoker.device.target_decisions import carry_out, decide, make_proposal

_MARGIN: Final = 1.5
"""By how many times its mean a batch may take longer, where rows have only deadlines."""


def schedule(
    queue: RowQueue, now_ns: int, policy: BatchPolicy, times: ServiceTimes, free_ns: int | None = None
) -> BatchDecision:
    """Decide what leaves the queue at `now_ns`, and remove it from the queue.

    Args:
        queue: The rows that wait.
        times: What batches take.
        free_ns: When the device is expected to be free, if later than now.
    """
    if not queue.rows:
        return BatchDecision([], [], "", None)
    if policy.target_ms is not None or queue.has_targets:
        free_ns = now_ns if free_ns is None else max(now_ns, free_ns)
        chosen = decide(queue, now_ns, policy, times, free_ns)
        assert chosen is not None, "rows wait"
        return carry_out(queue, chosen, policy, times, free_ns)
    expired = _remove_expired(queue, now_ns)
    if queue.rows > policy.max_batch_rows:
        expired += _remove_hopeless(queue, now_ns, times.mean_ns(policy.max_batch_rows))
    if not queue.rows:
        return BatchDecision([], expired, "", None)
    if queue.shares is None:
        return _leave_or_wait(queue, now_ns, policy, times, expired)
    return _choose_among_callers(queue, queue.shares, now_ns, policy, times, expired)


def _leave_or_wait(
    queue: RowQueue, now_ns: int, policy: BatchPolicy, times: ServiceTimes, expired: list[RowBlock]
) -> BatchDecision:
    most = policy.max_batch_rows
    if queue.rows >= most:
        rows = most if times.ahead_rows is None else worthwhile(most, policy.buckets, times, queue.rows)
        return BatchDecision(_take_fairest(queue, rows, policy), expired, "full", None)
    if not policy.max_delay_ms:
        return _leave(queue, policy, times, expired, "idle")
    return _wait_for_company(queue, now_ns, policy, times, expired)


def propose(
    queue: RowQueue, now_ns: int, policy: BatchPolicy, times: ServiceTimes, free_ns: int | None = None
) -> Proposal | None:
    """Return the batch that `schedule` would take now, without taking it; None if no row would run or wait to.

    Even if it is None there may be rows to hand back, so `schedule` must be called in this case too.
    """
    if policy.target_ms is not None or queue.has_targets:
        chosen = decide(queue, now_ns, policy, times, now_ns if free_ns is None else max(now_ns, free_ns))
        return None if chosen is None else make_proposal(chosen)
    trial = queue.copy_blocks()
    decision = schedule(trial, now_ns, policy, times)
    rows = sum(block.rows for block in decision.batch)
    if not rows and decision.check_again_ns is None:
        return None
    blocks = decision.batch or trial.blocks
    cost_ns = times.expected_ns(filled(rows or trial.rows, policy.buckets))
    latest_ns = min(int(block.deadline_ns.min()) for block in blocks) - cost_ns
    tier = 1 if queue.shares is None else tier_of(min(served_of(list(blocks))))
    return Proposal(rows, cost_ns, latest_ns, tier, False, decision.check_again_ns)


def _choose_among_callers(
    queue: RowQueue,
    shares: Shares,
    now_ns: int,
    policy: BatchPolicy,
    times: ServiceTimes,
    expired: list[RowBlock],
) -> BatchDecision:
    """Choose a batch of rows without targets, where callers or tiers take turns."""
    costs_ns: Sequence[int] = times.costs_ns(policy.max_batch_rows, policy.buckets)
    tags = _tags(queue.blocks)
    placed = np.concatenate([placed_of(block) for block in queue.blocks])
    # Rows of one class run in the order of their tags; a stable sort, so equal tags stay in order of arrival.
    order = np.argsort(tags, kind="stable")
    never = np.full(len(tags), NEVER_NS)
    rows = Candidates(order, placed[order], never)
    if policy.lengths is not None and queue.rows > policy.max_batch_rows:
        # Those about as long as the one that would leave alone.
        alone = pick(shares, rows, never, now_ns, now_ns, policy, times, costs_ns[:2])
        first = 0 if alone is None else int(np.flatnonzero(order == alone[0])[0])
        alike, costs_ns = policy.lengths.choose_alike(queue.blocks, order, policy.max_batch_rows, first)
        rows = Candidates(*(column[alike] for column in rows))
    picked = pick(shares, rows, rows.due, now_ns, now_ns, policy, times, costs_ns)
    if picked is None and len(rows.places) < queue.rows:
        picked = np.sort(rows.places)
    if picked is None or len(picked) == queue.rows:
        decision = _leave_or_wait(queue, now_ns, policy, times, expired)
    else:
        reason = "full" if len(picked) == policy.max_batch_rows else "largest"
        taken = tags[picked]
        tag = int(taken.max() if policy.lengths is None else taken.min())
        decision = BatchDecision(_take(queue, picked, tags, tag), expired, reason, None)
    if decision.batch:
        served = served_of(decision.batch)
        left = (
            classes_of(np.concatenate([placed_of(block) for block in queue.blocks])) if queue.blocks else {}
        )
        cost_ns = costs_ns[sum(served.values())]
        shares.charge(served, left, cost_ns, policy.weights)
    return decision


def _leave(
    queue: RowQueue, policy: BatchPolicy, times: ServiceTimes, expired: list[RowBlock], reason: str
) -> BatchDecision:
    rows = worthwhile(queue.rows, policy.buckets, times)
    if rows < queue.rows:
        return BatchDecision(_take_fairest(queue, rows, policy), expired, "full", None)
    return BatchDecision(queue.take_all(), expired, reason, None)


def _wait_for_company(
    queue: RowQueue, now_ns: int, policy: BatchPolicy, times: ServiceTimes, expired: list[RowBlock]
) -> BatchDecision:
    oldest_ns = min(int(block.enqueued_ns.min()) for block in queue.blocks)
    size = filled(queue.rows, policy.buckets)
    pressing_ns = min(int(block.deadline_ns.min()) for block in queue.blocks) - times.mean_ns(size)
    delayed_ns = oldest_ns + round(policy.max_delay_ms * 1e6)
    if now_ns >= delayed_ns:
        return _leave(queue, policy, times, expired, "delay")
    if now_ns >= pressing_ns:
        return BatchDecision(queue.take_all(), expired, "deadline", None)
    return BatchDecision([], expired, "", min(delayed_ns, pressing_ns))


def _remove_hopeless(queue: RowQueue, now_ns: int, batch_ns: int) -> list[RowBlock]:
    """Remove the rows for which no batch ends before their deadline.

    None if that is all rows: the times may be wrong.
    """
    until_ns = now_ns + round(_MARGIN * batch_ns)
    if queue.first_deadline_ns > until_ns:
        return []
    if all(block.deadline_ns.max() <= until_ns for block in queue.blocks):
        return []
    return _remove_expired(queue, until_ns)


def _remove_expired(queue: RowQueue, now_ns: int) -> list[RowBlock]:
    if queue.first_deadline_ns > now_ns:
        return []
    expired: list[RowBlock] = []
    kept: list[RowBlock] = []
    for block in queue.blocks:
        late = block.deadline_ns <= now_ns
        if late.any():
            expired.append(block.part(late))
        if not late.all():
            kept.append(block.part(~late) if late.any() else block)
    queue.keep_blocks(kept)
    queue.rows = sum(len(block.numbers) for block in kept)
    return expired


def _take_fairest(queue: RowQueue, rows: int, policy: BatchPolicy) -> list[RowBlock]:
    if queue.rows == rows:
        return queue.take_all()
    tags = _tags(queue.blocks)
    if policy.lengths is not None:
        order = np.argsort(tags, kind="stable")
        alike, _ = policy.lengths.choose_alike(queue.blocks, order, rows)
        # Rows of other lengths are passed over: those that come later must not be behind all of them.
        return _take(queue, order[alike], tags, int(tags[order[0]]))
    if (tags[1:] >= tags[:-1]).all():
        # The order of arrival.
        _advance(queue, int(tags[rows - 1]))
        batch: list[RowBlock] = cut(queue.blocks, rows)
        queue.leave(queue.blocks, rows)
        return batch
    # A stable sort: rows with equal tags stay in order of arrival.
    fairest = np.argsort(tags, kind="stable")[:rows]
    return _take(queue, fairest, tags, int(tags[fairest[-1]]))


def _tags(blocks: deque[RowBlock]) -> np.ndarray:
    """The virtual start times of all rows, `int64[rows]`."""
    tags: np.ndarray = np.concatenate([block.position for block in blocks])
    if blocks[0].arrived == blocks[-1].arrived:
        tags += blocks[0].arrived
    else:
        tags += np.repeat([block.arrived for block in blocks], [len(block.numbers) for block in blocks])
    return tags


def _advance(queue: RowQueue, tag: int) -> None:
    # Only an overfull queue needs the virtual time: rows that arrive later compete with those left behind. It
    # advances by at least one per batch, otherwise a stream of small requests would hold it still and starve a
    # large one.
    queue.virtual_time = max(queue.virtual_time + 1, tag)


def _take(queue: RowQueue, places: np.ndarray, tags: np.ndarray, tag: int) -> list[RowBlock]:
    """Remove and return the rows at these indices over all blocks.

    Args:
        tags: The virtual start times of all rows.
        tag: Advances the virtual time.
    """
    chosen = np.zeros(len(tags), bool)
    chosen[places] = True
    _advance(queue, tag)
    stops = np.cumsum([len(block.numbers) for block in queue.blocks])
    upto = np.concatenate(([0], chosen.cumsum()[stops - 1]))
    batch: list[RowBlock] = []
    rest: deque[RowBlock] = deque()
    for block, stop, rows in zip(queue.blocks, stops.tolist(), np.diff(upto).tolist(), strict=True):
        if not rows:
            rest.append(block)
        elif rows == len(block.numbers):
            batch.append(block)
        else:
            mask = chosen[stop - len(block.numbers) : stop]
            batch.append(block.part(mask))
            rest.append(block.part(~mask))
    queue.leave(rest, len(places))
    return batch
