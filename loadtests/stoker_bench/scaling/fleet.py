"""Pods of a model on a GPU each, as a fluid: rows come at random, wait, and are done as fast as full batches are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

__all__ = ["STEP_S", "Fleet", "Model"]

STEP_S: Final = 0.25
_SECOND: Final = round(1 / STEP_S)


@dataclass(frozen=True, slots=True)
class Model:
    """What one pod does, and what is promised of it.

    Attributes:
        fixed_s, row_s: The time of a batch of b rows is `fixed_s + b * row_s`.
        batch_rows: Most rows in a batch.
        queue_s: How much work may wait in a pod before it refuses rows.
        limit_s: How long a row may take; longer, or refused, is a miss.
        start_s: From a pod that is wanted to a ready one.
        drain_s: How long a pod that goes keeps its GPU.
    """

    fixed_s: float = 0.003
    row_s: float = 0.0005
    batch_rows: int = 256
    queue_s: float = 1.0
    limit_s: float = 0.25
    start_s: float = 15.0
    drain_s: float = 10.0

    @property
    def capacity_rows_s(self) -> float:
        """Rows that full batches do in a second."""
        return self.batch_rows / (self.fixed_s + self.batch_rows * self.row_s)

    def batch_s(self, rows_s: np.ndarray) -> np.ndarray:
        """The time of the batches that come of so many rows a second: as many gather as come while one runs."""
        spare = np.maximum(1 - rows_s * self.row_s, 1e-9)
        rows = np.clip(rows_s * self.fixed_s / spare, 1.0, self.batch_rows)
        return np.asarray(self.fixed_s + rows * self.row_s)


class Fleet:
    """The pods, and what they have seen.

    Attributes:
        replicas: How many there are to be.
        rows, missed: Rows that have come, and those of them that were late or refused.
        pod_s: Seconds of GPUs that pods had, from the moment when they were wanted to their end.
        asked: Rows that came to each ready pod within the last second.
        backlog: Rows that wait in each.
        refused: Rows that each has refused so far.
    """

    def __init__(self, model: Model, replicas: int, random: np.random.Generator) -> None:
        """Begin with ready pods."""
        self.model, self._random = model, random
        self.replicas = replicas
        self.rows = self.missed = 0.0
        self.pod_s = 0.0
        self.now_s = 0.0
        self.backlog = np.zeros(replicas)
        self.refused = np.zeros(replicas)
        self._recent = np.zeros((_SECOND, replicas))
        self._starting: list[float] = []
        self._draining: list[float] = []

    @property
    def ready(self) -> int:
        """How many pods get rows."""
        return len(self.backlog)

    @property
    def asked(self) -> np.ndarray:
        """Rows that came to each pod within the last second."""
        return np.asarray(self._recent.sum(axis=0))

    @property
    def in_flight(self) -> np.ndarray:
        """Rows that each pod holds: those that wait, and those that come while a batch runs."""
        asked = np.minimum(self.asked, self.model.capacity_rows_s)
        return np.asarray(self.backlog + asked * 1.5 * self.model.batch_s(asked))

    def scale(self, replicas: int) -> None:
        """Have so many pods from now on: those that start go first, then those in which the least waits."""
        more = replicas - self.replicas
        self.replicas = replicas
        if more > 0:
            self._starting += [self.now_s + self.model.start_s] * more
            return
        unborn = min(-more, len(self._starting))
        if unborn:
            del self._starting[-unborn:]
        gone = -more - unborn
        if gone:
            order = np.argsort(self.backlog, kind="stable")
            self._draining += [self.now_s + self.model.drain_s] * gone
            self._keep(np.sort(order[gone:]))

    def step(self, pods_asked: float) -> None:
        """Let a quarter of a second go by, with as much asked as this many pods can do at most."""
        self._arrive_pods()
        model, capacity = self.model, self.model.capacity_rows_s * STEP_S
        mean = pods_asked * capacity / max(1, self.ready)
        come = self._random.poisson(mean, self.ready).astype(float)
        self._recent = np.vstack((self._recent[1:], come))
        waiting = self.backlog + come
        refused = np.maximum(0.0, waiting - capacity - model.queue_s * model.capacity_rows_s)
        wait_s = self.backlog / model.capacity_rows_s
        # Half a batch until the next one leaves, and a whole one until it is done.
        late = wait_s + 1.5 * model.batch_s(come / STEP_S) > model.limit_s
        self.backlog = np.maximum(0.0, waiting - refused - capacity)
        self.refused += refused
        self.rows += float(come.sum())
        self.missed += float(np.where(late, come, refused).sum())
        self.now_s += STEP_S
        self._draining = [end_s for end_s in self._draining if end_s > self.now_s]
        self.pod_s += STEP_S * (self.ready + len(self._starting) + len(self._draining))

    def _arrive_pods(self) -> None:
        born = sum(at_s <= self.now_s for at_s in self._starting)
        if born:
            self._starting = self._starting[born:]
            self.backlog = np.concatenate((self.backlog, np.zeros(born)))
            self.refused = np.concatenate((self.refused, np.zeros(born)))
            self._recent = np.hstack((self._recent, np.zeros((_SECOND, born))))

    def _keep(self, places: np.ndarray) -> None:
        self.backlog, self.refused = self.backlog[places], self.refused[places]
        self._recent = self._recent[:, places]
