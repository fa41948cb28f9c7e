"""Whether a new version may take over: its answers are compared with those of the served version.

Frontends run the requests, of which they keep samples. Here their results are added up, and the setting `parity`
decides on the consequences.
"""

from __future__ import annotations

import itertools
import logging
from typing import TYPE_CHECKING, Protocol

from stoker.control.frontend_messages import Compare
from stoker.errors import ParityFailed
from stoker.takeover.comparison import Comparison, alike

if TYPE_CHECKING:
    from pathlib import Path

    from stoker.deployment import Deployment
    from stoker.metrics.memory import MetricPage
    from stoker.supervisor.changes import Changes
    from stoker.supervisor.events import Events
    from stoker.supervisor.frontend_processes import FrontendProcesses
    from stoker.supervisor.replicas import Replicas

__all__ = ["Comparing", "Examiner", "prove"]


class Examiner(Protocol):
    """Compares two versions; see `Comparing`."""

    async def compare(self, old: Deployment, new: Deployment) -> Comparison | None:
        """Run sampled requests through both; None if their answers cannot be compared."""


class Comparing:
    """Lets the frontends compare versions."""

    def __init__(self, frontends: FrontendProcesses, replicas: Replicas, changes: Changes) -> None:
        """Create it for these frontends; `changes` is notified when one of them has answered or ended."""
        self._frontends = frontends
        self._replicas = replicas
        self._changes = changes
        self._tickets = itertools.count()

    async def compare(self, old: Deployment, new: Deployment) -> Comparison | None:
        """Run the sampled requests of all frontends through two versions; without samples, the sample input.

        Args:
            old: The version that is served.
            new: The version that is to replace it.

        Returns:
            The differences; None if their tensors differ, or one keeps state.
        """
        before, after = self._replicas.of(old), self._replicas.of(new)
        if before and after and not alike(before[0].signature, after[0].signature):
            return None
        comparison = await self._ask(old, new, None)
        sample = new.sample_file or old.sample_file
        if not comparison.requests and sample is not None:
            comparison = await self._ask(old, new, sample)
        return comparison

    async def _ask(self, old: Deployment, new: Deployment, sample: Path | None) -> Comparison:
        """Ask all frontends, or one of them to run a sample; frontends that end before they answer are left out."""
        ticket = next(self._tickets)
        asked = [
            (one, one.child) for one in self._frontends.processes if one.started and one.child is not None
        ]
        if sample is not None:
            asked = asked[:1]
        for process, _ in asked:
            self._frontends.ask(process, Compare(ticket, old.number, new.number, sample))
        await self._changes.until(
            lambda: all(ticket in process.compared or process.child is not child for process, child in asked)
        )
        return sum((process.compared.pop(ticket, Comparison()) for process, _ in asked), Comparison())


async def prove(
    old: Deployment, new: Deployment, examiner: Examiner, events: Events, page: MetricPage
) -> None:
    """Compare a loaded version with the one that it replaces, if its settings ask for that.

    Args:
        old: The version that is served.
        new: The version that is to replace it.
        examiner: Compares them.
        events: Receives the result.
        page: The supervisor's page of the metrics.

    Raises:
        ParityFailed: `parity` is `require`, and the answers were not shown to be the same.
    """
    mode, name, number = new.parity.mode, new.name, new.version
    if mode == "off":
        return
    against = f"version {old.version}" if old.version != number else "its files before"
    comparison = await examiner.compare(old, new)
    if comparison is None:
        verdict = (
            f"it takes or gives other tensors than {against}, or keeps state between requests, so that their answers "
            "cannot be compared"
        )
    elif not comparison.requests:
        verdict = (
            f"there was no request to compare its answers with those of {against}; give it a sample_input"
        )
    else:
        relation = "answers as" if comparison.agrees else "does not answer as"
        verdict = f"it {relation} {against} ({comparison}; parity_tolerance {new.parity.tolerance:g})"
    report = {} if comparison is None else {"report": comparison.to_json()}
    metrics = page.model(new.slot)
    if comparison is not None and comparison.agrees:
        metrics.count_decision("parity_passed")
        events.tell(logging.INFO, name, number, "parity_passed", verdict, **report)
    elif mode == "warn":
        metrics.count_decision("parity_warned")
        events.tell(logging.WARNING, name, number, "parity_warned", verdict, **report)
    else:
        metrics.count_decision("parity_failed")
        # The error is logged as that of the load.
        events.note(name, number, "parity_failed", verdict, **report)
        raise ParityFailed(verdict)
