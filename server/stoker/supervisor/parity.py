"""Compares the answers of a loaded version with those of the version that it replaces."""

from __future__ import annotations

import logging

from stoker.deployment import Deployment
from stoker.errors import ParityFailed
from stoker.metrics.memory import MetricPage
from stoker.supervisor.events import Events
from stoker.supervisor.fleet import Fleet


async def prove(old: Deployment, new: Deployment, fleet: Fleet, events: Events, page: MetricPage) -> None:
    """Compare a loaded version with the one that it replaces, if its settings ask for that.

    Raises:
        ParityFailed: `parity` is `require`, and the answers were not shown to be the same.
    """
    mode, name, number = new.parity.mode, new.name, new.version
    if mode == "off":
        return
    against = f"version {old.version}" if old.version != number else "its files before"
    comparison = await fleet.compare(old, new)
    if comparison is None:
        finding = (
            f"it takes or gives other tensors than {against}, or keeps state between requests, so that their answers "
            "cannot be compared"
        )
    elif not comparison.requests:
        finding = (
            f"there was no request to compare its answers with those of {against}; give it a sample_input"
        )
    else:
        relation = "answers as" if comparison.agrees else "does not answer as"
        finding = f"it {relation} {against} ({comparison}; parity_tolerance {new.parity.tolerance:g})"
    report = {} if comparison is None else {"report": comparison.to_json()}
    metrics = page.model(new.slot)
    if comparison is not None and comparison.agrees:
        metrics.count_decision("parity_passed")
        events.tell(logging.INFO, name, number, "parity_passed", finding, **report)
    elif mode == "warn":
        metrics.count_decision("parity_warned")
        events.tell(logging.WARNING, name, number, "parity_warned", finding, **report)
    else:
        metrics.count_decision("parity_failed")
        # The error is logged as that of the load.
        events.note(name, number, "parity_failed", finding, **report)
        raise ParityFailed(finding)
