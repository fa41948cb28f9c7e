"""Admission by target: whether a request can be answered in time, judged by what the device process reports.

A request that is refused here would otherwise be read, would wait, would make the queue longer for all
others, and would then be dropped. Refused early, its caller learns at once when to come back. Sans-I/O: no
clock, no sockets.

See decision 31.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from stoker.arena import BoardPage
from stoker.errors import DeadlineExceeded, Overloaded, Refusal

if TYPE_CHECKING:
    from stoker.arena import Arena, Board
    from stoker.gateway.rows.urgency import Urgency
    from stoker.keys.callers import CallerTerms

_LEAST_ROOM: Final = 0.1
"""At least this share of the device's time is assumed to be free for requests that come back, whatever its load."""
_SPREAD: Final = 0.25
_BELIEVED_NS: Final = 1_000_000_000
"""How long the reported time of one row is believed. After that one request is let in to measure it again."""
_LONGEST_MS: Final = 60_000
_MS_NS: Final = 1_000_000


def check_target(
    now_ns: int,
    rows: int,
    caller: CallerTerms,
    tier: int,
    target_ns: int,
    board: Board,
    chance: Callable[[], float] = random.random,
) -> Refusal | None:
    """Decide whether a request is admitted; returns None if it is, else the refusal.

    It is refused if it is expected to end later than its target by more than a quarter of the time left until the
    target: the rows that arrive last fill up batches that leave in time. With no other rows waiting it is admitted.
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
    # Estimated without this request sharing a batch: by then the batch of the rows ahead may have left.
    apart_ns = begins_ns + board.batch_ns(others) + board.batch_ns(rows)
    return Refusal(
        503,
        "overloaded",
        retry_after_ms(apart_ns - target_ns, board, chance),
        end_ns - now_ns,
        others,
        "target",
        max(0, target_ns - now_ns),
    )


def _outlasts(
    begins_ns: int, rows: int, caller: CallerTerms, tier: int, target_ns: int, board: Board
) -> bool:
    """Whether the last full batch that ends before the target has room for the request and all rows due later.

    The rows ahead of it leave in earlier batches, or will be late themselves. Where other models take turns on the
    device, or callers or tiers share the queue, that cannot be known, and the result is False.
    """
    if not board.later or board.parallel > 1 or board.other_ns:
        return False
    if board.classes or caller.number or sum(board.waiting) > board.waiting[tier]:
        return False
    batches = min(len(board.later), board.full_batches_until(target_ns, begins_ns))
    return batches > 0 and board.later[batches - 1] + rows <= board.cap


def check_deadline(
    now_ns: int, deadline_ns: int, board: Board, chance: Callable[[], float] = random.random
) -> Refusal | None:
    """Refuse a request whose caller waits for less time than one row takes to compute; None if it waits longer."""
    # After a second without a batch the reported time may be outdated, so one request is let through to
    # measure it.
    if not board.cap or now_ns - board.written_ns > _BELIEVED_NS:
        return None
    end_ns = now_ns + board.costs_ns[0]
    if end_ns <= deadline_ns:
        return None
    after_ms = retry_after_ms(end_ns - deadline_ns, board, chance)
    left_ns = max(0, deadline_ns - now_ns)
    return Refusal(504, "deadline_exceeded", after_ms, end_ns - now_ns, 0, "deadline", left_ns)


def retry_after_ms(late_ns: int, board: Board, chance: Callable[[], float] = random.random) -> int:
    """Return after how many milliseconds a refused request should be retried, given by how much it would be late.

    By then the device has worked off what is in the way, besides the requests that arrive meanwhile; a random
    part spreads the retries. While more arrives than can be served, each retry takes another request's place,
    so callers are told to wait longer (`Board.crowding`).
    """
    room = max(_LEAST_ROOM, 1 - board.load)
    wait_ms = late_ns / _MS_NS / room * board.crowding * (1 + _SPREAD * chance())
    return min(_LONGEST_MS, max(1, math.ceil(wait_ms)))


class TargetAdmission:
    """Admission by target for one arena."""

    def __init__(
        self,
        arena: Arena,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._board = BoardPage(arena.words("board"))
        self._clock_ns = clock_ns
        self._chance = chance

    def knows_times(self) -> bool:
        """Whether the device has reported its queue and batch times; reads its latest report."""
        board = self._board
        board.look()
        return bool(board.cap and board.costs_ns[-1])

    def end_ns(self, now_ns: int, rows: int) -> int:
        """When the device would be done with this many more rows, by its last report that was read."""
        board = self._board
        return max(now_ns, board.free_ns) + board.other_ns + board.batch_ns(sum(board.waiting) + rows)

    def refusal(
        self, urgency: Urgency, target_ns: int, deadline_ns: int, *, alone: bool = False
    ) -> Overloaded | DeadlineExceeded | None:
        """The error for a request that would be late even with one row; None if it may be decoded.

        Args:
            alone: Whether no other request of this frontend has rows now.
        """
        board, now_ns = self._board, self._clock_ns()
        if alone:
            # Rows that were counted as sent belong to requests refused since; the device will not report because of
            # them.
            board.forget_sent()
        board.look()
        board.ask(now_ns, 1)
        refusal = check_deadline(now_ns, deadline_ns, board, self._chance)
        if refusal is not None:
            return DeadlineExceeded(
                _message("One row takes longer than the caller waits", refusal), refusal=refusal
            )
        return self._admit(urgency, target_ns, 1, now_ns)

    def check_rows(self, urgency: Urgency, target_ns: int, rows: int) -> None:
        """Refuse a decoded request, for which `refusal` was None, that has too many rows to be in time."""
        board, now_ns = self._board, self._clock_ns()
        # One of them was counted before the request was decoded.
        board.take(-1, urgency.tier, urgency.caller.number, urgency.caller.weight, target_ns)
        board.look()
        board.ask(now_ns, rows - 1)
        refused = self._admit(urgency, target_ns, rows, now_ns)
        if refused is not None:
            raise refused

    def missed(self, lasts_ns: int, rows: int) -> DeadlineExceeded:
        """The error for a request of so many rows that was admitted and has missed its target.

        Args:
            lasts_ns: How long after it came its answer was of use.
        """
        board, now_ns = self._board, self._clock_ns()
        board.look()
        if not board.cap:
            return DeadlineExceeded()
        ahead = sum(board.waiting)
        takes_ns = max(0, board.free_ns - now_ns) + board.batch_ns(ahead + rows)
        after_ms = retry_after_ms(max(0, takes_ns - lasts_ns), board, self._chance)
        return DeadlineExceeded(
            refusal=Refusal(504, "deadline_exceeded", after_ms, takes_ns, ahead, "deadline", lasts_ns)
        )

    def _admit(self, urgency: Urgency, target_ns: int, rows: int, now_ns: int) -> Overloaded | None:
        """Count the rows of a request as sent, or return the error that refuses it."""
        caller, tier, board = urgency.caller, urgency.tier, self._board
        refusal = check_target(now_ns, rows, caller, tier, target_ns, board, self._chance)
        if refusal is not None:
            return Overloaded(_message("The answer would come too late", refusal), refusal=refusal)
        board.take(rows, tier, caller.number, caller.weight, target_ns)
        return None


def _message(problem: str, refusal: Refusal) -> str:
    expected_ms, target_ms = refusal.expected_ns / 1e6, refusal.target_ns / 1e6
    return f"{problem}: in {expected_ms:.4g} ms, where {target_ms:.4g} ms are left; try again later."
