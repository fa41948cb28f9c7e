"""Shadow versions, which get copies of the requests to other versions.

Requests and answers are read from the arenas, where they stay until their rows are reused. So callers do not wait for
shadow traffic, and nothing is stored for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

from stoker.errors import NotReady, Overloaded, StokerError
from stoker.gateway.rows.ticket import Rows
from stoker.gateway.takeover.replays import answer_in, answer_of
from stoker.gateway.takeover.samples import content_of
from stoker.takeover.comparison import Answer, alike, compare

if TYPE_CHECKING:
    from stoker.gateway.rows.ticket import Exchange
    from stoker.gateway.scoring.service import Service

logger = logging.getLogger(__name__)

_AT_ONCE: Final = 16


class Shadow:
    """A shadow version: of a hundred rows, `percent` are copied to it; fewer where more than 16 would run at once."""

    def __init__(self, percent: int) -> None:
        """Begin without copies."""
        self.percent = percent
        self._due = 0.0
        self._seen: dict[Exchange, int] = {}
        self._checked_ns = time.monotonic_ns()
        self._under_way: set[asyncio.Task[None]] = set()

    def copy_requests(self, mains: list[Service], shadow: Service, tolerance: float) -> None:
        """Run copies of requests that have been answered since the last call."""
        since_ns, self._checked_ns = self._checked_ns, time.monotonic_ns()
        seen, self._seen = self._seen, {}
        for main in mains:
            if (
                main.signature is None
                or shadow.signature is None
                or not alike(main.signature, shadow.signature)
            ):
                continue
            for exchange in main.exchanges:
                self._seen[exchange] = exchange.rows_done
                done = exchange.rows_done - seen.get(exchange, exchange.rows_done)
                self._due = min(self._due + done * self.percent / 100, _AT_ONCE)
                self._copy(exchange, shadow, since_ns, tolerance)

    def _copy(self, exchange: Exchange, shadow: Service, since_ns: int, tolerance: float) -> None:
        most = min(int(self._due), _AT_ONCE - len(self._under_way))
        if most < 1:
            return
        for number in exchange.done_since(since_ns, most):
            self._due -= 1
            try:
                answer, took_ns = answer_in(exchange, number)
            except StokerError:
                continue
            work = self._run(shadow, content_of(exchange, number), answer, took_ns, tolerance)
            task = asyncio.get_running_loop().create_task(work)
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def _run(
        self, shadow: Service, content: Rows | bytes, answer: Answer, took_ns: int, tolerance: float
    ) -> None:
        try:
            other, other_ns = await answer_of(shadow, content)
        except (Overloaded, NotReady):
            return
        except StokerError:
            part = compare(answer, None, tolerance, took_ns)
        except Exception:
            logger.exception("a copy of a request to %s version %s failed", shadow.name, shadow.version)
            return
        else:
            part = compare(answer, other, tolerance, took_ns, other_ns)
        shadow.metrics.count_comparison(next(iter(part.results)), flipped=part.flips)
