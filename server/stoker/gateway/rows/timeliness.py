"""Refuses requests that would miss their target, before they are decoded, from what the device reports."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from stoker.board import BoardPage
from stoker.errors import DeadlineExceeded, Overloaded, Refusal
from stoker.gateway.admitting import admit, comeback, hopeless
from stoker.gateway.rows.urgency import USUAL

if TYPE_CHECKING:
    from stoker.arena import Arena
    from stoker.gateway.rows.ticket import Ticket

__all__ = ["Timeliness"]


class Timeliness:
    """Admission by target for one arena.

    Args:
        arena: Its board holds the device's report.
        clock_ns: `time.monotonic_ns`.
        chance: Returns a random number from 0 to 1.
    """

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
        """When the device would be done with this many more rows, by its last report that was read.

        Args:
            now_ns: The time.
            rows: How many.
        """
        board = self._board
        return max(now_ns, board.free_ns) + board.other_ns + board.batch_ns(sum(board.waiting) + rows)

    def refusal(self, ticket: Ticket, *, alone: bool = False) -> Overloaded | DeadlineExceeded | None:
        """The error for a request that would be late even with one row; None if it may be decoded.

        Args:
            ticket: The request.
            alone: Whether no other request of this frontend has rows now.
        """
        board, now_ns = self._board, self._clock_ns()
        if alone:
            # Rows that were counted as sent belong to requests refused since; the device will not report because of
            # them.
            board.forget_sent()
        board.look()
        board.ask(now_ns, 1)
        refusal = hopeless(now_ns, ticket.deadline_ns, board, self._chance)
        if refusal is not None:
            return DeadlineExceeded(
                _told("One row takes longer than the caller waits", refusal), refusal=refusal
            )
        refused = self._take(ticket, 1, now_ns)
        return None if refused is None else _overloaded(refused)

    def check(self, ticket: Ticket, rows: int) -> None:
        """Refuse a decoded request that has too many rows to be in time.

        Args:
            ticket: A request for which `refusal` was None.
            rows: How many it has.

        Raises:
            Overloaded: It would be too late.
        """
        board, now_ns = self._board, self._clock_ns()
        urgency = ticket.urgency or USUAL
        # One of them was counted before the request was decoded.
        due_ns = ticket.target_ns or ticket.deadline_ns
        board.take(-1, urgency.tier, urgency.caller.number, urgency.caller.weight, due_ns)
        board.look()
        board.ask(now_ns, rows - 1)
        refused = self._take(ticket, rows, now_ns)
        if refused is not None:
            raise _overloaded(refused)

    def missed(self, lasts_ns: int, rows: int) -> DeadlineExceeded:
        """The error for a request that was admitted and has missed its target.

        Args:
            lasts_ns: How long after it came its answer was of use.
            rows: How many it has.
        """
        board, now_ns = self._board, self._clock_ns()
        board.look()
        if not board.cap:
            return DeadlineExceeded()
        ahead = sum(board.waiting)
        takes_ns = max(0, board.free_ns - now_ns) + board.batch_ns(ahead + rows)
        retry_after_ms = comeback(max(0, takes_ns - lasts_ns), board, self._chance)
        return DeadlineExceeded(
            refusal=Refusal(504, "deadline_exceeded", retry_after_ms, takes_ns, ahead, "deadline", lasts_ns)
        )

    def _take(self, ticket: Ticket, rows: int, now_ns: int) -> Refusal | None:
        urgency = ticket.urgency or USUAL
        caller, tier, board = urgency.caller, urgency.tier, self._board
        due_ns = ticket.target_ns or ticket.deadline_ns
        refused = admit(now_ns, rows, caller, tier, due_ns, board, self._chance)
        if refused is None:
            board.take(rows, tier, caller.number, caller.weight, due_ns)
        return refused


def _overloaded(refusal: Refusal) -> Overloaded:
    return Overloaded(_told("The answer would come too late", refusal), refusal=refusal)


def _told(what: str, refusal: Refusal) -> str:
    expected_ms, target_ms = refusal.expected_ns / 1e6, refusal.target_ns / 1e6
    return f"{what}: in {expected_ms:.4g} ms, where {target_ms:.4g} ms are left; try again later."
