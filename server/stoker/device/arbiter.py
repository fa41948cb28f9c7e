"""Which of the models of a device runs next. Sans-I/O: what each would run is told, and one is named.

The batch that has to begin first runs. So models with few rows wait as long as they can, and their batches grow. But
where others could not begin in time behind it, nor it behind them, they are in conflict: then the model runs that has
used least of the device, by its share. A model that comes back after a pause has no credit for it.

A model of which more is asked than it can do loses rows whatever runs. So one that loses none, and has used less of
the device, does not wait behind it to the last moment: more of its rows may come until then, and others may have to
begin at that moment too. It goes ahead where it would not begin in time behind the first, and those before it, with
up to three times as many rows.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Final, TypeVar

from stoker.device.plans import Offer

__all__ = ["Arbiter", "pick"]

_Model = TypeVar("_Model", bound=Hashable)

_LAST: Final = 1 << 16
"""No tier is behind it."""
_NEVER_NS: Final = 1 << 62


class Arbiter:
    """Names the model whose batch runs next.

    Args:
        shares: Weight of each model's device time in conflicts.
    """

    def __init__(self, shares: Mapping[str, float]) -> None:
        self._shares = dict(shares)
        # Device time by share; what a model may not fall behind is the least of those that wanted to run before.
        self._used = dict.fromkeys(shares, 0.0)
        self._wanting: list[str] = []

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
        if wanting == self._wanting:
            return
        stayed = [self._used[model] for model in wanting if model in self._wanting]
        if stayed:
            floor = min(stayed)
            for model in wanting:
                if model not in self._wanting:
                    self._used[model] = max(self._used[model], floor)
        self._wanting = wanting


def pick(now_ns: int, offers: Mapping[_Model, Offer], used: Mapping[_Model, float]) -> _Model | None:
    """The model that runs now; None if none wants to.

    Args:
        now_ns: When the device is free.
        offers: What each model would run.
        used: Device time that each has used, by its share.
    """
    tier, first, soonest = _LAST, None, None
    first_ns = second_ns = _NEVER_NS
    for model, offer in offers.items():
        rows, _, latest_ns, its, _, _ = offer
        if not rows or its > tier:
            continue
        if its < tier:
            tier, first, soonest = its, model, offer
            first_ns, second_ns = latest_ns, _NEVER_NS
        elif latest_ns < first_ns:
            first, soonest = model, offer
            first_ns, second_ns = latest_ns, first_ns
        elif latest_ns < second_ns:
            second_ns = latest_ns
    if first is None or soonest is None:
        return None
    ends_ns = now_ns + soonest.cost_ns
    if second_ns >= ends_ns and not soonest.losing:
        return first
    until_ns = ends_ns if second_ns < ends_ns else _NEVER_NS
    # Of those that have to begin together the first is the first; models need not be comparable.
    others = [
        (offer.latest_ns, place, model, offer)
        for place, (model, offer) in enumerate(offers.items())
        if offer.latest_ns < until_ns and offer.tier == tier and offer.rows and model is not first
    ]
    others.sort()
    if second_ns >= ends_ns:
        return _going_ahead(others, first, soonest, ends_ns, used)
    if _fit(now_ns, others, soonest.latest_ns):
        return others[0][2]
    return min([first, *[model for _, _, model, _ in others]], key=used.__getitem__)


def _going_ahead(
    others: list[tuple[int, int, _Model, Offer]],
    first: _Model,
    soonest: Offer,
    begins_ns: int,
    used: Mapping[_Model, float],
) -> _Model:
    """The model that goes ahead of the first one, which loses rows anyway; the first one if none has to.

    Args:
        others: What the other models would run, behind when they have to begin, in that order.
        first: The first one.
        soonest: What it would run.
        begins_ns: When the others would begin behind that.
        used: Device time that each has used, by its share.
    """
    for latest_ns, _, model, offer in others:
        # As many rows as wait now may come until the first has run, and as many again while others run behind it:
        # then a batch takes up to three times as long, and those before it twice.
        tight = latest_ns - 2 * offer.cost_ns < begins_ns
        if tight and not offer.losing and used[model] + soonest.cost_ns < used[first]:
            return model
        begins_ns += 2 * offer.cost_ns
    return first


def _fit(now_ns: int, others: list[tuple[int, int, _Model, Offer]], last_ns: int) -> bool:
    """Whether batches one behind the other all begin in time, and behind them one that has to at `last_ns`."""
    for latest_ns, _, _, offer in others:
        if now_ns > latest_ns:
            return False
        now_ns += offer.cost_ns
    return now_ns <= last_ns
