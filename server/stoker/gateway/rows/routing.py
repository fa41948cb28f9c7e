"""Choosing among servers or replicas: the best of a few candidates, by when each would be done."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Literal, Protocol

if TYPE_CHECKING:
    from stoker.gateway.rows.ticket import Exchange

CHOICES: Final = 3
"""So many candidates are drawn at random. If every router took the best of all by data that is some milliseconds
old, all would choose the same one."""

Routing = Literal["random", "rows", "end"]
"""At random; the fewest waiting rows; the earliest expected end."""


class State(Protocol):
    """The known state of a server, including the rows that were sent to it since."""

    @property
    def leased_rows(self) -> int:
        """How many rows it has."""

    def end_ns(self, now_ns: int, rows: int) -> int:
        """When it would be done with this many more rows."""


def route(by: Routing, drawn: Sequence[State], now_ns: int, rows: int) -> int:
    """Choose one of the candidates that were drawn; returns its index, of equals the first one's."""
    if by == "random" or len(drawn) == 1:
        return 0
    if by == "rows":
        return min(range(len(drawn)), key=lambda index: drawn[index].leased_rows)
    return min(range(len(drawn)), key=lambda index: drawn[index].end_ns(now_ns, rows))


def choose_replica(
    exchanges: Sequence[Exchange], clock_ns: Callable[[], int] = time.monotonic_ns
) -> Exchange | None:
    """Choose the exchange for a request; None if there is none.

    Where devices report their queues, three replicas are compared and the one that would be done first with one
    more row is chosen; those without room are skipped. Otherwise it is the one in which this frontend has the
    fewest rows. Of equals the first one is chosen.
    """
    # A lost exchange stays in the list until its requests have failed, which may submit others in the meantime.
    living = [exchange for exchange in exchanges if not exchange.lost]
    if not living:
        return None
    if living[0].admission is None:
        return min(living, key=_leased_rows)
    drawn = [exchange for exchange in living if exchange.free_rows] or living
    if len(drawn) > CHOICES:
        drawn = random.sample(drawn, CHOICES)  # chance, not cryptography
    timed = [exchange.admission for exchange in drawn if exchange.admission is not None]
    if all(admission.knows_times() for admission in timed):
        now_ns = clock_ns()
        ends_ns = [admission.end_ns(now_ns, 1) for admission in timed]
        return drawn[ends_ns.index(min(ends_ns))]
    return min(drawn, key=_leased_rows)


def _leased_rows(exchange: Exchange) -> int:
    return exchange.leased_rows
