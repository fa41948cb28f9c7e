"""Rules that choose the number of pods: Stoker's, and those of Kubernetes' HorizontalPodAutoscaler and of Knative."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np

from stoker_bench.scaling.fleet import Fleet
from stoker_cluster.scaling import PodLoad, Pods, ScalingPolicy, ScalingState, decide, period_s

__all__ = ["Fixed", "Horizontal", "Knative", "Rule", "Stoker"]

_PERCENT: Final = 100


class Rule(Protocol):
    """Looks at the pods once a second."""

    def look(self, fleet: Fleet) -> int:
        """Return how many pods there are to be from now on."""
        ...


@dataclass
class Fixed:
    """As many as the highest peak needs, all the time."""

    replicas: int

    def look(self, fleet: Fleet) -> int:
        """Return that number."""
        del fleet
        return self.replicas


class Stoker:
    """`stoker_cluster.scaling`, with the loads of the pods as they are at each look."""

    def __init__(self, policy: ScalingPolicy) -> None:
        self._policy = policy
        self._state = ScalingState()
        self._next_s = 0.0

    def look(self, fleet: Fleet) -> int:
        """Return what the policy says."""
        if fleet.now_s < self._next_s:
            return fleet.replicas
        self._next_s = fleet.now_s + period_s(self._policy, fleet.ready)
        loads = ((fleet.asked + fleet.backlog) / fleet.model.capacity_rows_s).tolist()
        refused = fleet.refused.astype(int).tolist()
        said = {
            str(number): PodLoad(load, count, fleet.now_s)
            for number, (load, count) in enumerate(zip(loads, refused, strict=True))
        }
        decision = decide(Pods(fleet.replicas, said.keys(), said), fleet.now_s, self._state, self._policy)
        self._state = decision.state
        return decision.replicas


@dataclass
class Horizontal:
    """A HorizontalPodAutoscaler on a metric of the pods, which is scraped: `autoscaling/v2` of Kubernetes 1.36.

    Attributes:
        policy: The bounds and the target.
        utilization: Whether the metric is the share of time in which the GPU computes, instead of `stoker_load`.
        down_window_s: `stabilizationWindowSeconds` down; up it is 0.
        down_share, down_period_s: What a policy down allows: this share of the pods in this time.
        scrape_s, sync_s: How often the metric is scraped, and how often the autoscaler looks.
    """

    policy: ScalingPolicy
    utilization: bool = False
    down_window_s: float = 300
    down_share: float = 1.0
    down_period_s: float = 15
    scrape_s: float = 15
    sync_s: float = 15
    _scraped: np.ndarray = field(default_factory=lambda: np.zeros(0))
    _sums: deque[tuple[float, float]] = field(default_factory=deque)
    _wanted: deque[tuple[float, int]] = field(default_factory=deque)
    _removed: deque[tuple[float, int]] = field(default_factory=deque)

    def look(self, fleet: Fleet) -> int:
        """Return what it says at its own times, and what there is at others."""
        if fleet.now_s % self.scrape_s == 0:
            self._scraped = self._metric(fleet)
        if not len(self._scraped) or (fleet.now_s + self.scrape_s / 2) // 1 % self.sync_s:
            return fleet.replicas
        wanted = min(self.policy.max_replicas, max(self.policy.min_replicas, self._desired(fleet)))
        return self._stabilized(fleet, wanted)

    def _metric(self, fleet: Fleet) -> np.ndarray:
        model, asked = fleet.model, fleet.asked
        if not self.utilization:
            return np.asarray((asked + fleet.backlog) / model.capacity_rows_s)
        batch_s = model.batch_s(asked)
        rows = np.maximum((batch_s - model.fixed_s) / model.row_s, 1)
        return np.asarray(np.minimum(1.0, asked / rows * batch_s))

    def _desired(self, fleet: Fleet) -> int:
        """`ceil(pods * metric / target)`, with pods that are not ready yet as idle, and a tolerance of a tenth."""
        target = self.policy.target_percent / _PERCENT
        metrics = self._scraped[: fleet.ready]
        starting = fleet.replicas - len(metrics)
        ratio = float(metrics.mean()) / target
        pods = len(metrics)
        if ratio > 1 and starting:
            pods += starting
            ratio = float(metrics.sum()) / pods / target
            if ratio < 1:
                return fleet.replicas
        if abs(ratio - 1) <= 0.1:
            return fleet.replicas
        return math.ceil(ratio * pods)

    def _stabilized(self, fleet: Fleet, wanted: int) -> int:
        now_s, replicas = fleet.now_s, fleet.replicas
        self._wanted.append((now_s, wanted))
        while self._wanted[0][0] < now_s - self.down_window_s:
            self._wanted.popleft()
        if wanted > replicas:
            return min(wanted, max(2 * replicas, replicas + 4))
        wanted = min(replicas, max(number for _, number in self._wanted))
        while self._removed and self._removed[0][0] <= now_s - self.down_period_s:
            self._removed.popleft()
        before = replicas + sum(count for _, count in self._removed)
        allowed = before - max(1, math.floor(before * self.down_share))
        lower = max(wanted, min(replicas, allowed))
        if lower < replicas:
            self._removed.append((now_s, replicas - lower))
        return lower


@dataclass
class Knative:
    """Its pod autoscaler: what it counts over 60 s, or over 6 s in a panic; looks every 2 s.

    Attributes:
        policy: The bounds and the target.
        most: Requests in flight that a pod may have, or requests a second; the target is a share of it.
        by_rate: Whether requests a second count, instead of those in flight.
    """

    policy: ScalingPolicy
    most: float
    by_rate: bool = False
    _seen: deque[float] = field(default_factory=lambda: deque(maxlen=60))
    _panic_until_s: float = -1.0
    _panic_pods: int = 0

    def look(self, fleet: Fleet) -> int:
        """Return what it says."""
        # Its proxy lets ten times as many wait as run; more are refused, and not seen.
        counted = fleet.asked if self.by_rate else np.minimum(fleet.in_flight, 11 * self.most)
        self._seen.append(float(counted.sum()))
        if fleet.now_s % 2:
            return fleet.replicas
        target = self.most * self.policy.target_percent / _PERCENT
        seen = list(self._seen)
        ready = max(1, fleet.ready)
        stable, panic = (
            min(1000 * ready, max(ready // 2, math.ceil(sum(part) / len(part) / target)))
            for part in (seen, seen[-6:])
        )
        if panic >= 2 * ready:
            self._panic_until_s = fleet.now_s + 60
        if fleet.now_s < self._panic_until_s:
            self._panic_pods = max(self._panic_pods, panic)
            wanted = self._panic_pods
        else:
            self._panic_pods = 0
            wanted = stable
        return min(self.policy.max_replicas, max(self.policy.min_replicas, wanted))
