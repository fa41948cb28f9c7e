"""Which of the models of a device runs next. Sans-I/O: what each would run is told, and one is named.

The batch that has to begin first runs. So models with few rows wait as long as they can, and their batches grow. But
where others could not begin in time behind it, nor it behind them, they are in conflict: then the model runs that has
used least of the device, by its share. A model that comes back after a pause has no credit for it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

from stoker.device.plans import Offer

__all__ = ["Arbiter", "pick"]

_Model = TypeVar("_Model", bound=Hashable)


class Arbiter:
    """Names the model whose batch runs next.

    Args:
        shares: Weight of each model's device time in conflicts.
    """

    def __init__(self, shares: Mapping[str, float]) -> None:
        self._shares = dict(shares)
        # Device time by share; what a model may not fall behind is the least of those that wanted to run before.
        self._used = dict.fromkeys(shares, 0.0)
        self._wanting: frozenset[str] = frozenset()

    def choose(self, now_ns: int, offers: Mapping[str, Offer]) -> str | None:
        """The model that runs now; None if none wants to.

        Args:
            now_ns: When the device is free.
            offers: What each model would run; one that waits for company, or has nothing, does not want to.
        """
        self._lift([model for model, offer in offers.items() if offer.rows])
        return pick(now_ns, offers, self._used)

    def charge(self, model: str, cost_ns: int) -> None:
        """Take note that a model uses the device for so long."""
        self._used[model] += cost_ns / self._shares[model]

    def _lift(self, wanting: list[str]) -> None:
        """Let models that did not want to run begin where the least of the others stands."""
        stayed = [self._used[model] for model in wanting if model in self._wanting]
        if stayed:
            floor = min(stayed)
            for model in wanting:
                if model not in self._wanting:
                    self._used[model] = max(self._used[model], floor)
        self._wanting = frozenset(wanting)


def pick(now_ns: int, offers: Mapping[_Model, Offer], used: Mapping[_Model, float]) -> _Model | None:
    """The model that runs now; None if none wants to.

    Args:
        now_ns: When the device is free.
        offers: What each model would run.
        used: Device time that each has used, by its share.
    """
    wanting = [model for model, offer in offers.items() if offer.rows]
    if len(wanting) < 2:
        return wanting[0] if wanting else None
    tier = min(offers[model].tier for model in wanting)
    equals = sorted(
        (model for model in wanting if offers[model].tier == tier), key=lambda model: offers[model].latest_ns
    )
    first = equals[0]
    ends_ns = now_ns + offers[first].cost_ns
    pressed = [model for model in equals[1:] if offers[model].latest_ns < ends_ns]
    if not pressed:
        return first
    if _fit(now_ns, [offers[model] for model in (*pressed, first)]):
        return pressed[0]
    return min((first, *pressed), key=used.__getitem__)


def _fit(now_ns: int, offers: list[Offer]) -> bool:
    """Whether batches one behind the other all begin in time."""
    for offer in offers:
        if now_ns > offer.latest_ns:
            return False
        now_ns += offer.cost_ns
    return True
