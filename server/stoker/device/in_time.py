"""Plans of queues whose rows have targets: what is decided, and how it is carried out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from stoker.device.plans import BatchPolicy, Offer, Plan
from stoker.device.ranked import Candidates, classes_of, pick, served_of
from stoker.device.row_queue import DEADLINE, DUE, ENQUEUED, PLACED, Lot, RowQueue, lots_of
from stoker.device.service_times import ServiceTimes, filled, worthwhile
from stoker.device.shares import tier_of
from stoker.device.targets import Choice, choose, hopeless, largest_within

__all__ = ["Decision", "carry_out", "decide", "offered"]

_NORMAL: Final = 1
_LATE: Final = 3
_NOTHING: Final = Choice(0, 0, "")


class Decision(NamedTuple):
    """What is to be done with a queue.

    Attributes:
        choice: What leaves of `waiting`.
        waiting: The rows that can be in time, as a table; None if all lots leave as they are.
        late_rows: How many of those that were late before leave too.
        cost_ns: Expected time of the batch.
        due_ns: Until when its first row is worth something.
        look_again_ns: When to look again.
        picked: The places of its rows in `waiting`, ascending, where these are no run; `choice` has their number.
    """

    choice: Choice
    waiting: np.ndarray | None
    late_rows: int
    cost_ns: int
    due_ns: int
    look_again_ns: int | None
    picked: np.ndarray | None = None


def decide(
    queue: RowQueue, now_ns: int, policy: BatchPolicy, times: ServiceTimes, free_ns: int
) -> Decision | None:
    """Decide what leaves at `now_ns`, for a device that is free at `free_ns`; None if nothing waits."""
    if not queue.rows:
        return None
    costs_ns = times.costs_ns(policy.max_batch_rows, policy.buckets)
    target_ns = 0 if policy.target_ms is None else round(policy.target_ms * 1e6)
    if queue.shares is None:
        everything = _everything(queue, now_ns, policy, times, free_ns, costs_ns, target_ns)
        if everything is not None:
            return everything
    waiting = _settle(queue, now_ns, policy, free_ns, costs_ns, target_ns)
    count = waiting.shape[1]
    if not count:
        return _late_ones(queue, target_ns, costs_ns)
    due = waiting[DUE]
    if queue.shares is not None:
        rows_to_rank = Candidates(np.arange(count), waiting[PLACED], due)
        lasts_ns = due - waiting[ENQUEUED]
        picked = pick(queue.shares, rows_to_rank, lasts_ns, now_ns, free_ns, policy, times, costs_ns)
        if picked is not None:
            return _ranked(queue, waiting, picked, now_ns, policy, costs_ns)
    rows = worthwhile(count, policy.buckets, times) if count <= policy.max_batch_rows else 0
    if rows and due[0] >= free_ns + costs_ns[rows]:
        choice = Choice(0, rows, "idle" if rows == count < policy.max_batch_rows else "full")
    else:
        choice = choose(due, free_ns, costs_ns)
        rows = choice.stop - choice.start
        choice = choice._replace(stop=choice.start + worthwhile(rows, policy.buckets, times))
    rows = choice.stop - choice.start
    cost_ns, due_ns = costs_ns[rows], int(due[choice.start])
    if choice.reason == "idle" and _waits(policy):
        oldest_ns = int(waiting[ENQUEUED].min())
        leaves_ns = _leaves_ns(policy, oldest_ns, due_ns - cost_ns)
        if now_ns < leaves_ns:
            return Decision(_NOTHING, waiting, 0, cost_ns, due_ns, leaves_ns)
        choice = choice._replace(reason=_ended(policy, oldest_ns, now_ns))
    late_rows = min(filled(rows, policy.buckets) - rows, queue.late.shape[1])
    return Decision(choice, waiting, late_rows, cost_ns, due_ns, None)


def _ranked(
    queue: RowQueue,
    waiting: np.ndarray,
    picked: np.ndarray,
    now_ns: int,
    policy: BatchPolicy,
    costs_ns: Sequence[int],
) -> Decision:
    """The decision where callers or tiers take turns."""
    rows, cost_ns, due_ns = len(picked), costs_ns[len(picked)], int(waiting[DUE][picked].min())
    whole = rows == waiting.shape[1]
    reason = "full" if rows == policy.max_batch_rows else "idle" if whole else "largest"
    if reason == "idle" and _waits(policy):
        oldest_ns = int(waiting[ENQUEUED].min())
        leaves_ns = _leaves_ns(policy, oldest_ns, due_ns - cost_ns)
        if now_ns < leaves_ns:
            return Decision(_NOTHING, waiting, 0, cost_ns, due_ns, leaves_ns)
        reason = _ended(policy, oldest_ns, now_ns)
    late_rows = min(filled(rows, policy.buckets) - rows, queue.late.shape[1])
    return Decision(Choice(0, rows, reason), waiting, late_rows, cost_ns, due_ns, None, picked)


def _everything(
    queue: RowQueue,
    now_ns: int,
    policy: BatchPolicy,
    times: ServiceTimes,
    free_ns: int,
    costs_ns: Sequence[int],
    target_ns: int,
) -> Decision | None:
    """The decision where all that has come fits and is in time: nothing has to be sorted, or copied."""
    cap, rows = policy.max_batch_rows, queue.rows
    if (
        rows > cap
        or queue.longest_rows > cap
        or queue.table.shape[1]
        or queue.late.shape[1]
        or queue.over.shape[1]
    ):
        return None
    due_ns, oldest_ns = _first_due_ns(queue.lots, target_ns)
    cost_ns = costs_ns[rows]
    if due_ns < free_ns + cost_ns or due_ns <= now_ns or worthwhile(rows, policy.buckets, times) < rows:
        return None
    reason = "full" if rows == cap else "idle"
    if reason == "idle" and _waits(policy):
        leaves_ns = _leaves_ns(policy, oldest_ns, due_ns - cost_ns)
        if now_ns < leaves_ns:
            return Decision(_NOTHING, None, 0, cost_ns, due_ns, leaves_ns)
        reason = _ended(policy, oldest_ns, now_ns)
    return Decision(Choice(0, rows, reason), None, 0, cost_ns, due_ns, None)


def _first_due_ns(lots: Sequence[Lot], target_ns: int) -> tuple[int, int]:
    """The earliest time at which any of these rows is due, and when the first came; 0 if it is not so simple."""
    if len(lots) == 1:
        only = lots[0]
        enqueued_ns, deadline_ns, targets = only.enqueued_ns, only.deadline_ns, only.target_ns
    else:
        enqueued_ns = np.concatenate([lot.enqueued_ns for lot in lots])
        deadline_ns = np.concatenate([lot.deadline_ns for lot in lots])
        told = [lot.target_ns for lot in lots if lot.target_ns is not None]
        if told and len(told) < len(lots):
            return 0, 0
        targets = np.concatenate(told) if told else None
    oldest_ns = int(enqueued_ns.min())
    due_ns = int(deadline_ns.min())
    if targets is not None:
        return min(due_ns, int(targets.min())), oldest_ns
    return min(due_ns, oldest_ns + target_ns) if target_ns else due_ns, oldest_ns


def _waits(policy: BatchPolicy) -> bool:
    return bool(policy.hold or policy.max_delay_ms)


def _leaves_ns(policy: BatchPolicy, oldest_ns: int, latest_ns: int) -> int:
    """Until when a batch that is not full waits for company."""
    held_ns = oldest_ns + round(policy.hold * max(0, latest_ns - oldest_ns))
    return min(latest_ns, max(held_ns, oldest_ns + round(policy.max_delay_ms * 1e6)))


def _ended(policy: BatchPolicy, oldest_ns: int, now_ns: int) -> str:
    delayed = policy.max_delay_ms and now_ns >= oldest_ns + policy.max_delay_ms * 1e6
    return "delay" if delayed else "deadline"


def _settle(
    queue: RowQueue, now_ns: int, policy: BatchPolicy, free_ns: int, costs_ns: Sequence[int], target_ns: int
) -> np.ndarray:
    """Put the rows where they belong that wait no more for their targets; returns the others, as a table."""
    table = queue.sort_in(target_ns)
    if queue.late.shape[1]:
        queue.end_late(now_ns)
    lost = hopeless(table, free_ns, costs_ns, queue.longest_rows)
    if isinstance(lost, int):
        if not lost:
            return table
        waiting, given_up = table[:, lost:], table[:, :lost]
    else:
        waiting, given_up = table[:, ~lost], table[:, lost]
    queue.table = waiting
    queue.give_up(given_up, free_ns + costs_ns[1], late=policy.late == "answer")
    queue.all_hopeless = not waiting.shape[1] and int(given_up[DUE].max()) > free_ns
    return waiting


def _late_ones(queue: RowQueue, target_ns: int, costs_ns: Sequence[int]) -> Decision:
    """The decision where nobody else waits: those that are late, in batches that keep nobody waiting long."""
    limit = largest_within(target_ns // 2, costs_ns) if target_ns else len(costs_ns) - 1
    rows = min(queue.late.shape[1], limit)
    due_ns = int(queue.late[DEADLINE, :rows].min()) if rows else 0
    return Decision(Choice(0, 0, "idle" if rows else ""), queue.table, rows, costs_ns[rows], due_ns, None)


def offered(decision: Decision) -> Offer | None:
    """What a decision offers; None if nothing is to run or to be waited for."""
    choice = decision.choice
    rows = choice.stop - choice.start + decision.late_rows
    if not rows and decision.look_again_ns is None:
        return None
    tier = _tier(decision) if rows > decision.late_rows or not rows else _LATE
    latest_ns = decision.due_ns - decision.cost_ns
    return Offer(rows, decision.cost_ns, latest_ns, tier, choice.start > 0, decision.look_again_ns)


def _tier(decision: Decision) -> int:
    """The highest tier of the rows that leave, or wait to."""
    if decision.waiting is None:
        return _NORMAL
    placed = decision.waiting[PLACED]
    if decision.picked is not None:
        placed = placed[decision.picked]
    elif decision.choice.stop:
        placed = placed[decision.choice.start : decision.choice.stop]
    return tier_of(int(placed.min()))


def carry_out(
    queue: RowQueue, decision: Decision, policy: BatchPolicy, times: ServiceTimes, free_ns: int
) -> Plan:
    """Remove from the queue what a decision that was just taken of it lets go."""
    choice = decision.choice
    if decision.waiting is None:
        batch = queue.take_all() if choice.stop else []
        return Plan(batch, [], choice.reason, decision.look_again_ns)
    waiting = decision.waiting
    if decision.picked is not None:
        batch = _take(queue, decision, waiting, policy, free_ns)
    else:
        batch = lots_of(waiting[:, choice.start : choice.stop])
        if choice.stop:
            queue.table = waiting[:, choice.stop :]
        if choice.start:
            # They are over by the time at which this batch ends.
            queue.give_up(
                waiting[:, : choice.start], free_ns + decision.cost_ns, late=policy.late == "answer"
            )
    if batch and queue.shares is not None:
        left = classes_of(queue.table[PLACED])
        queue.shares.charge(served_of(batch), left, decision.cost_ns, policy.weights, policy.tier_floor)
    if decision.late_rows:
        batch += queue.take_late(decision.late_rows)
    if queue.all_hopeless:
        times.doubt()
        queue.all_hopeless = False
    over = queue.take_over()
    queue.recount()
    return Plan(batch, over, choice.reason, decision.look_again_ns)


def _take(
    queue: RowQueue, decision: Decision, waiting: np.ndarray, policy: BatchPolicy, free_ns: int
) -> list[Lot]:
    """Remove the rows that were picked from the table, and those that are late by their batch."""
    rest = np.ones(waiting.shape[1], bool)
    rest[decision.picked] = False
    lost = rest & (waiting[DUE] < free_ns + decision.cost_ns)
    queue.table = waiting[:, rest & ~lost]
    if lost.any():
        queue.give_up(waiting[:, lost], free_ns + decision.cost_ns, late=policy.late == "answer")
    return lots_of(waiting[:, decision.picked])
