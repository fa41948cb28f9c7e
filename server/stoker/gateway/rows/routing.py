"""Choosing among servers or replicas: the best of a few candidates, by when each would be done."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Literal, Protocol

if TYPE_CHECKING:
    from stoker.gateway.rows.ticket import Exchange

__all__ = [
    "CHOICES",
    "Crowded",
    "Routing",
    "State",
    "Timed",
    "choose_replica",
    "earliest_end",
    "fewest_rows",
    "route",
]

CHOICES: Final = 3
"""So many candidates are drawn at random. If every router took the best of all by data that is some milliseconds
old, all would choose the same one."""

Routing = Literal["random", "rows", "end"]
"""At random; the fewest waiting rows; the earliest expected end."""


class Crowded(Protocol):
    """A candidate with a number of rows."""

    @property
    def leased_rows(self) -> int:
        """How many rows it has, as far as is known."""


class Timed(Protocol):
    """A candidate whose time can be predicted."""

    def end_ns(self, now_ns: int, rows: int) -> int:
        """When it would be done with this many more rows, as far as is known."""


class State(Crowded, Timed, Protocol):
    """What is known of a server, including the rows that were sent to it since."""


def route(by: Routing, drawn: Sequence[State], now_ns: int, rows: int) -> int:
    """Choose one of the candidates that were drawn; returns its index."""
    if by == "random" or len(drawn) == 1:
        return 0
    return fewest_rows(drawn) if by == "rows" else earliest_end(drawn, now_ns, rows)


def fewest_rows(drawn: Sequence[Crowded]) -> int:
    """The index of the candidate with the fewest rows; the first of equals."""
    rows = [one.leased_rows for one in drawn]
    return rows.index(min(rows))


def earliest_end(drawn: Sequence[Timed], now_ns: int, rows: int) -> int:
    """The index of the candidate that would be done first with this many more rows; the first of equals."""
    ends_ns = [one.end_ns(now_ns, rows) for one in drawn]
    return ends_ns.index(min(ends_ns))


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
        return living[fewest_rows(living)]
    drawn = [exchange for exchange in living if exchange.free_rows] or living
    if len(drawn) > CHOICES:
        drawn = random.sample(drawn, CHOICES)  # chance, not cryptography
    timed = [exchange.admission for exchange in drawn if exchange.admission is not None]
    if all(one.knows_times() for one in timed):
        return drawn[earliest_end(timed, clock_ns(), 1)]
    return drawn[fewest_rows(drawn)]
