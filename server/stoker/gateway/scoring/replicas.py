"""Which of a model's replicas a request goes to."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from stoker.gateway.rows.routing import CHOICES, earliest_end, fewest_rows

if TYPE_CHECKING:
    from stoker.gateway.rows.exchange import Exchange

__all__ = ["choose_replica"]


def choose_replica(
    exchanges: Sequence[Exchange], clock_ns: Callable[[], int] = time.monotonic_ns
) -> Exchange | None:
    """Choose the exchange for a request; None if there is none.

    Where devices report their queues, three replicas are compared and the one that would be done first with one
    more row is chosen; those without room are skipped. Otherwise it is the one in which this frontend has the
    fewest rows. Of equals the first one is chosen.

    Args:
        exchanges: Those of all replicas.
        clock_ns: `time.monotonic_ns`.
    """
    # A lost exchange stays in the list until its requests have failed, which may submit others in the meantime.
    living = [exchange for exchange in exchanges if not exchange.lost]
    if not living:
        return None
    if living[0].timeliness is None:
        return living[fewest_rows(living)]
    drawn = [exchange for exchange in living if exchange.free_rows] or living
    if len(drawn) > CHOICES:
        drawn = random.sample(drawn, CHOICES)  # chance, not cryptography
    timed = [exchange.timeliness for exchange in drawn if exchange.timeliness is not None]
    if all(one.knows_times() for one in timed):
        return drawn[earliest_end(timed, clock_ns(), 1)]
    return drawn[fewest_rows(drawn)]
