"""The exchanges to the device processes of one served model, and the choice among them (decision 39)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.gateway.rows.routing import choose_replica
from stoker.gateway.scoring.larger_rows import LargerRows

if TYPE_CHECKING:
    from stoker.gateway.rows.cache import AnswerCache
    from stoker.gateway.rows.ticket import Exchange


class Replicas:
    """The ready replicas of a model.

    Attributes:
        exchanges: One per ready replica, ordered by when it was last chosen, the longest ago first.
        only: The only exchange, so that it is found without a search; None if there are several or none.
        larger_rows: Runs requests again whose answers do not fit; set by the owner of the exchanges where rows can
            grow.
        cache: The answers that the replicas share; None if none are kept.
    """

    __slots__ = ("cache", "exchanges", "larger_rows", "only")

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.only: Exchange | None = None
        self.larger_rows = LargerRows()
        self.cache: AnswerCache | None = None

    def add(self, exchange: Exchange) -> None:
        """Choose this exchange too from now on."""
        self.exchanges.append(exchange)
        self._find_only()

    def remove(self, exchange: Exchange) -> bool:
        """Choose an exchange no more; False if it was none of these."""
        if exchange not in self.exchanges:
            return False
        self.exchanges.remove(exchange)
        self._find_only()
        return True

    def clear(self) -> list[Exchange]:
        """Choose none of the exchanges any more, and return them."""
        exchanges, self.exchanges = self.exchanges, []
        self._find_only()
        return exchanges

    def least_loaded(self) -> Exchange | None:
        """The exchange that would be done first; of equals, the one chosen longest ago."""
        chosen = choose_replica(self.exchanges)
        if chosen is not None:
            self.exchanges.remove(chosen)
            self.exchanges.append(chosen)
        return chosen

    def _find_only(self) -> None:
        self.only = self.exchanges[0] if len(self.exchanges) == 1 else None
