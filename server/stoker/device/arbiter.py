"""The choice of the model whose batch runs next on a device that several models share. Sans-I/O (decision 30)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Final, TypeVar

from stoker.device.batch_decisions import Proposal

_Model = TypeVar("_Model", bound=Hashable)

_LAST: Final = 1 << 16
"""The lowest tier."""
_NEVER_NS: Final = 1 << 62


def pick(now_ns: int, proposals: Mapping[_Model, Proposal], used: Mapping[_Model, float]) -> _Model | None:
    """Return the model that runs now; None if none wants to.

    Args:
        now_ns: When the device is free.
        proposals: What each model would run.
        used: Device time that each model has used, by its share.
    """
    tier, first, soonest = _LAST, None, None
    first_ns = second_ns = _NEVER_NS
    for model, proposal in proposals.items():
        rows, _, latest_ns, its, _, _ = proposal
        if not rows or its > tier:
            continue
        if its < tier:
            tier, first, soonest = its, model, proposal
            first_ns, second_ns = latest_ns, _NEVER_NS
        elif latest_ns < first_ns:
            first, soonest = model, proposal
            first_ns, second_ns = latest_ns, first_ns
        elif latest_ns < second_ns:
            second_ns = latest_ns
    if first is None or soonest is None:
        return None
    ends_ns = now_ns + soonest.cost_ns
    if second_ns >= ends_ns and not soonest.losing:
        return first
    until_ns = ends_ns if second_ns < ends_ns else _NEVER_NS
    # Of equals the first is taken, by the time alone: models need not be comparable.
    others = [
        (proposal.latest_ns, place, model, proposal)
        for place, (model, proposal) in enumerate(proposals.items())
        if proposal.latest_ns < until_ns and proposal.tier == tier and proposal.rows and model is not first
    ]
    others.sort()
    if second_ns >= ends_ns:
        return _choose_ahead(others, first, soonest, ends_ns, used)
    if _fit(now_ns, others, soonest.latest_ns):
        return others[0][2]
    return min([first, *[model for _, _, model, _ in others]], key=used.__getitem__)


def _choose_ahead(
    others: list[tuple[int, int, _Model, Proposal]],
    first: _Model,
    soonest: Proposal,
    begins_ns: int,
    used: Mapping[_Model, float],
) -> _Model:
    """Return the model that goes before the first one, which loses rows in any order; the first one if none has to.

    Args:
        others: What the other models would run, each with its latest start, in that order.
        first: The first one.
        soonest: What the first one would run.
        begins_ns: When the others would start behind it.
        used: Device time that each model has used, by its share.
    """
    for latest_ns, _, model, proposal in others:
        # As many rows as wait now may arrive while the first model runs, and as many again while others run behind
        # it. The own batch may then take three times as long, those before it twice.
        tight = latest_ns - 2 * proposal.cost_ns < begins_ns
        if tight and not proposal.losing and used[model] + soonest.cost_ns < used[first]:
            return model
        begins_ns += 2 * proposal.cost_ns
    return first


def _fit(now_ns: int, others: list[tuple[int, int, _Model, Proposal]], last_ns: int) -> bool:
    """Whether batches run one after the other start in time, followed by one with its latest start at `last_ns`."""
    for latest_ns, _, _, proposal in others:
        if now_ns > latest_ns:
            return False
        now_ns += proposal.cost_ns
    return now_ns <= last_ns
