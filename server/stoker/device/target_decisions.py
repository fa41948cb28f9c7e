"""Decides which rows of a queue with targets leave now, and carries the decision out. Sans-I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from stoker.arena import tier_of
from stoker.device.batch_decisions import BatchDecision, BatchPolicy, Proposal
from stoker.device.batch_sizes import ServiceTimes, filled, worthwhile
from stoker.device.due_order import DueOrder
from stoker.device.fairness import Candidates, classes_of, pick, served_of
from stoker.device.row_blocks import (
    DUE,
    ENQUEUED,
    PLACED,
    RowBlock,
    Table,
    blocks_of,
    join_parts,
    split_into_blocks,
)
from stoker.device.row_queue import RowQueue
from stoker.device.shares import Shares
from stoker.device.targets import Choice, choose, find_hopeless, largest_within, numbers_of
from stoker.device.text_lengths import TextLengths

_NORMAL: Final = 1
_LATE: Final = 3
_NOTHING: Final = Choice(0, 0, "")


class TargetDecision(NamedTuple):
    """The decision for a queue.

    Attributes:
        choice: Which of the sorted rows leave.
        whole: Whether all rows that are not late leave in their present order, or wait together.
        late_rows: How many of the rows that were already late leave too.
        cost_ns: Expected time of the batch.
        due_ns: When the answer of its first row stops being of use.
        check_again_ns: When to decide again.
        tier: The highest tier of the rows that leave or wait to.
        picked: The indices of its rows, ascending, if they are not contiguous; `choice` holds only their number
            then.
    """

    choice: Choice
    whole: bool
    late_rows: int
    cost_ns: int
    due_ns: int
    check_again_ns: int | None
    tier: int = _NORMAL
    picked: np.ndarray | None = None


class _Situation(NamedTuple):
    """The state of the device for which a decision is made, and the settings.

    Attributes:
        now_ns: The time.
        free_ns: When the device is free.
        policy: The settings of batching.
        times: Measured times of batches.
        costs_ns: Expected times of batches of 0 rows up to the most.
        target_ns: The target of rows without one of their own; 0 for none.
    """

    now_ns: int
    free_ns: int
    policy: BatchPolicy
    times: ServiceTimes
    costs_ns: Sequence[int]
    target_ns: int


def decide(
    queue: RowQueue, now_ns: int, policy: BatchPolicy, times: ServiceTimes, free_ns: int
) -> TargetDecision | None:
    """Decide what leaves at `now_ns`, for a device that is free at `free_ns`; None if nothing waits.

    Repeated calls before rows have arrived or left return the same decision without computing it again.
    """
    if not queue.rows:
        return None
    costs_ns = times.costs_ns(policy.max_batch_rows, policy.buckets)
    decided = queue.decided
    if (
        decided is not None
        and decided[0].now_ns == now_ns
        and decided[0].free_ns == free_ns
        and decided[0].policy is policy
        and decided[0].costs_ns is costs_ns
    ):
        known: TargetDecision = decided[1]
        return known
    target_ns = 0 if policy.target_ms is None else round(policy.target_ms * 1e6)
    situation = _Situation(now_ns, free_ns, policy, times, costs_ns, target_ns)
    decision = _decide_for_all(queue, situation) if queue.shares is None else None
    if decision is None:
        decision = _decide_by_due_times(queue, situation)
    queue.decided = (situation, decision)
    return decision


def _decide_by_due_times(queue: RowQueue, situation: _Situation) -> TargetDecision:
    """Decide where not all rows may leave: sort them by due time first."""
    _, free_ns, policy, times, costs_ns, _ = situation
    order = _give_up_late_rows(queue, situation)
    count = len(order.due_ns)
    if not count:
        return _decide_for_late_rows(queue, situation.target_ns, costs_ns)
    due_ns, places = order.due_ns, None
    if policy.lengths is not None and (
        count > policy.max_batch_rows or due_ns[0] < free_ns + costs_ns[count]
    ):
        places, costs_ns = _find_alike(queue, policy.lengths, situation)
        situation = situation._replace(costs_ns=costs_ns)
    if places is not None:
        due_ns, count = due_ns[places], len(places)
    if queue.shares is not None:
        picked = _pick(queue, queue.shares, situation, places)
        if picked is not None:
            reason = "idle" if len(picked) == len(order) else "largest"
            choice = Choice(0, len(picked), "full" if len(picked) == policy.max_batch_rows else reason)
            return _choose_or_wait(queue, situation, choice, picked)
    due = numbers_of(due_ns)
    rows = worthwhile(count, policy.buckets, times) if count <= policy.max_batch_rows else 0
    if rows and due[0] >= free_ns + costs_ns[rows]:
        choice = Choice(0, rows, "idle" if rows == len(order) < policy.max_batch_rows else "full")
    else:
        choice = choose(due, free_ns, costs_ns)
        rows = choice.stop - choice.start
        if policy.buckets:
            choice = choice._replace(stop=choice.start + worthwhile(rows, policy.buckets, times))
    if places is not None:
        picked = places[choice.start : choice.stop]
        return _choose_or_wait(queue, situation, Choice(0, len(picked), choice.reason), picked)
    return _choose_or_wait(queue, situation, choice)


def _pick(
    queue: RowQueue, shares: Shares, situation: _Situation, places: np.ndarray | None = None
) -> np.ndarray | None:
    """Choose among the callers and tiers of the sorted rows, or of those at these places."""
    now_ns, free_ns, policy, times, costs_ns, _ = situation
    table = queue.order.table()
    if places is None:
        places = np.arange(table.shape[1])
    else:
        table = table[:, places]
    lasts_ns = table[DUE] - table[ENQUEUED]
    rows = Candidates(places, table[PLACED], table[DUE])
    return pick(shares, rows, lasts_ns, now_ns, free_ns, policy, times, costs_ns)


def _find_alike(
    queue: RowQueue, lengths: TextLengths, situation: _Situation
) -> tuple[np.ndarray | None, Sequence[int]]:
    """Find the sorted rows about as long as the one that would leave alone, and expected times of batches of them.

    The places are None if none of them would be in time: then rows of all lengths leave together.
    """
    alone = None
    if queue.shares is not None:
        alone = _pick(queue, queue.shares, situation._replace(costs_ns=situation.costs_ns[:2]))
    first, most = 0 if alone is None else int(alone[0]), situation.policy.max_batch_rows
    places, costs_ns = lengths.choose_alike(queue.order.parts, slice(None), most, first)
    places = places[queue.order.due_ns[places] >= situation.free_ns + costs_ns[1]]
    return (places, costs_ns) if len(places) else (None, situation.costs_ns)


def _choose_or_wait(
    queue: RowQueue, situation: _Situation, choice: Choice, picked: np.ndarray | None = None
) -> TargetDecision:
    """Decide for a batch of sorted rows: it leaves, or waits for more rows."""
    order, rows, buckets = queue.order, choice.stop - choice.start, situation.policy.buckets
    cost_ns = situation.costs_ns[rows]
    due_ns = int(order.due_ns[choice.start if picked is None else picked[0]])
    tier = _NORMAL
    if queue.shares is not None:
        places = slice(choice.start, choice.stop) if picked is None else picked
        tier = tier_of(int(order.table()[PLACED][places].min()))
    reason, waits_ns = _check_delay(queue, situation, choice.reason, due_ns - cost_ns)
    if waits_ns is not None:
        return TargetDecision(_NOTHING, False, 0, cost_ns, due_ns, waits_ns, tier)
    late_rows = min(filled(rows, buckets) - rows, queue.late.rows) if buckets else 0
    if reason != choice.reason:
        choice = choice._replace(reason=reason)
    return TargetDecision(choice, False, late_rows, cost_ns, due_ns, None, tier, picked)


def _decide_for_all(queue: RowQueue, situation: _Situation) -> TargetDecision | None:
    """Decide where all waiting rows fit and are in time, without sorting or copying them; None if they do not."""
    now_ns, free_ns, policy, times, costs_ns, target_ns = situation
    cap, late = policy.max_batch_rows, queue.late
    rows = queue.rows - late.rows
    if rows > cap or not rows or queue.longest_rows > cap or queue.unrun:
        return None
    if late.rows and (policy.buckets or late.may_have_expired(now_ns)):
        return None
    due_ns = queue.first_due_ns(target_ns)
    cost_ns = costs_ns[rows]
    if due_ns < free_ns + cost_ns or due_ns <= now_ns or worthwhile(rows, policy.buckets, times) < rows:
        return None
    reason, waits_ns = _check_delay(queue, situation, "full" if rows == cap else "idle", due_ns - cost_ns)
    if waits_ns is not None:
        return TargetDecision(_NOTHING, True, 0, cost_ns, due_ns, waits_ns)
    return TargetDecision(Choice(0, rows, reason), True, 0, cost_ns, due_ns, None)


def _check_delay(
    queue: RowQueue, situation: _Situation, reason: str, latest_ns: int
) -> tuple[str, int | None]:
    """Check `max_delay_ms` for a batch with the latest start `latest_ns`.

    Returns:
        Why it leaves, and until when it waits for more rows; None if it leaves now.
    """
    delay_ms = situation.policy.max_delay_ms
    if reason != "idle" or not delay_ms:
        return reason, None
    delayed_ns = queue.oldest_ns() + round(delay_ms * 1e6)
    leaves_ns = min(latest_ns, delayed_ns)
    if situation.now_ns < leaves_ns:
        return reason, leaves_ns
    return "delay" if situation.now_ns >= delayed_ns else "deadline", None


def _give_up_late_rows(queue: RowQueue, situation: _Situation) -> DueOrder:
    """Move rows that will miss their targets to the late rows, or give them up; returns the other rows."""
    now_ns, free_ns, policy, _, costs_ns, target_ns = situation
    order = queue.sort_in(target_ns)
    if queue.late.rows:
        queue.unrun += queue.late.take_expired(now_ns)
    due_ns = order.due_ns
    until_ns = free_ns + costs_ns[1]
    # If there is time for the longest request, no closer look is needed.
    pressed_ns = until_ns if queue.longest_rows == 1 else free_ns + _needed_ns(queue.longest_rows, costs_ns)
    if not len(due_ns) or due_ns[0] >= pressed_ns:
        return order
    late, lost = policy.late == "answer", int(due_ns.searchsorted(until_ns))
    if lost:
        queue.give_up(order.take_first(lost), until_ns, late=late)
    if queue.longest_rows > 1:
        pressed = int(order.due_ns.searchsorted(pressed_ns))
        if pressed:
            _give_up_long_requests(queue, pressed, free_ns, costs_ns, late=late)
    if len(order.due_ns) < len(due_ns):
        queue.all_hopeless = not len(order.due_ns) and bool(due_ns[-1] > free_ns)
    return order


def _needed_ns(rows: int, costs_ns: Sequence[int]) -> int:
    cap = len(costs_ns) - 1
    batches, rest = divmod(rows, cap)
    return batches * costs_ns[cap] + costs_ns[rest]


def _give_up_long_requests(
    queue: RowQueue, pressed: int, free_ns: int, costs_ns: Sequence[int], *, late: bool
) -> None:
    """Remove those of the first rows whose requests lack too many rows to be in time."""
    due_ns = queue.order.due_ns[:pressed]
    table = join_parts(queue.order.take_first(pressed), due_ns)
    lost = find_hopeless(table, free_ns, costs_ns)
    if lost.any():
        queue.give_up([Table(table[:, lost])], free_ns + costs_ns[1], late=late)
        table = table[:, ~lost]
    queue.order.put_first(table)


def _decide_for_late_rows(queue: RowQueue, target_ns: int, costs_ns: Sequence[int]) -> TargetDecision:
    """Decide where only late rows wait: batches are short, so that new rows are not delayed for long."""
    limit = largest_within(target_ns // 2, costs_ns) if target_ns else len(costs_ns) - 1
    rows = min(queue.late.rows, limit)
    due_ns = queue.late.first_deadline_ns(rows) if rows else 0
    return TargetDecision(
        Choice(0, 0, "idle" if rows else ""), False, rows, costs_ns[rows], due_ns, None, _LATE
    )


def make_proposal(decision: TargetDecision) -> Proposal | None:
    """Return the batch that a decision offers when models take turns; None if there is nothing to run or wait for."""
    choice = decision.choice
    rows = choice.stop - choice.start + decision.late_rows
    if not rows and decision.check_again_ns is None:
        return None
    latest_ns = decision.due_ns - decision.cost_ns
    return Proposal(
        rows, decision.cost_ns, latest_ns, decision.tier, choice.start > 0, decision.check_again_ns
    )


def carry_out(
    queue: RowQueue, decision: TargetDecision, policy: BatchPolicy, times: ServiceTimes, free_ns: int
) -> BatchDecision:
    """Remove from the queue the rows of a decision that was just made."""
    choice = decision.choice
    queue.decided = None
    if decision.whole:
        batch = queue.take_in_time() if choice.stop else []
        return BatchDecision(batch, [], choice.reason, decision.check_again_ns)
    order, late = queue.order, policy.late == "answer"
    if decision.picked is not None:
        batch = _take_picked(queue, decision.picked, free_ns + decision.cost_ns, late=late)
    else:
        if choice.start:
            # Their deadlines pass before this batch ends.
            queue.give_up(order.take_first(choice.start), free_ns + decision.cost_ns, late=late)
        batch = split_into_blocks(order.take_first(choice.stop - choice.start)) if choice.stop else []
    if batch and queue.shares is not None:
        left = classes_of(order.table()[PLACED]) if len(order) else {}
        queue.shares.charge(served_of(batch), left, decision.cost_ns, policy.weights)
    if decision.late_rows:
        batch += split_into_blocks(queue.late.take_first(decision.late_rows))
    if queue.all_hopeless:
        times.doubt()
        queue.all_hopeless = False
    unrun = queue.take_unrun()
    queue.rows = len(order.due_ns) + queue.late.rows
    return BatchDecision(batch, unrun, choice.reason, decision.check_again_ns)


def _take_picked(queue: RowQueue, picked: np.ndarray, ends_ns: int, *, late: bool) -> list[RowBlock]:
    """Remove the rows that were picked, and those that become late by their batch."""
    table = queue.order.table()
    rest = np.ones(table.shape[1], bool)
    rest[picked] = False
    in_time = int(table[DUE].searchsorted(ends_ns))
    lost = rest[:in_time].nonzero()[0]
    queue.order.replace(table.take(rest[in_time:].nonzero()[0] + in_time, axis=1))
    if len(lost):
        queue.give_up([Table(table.take(lost, axis=1))], ends_ns, late=late)
    return blocks_of(table.take(picked, axis=1))
