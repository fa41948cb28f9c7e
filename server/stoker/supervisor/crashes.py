"""Counts the crashes of shared device processes by the models that may have caused them."""

from __future__ import annotations

from collections import Counter
from typing import Final

from stoker.deployment import Deployment
from stoker.metrics.memory import MetricMemory
from stoker.supervisor.groups import Group

_MOST_CRASHES: Final = 2
"""A model gets a process of its own after as many crashes of a shared one, during which it ran beside others."""


class Crashes:
    """The crashes that versions of models may have caused, over all their loads."""

    def __init__(self, memory: MetricMemory) -> None:
        """Begin without crashes.

        Args:
            memory: The metrics, which show which models were running.
        """
        self._memory = memory
        self._counts: Counter[tuple[str, int, str]] = Counter()

    def are_frequent(self, model: Deployment) -> bool:
        """Whether a model should have a process of its own."""
        return self._counts[_identity(model)] >= _MOST_CRASHES

    def count_hang(self, model: Deployment) -> None:
        """Record that a model hung while it was loaded: once is enough."""
        self._counts[_identity(model)] = _MOST_CRASHES

    def count_crash(self, group: Group, loading: Deployment | None) -> None:
        """Record the crash of a shared process.

        Args:
            group: The models of the process.
            loading: The model that was being loaded; None if the models that ran are suspected.
        """
        page = self._memory.page(group.page)
        running = [model for model in group.models if page.model(model.slot).run_began[0]]
        suspects = running if loading is None else [loading]
        for model in suspects:
            self._counts[_identity(model)] += _MOST_CRASHES if len(suspects) == 1 else 1


def _identity(model: Deployment) -> tuple[str, int, str]:
    """A version of a model with these files, over all its loads."""
    return model.name, model.version, model.fingerprint
