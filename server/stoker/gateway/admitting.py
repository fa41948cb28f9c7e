"""Whether a request is worth queueing: whether its answer can be there in time, as far as the device tells.

What is refused here would have been dropped later, after it was read, has waited, and has made the queue longer for
all others; and its caller learns at once, and when to come back. Sans-I/O: no clock, no sockets.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from stoker.errors.refusals import Refusal

if TYPE_CHECKING:
    from stoker.board import Board
    from stoker.keys.callers import CallerTerms

__all__ = ["admit", "comeback", "hopeless"]

_LEAST_ROOM: Final = 0.1
"""Of the device's rows at least such a part is taken to be left by those who ask, whoever they are."""
_SPREAD: Final = 0.25
_BELIEVED_NS: Final = 1_000_000_000
"""So long what a device says of the time of one row is believed; then a request may find out."""
_LONGEST_MS: Final = 60_000
_MS_NS: Final = 1_000_000


def admit(
    now_ns: int,
    rows: int,
    caller: CallerTerms,
    tier: int,
    target_ns: int,
    board: Board,
    chance: Callable[[], float] = random.random,
) -> Refusal | None:
    """Decide whether a request is taken; None if it is.

    It is refused if it is expected to end later than its target by more than a quarter of what is left until that,
    for the rows that come last fill batches that are in time. One that finds nobody else is taken.

    Args:
        now_ns: The time.
        rows: Its rows.
        caller: Who asks.
        tier: 0 for high, 1 for normal, 2 for low.
        target_ns: Until when its answer is worth something.
        board: What the device says.
        chance: A number from 0 to 1 at random.
    """
    if not board.cap:
        return None
    others = board.waiting[tier]
    if others and (board.classes or caller.number):
        others = min(others, round(board.share_of(rows, tier, caller.number, caller.weight)) - rows)
    for above in range(tier):
        others += board.waiting[above]
    free_ns = board.free_ns
    if not others and free_ns <= now_ns and not board.other_ns:
        return None
    begins_ns = max(now_ns, free_ns) + board.other_ns
    end_ns = begins_ns + board.batch_ns(others + rows)
    if end_ns <= target_ns + (target_ns - now_ns) // 4 or _outlasts(
        begins_ns, rows, caller, tier, target_ns, board
    ):
        return None
    # By then the batch of those who are ahead may have left without it.
    apart_ns = begins_ns + board.batch_ns(others) + board.batch_ns(rows)
    return Refusal(
        503,
        "overloaded",
        comeback(apart_ns - target_ns, board, chance),
        end_ns - now_ns,
        others,
        "target",
        max(0, target_ns - now_ns),
    )


def _outlasts(
    begins_ns: int, rows: int, caller: CallerTerms, tier: int, target_ns: int, board: Board
) -> bool:
    """Whether a request fits in the last full batch that is in time for it, with all that are due behind that.

    Who is ahead of it is in batches before, or will be late. Where others have turns between, that is not known.
    """
    if not board.later or board.parallel > 1 or board.other_ns:
        return False
    if board.classes or caller.number or sum(board.waiting) > board.waiting[tier]:
        return False
    batches = min(len(board.later), board.full_batches_until(target_ns, begins_ns))
    return batches > 0 and board.later[batches - 1] + rows <= board.cap


def hopeless(
    now_ns: int, deadline_ns: int, board: Board, chance: Callable[[], float] = random.random
) -> Refusal | None:
    """Refuse a request whose caller does not even wait as long as one row takes; None if they do.

    Args:
        now_ns: The time.
        deadline_ns: Until when they wait.
        board: What the device says.
        chance: A number from 0 to 1 at random.
    """
    # When nothing has run for a while, a device that was slow may be fast again: one request finds that out.
    if not board.cap or now_ns - board.written_ns > _BELIEVED_NS:
        return None
    end_ns = now_ns + board.costs_ns[0]
    if end_ns <= deadline_ns:
        return None
    retry_after_ms = comeback(end_ns - deadline_ns, board, chance)
    left_ns = max(0, deadline_ns - now_ns)
    return Refusal(504, "deadline_exceeded", retry_after_ms, end_ns - now_ns, 0, "deadline", left_ns)


def comeback(late_ns: int, board: Board, chance: Callable[[], float] = random.random) -> int:
    """In how many milliseconds who would be late by so much may come back.

    When the device has done what is in the way, beside what others ask for meanwhile; and not all at once. While more
    come than can be done, whoever comes back takes the place of somebody else, so they are told to stay away longer,
    until no more come.
    """
    room = max(_LEAST_ROOM, 1 - board.load)
    wait_ms = late_ns / _MS_NS / room * board.crowding * (1 + _SPREAD * chance())
    return min(_LONGEST_MS, max(1, math.ceil(wait_ms)))
