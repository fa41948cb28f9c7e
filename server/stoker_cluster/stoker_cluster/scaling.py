"""The number of pods that a service needs: a pure function of the pods' reports, the time and the former state.

Decision 69 compares it with the HPA.

- Target: the sum of the loads divided by the target load of a pod, rounded up.
- Up at once, in one step at most to twice as many pods and four more. Pods that start count.
- If pods have refused requests as overloaded, at least one pod more than are ready.
- Down if the largest target of the last minute is below the present number, at most a tenth in one step.
- Unknown loads remove no pod: a silent pod counts as loaded to the target. The minute begins again when the pod
  answers, or when nobody has looked for a while.
- If an operator scales to zero, nothing is done, as Kubernetes' own autoscaler does. Where zero is the minimum, the
  first request that waits in a router starts a pod.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from msgspec import Struct, field

_PERCENT: Final = 100
_DOWN_AFTER_S: Final = 60.0
_DOWN_SHARE: Final = 0.1
_UP_FACTOR: Final = 2
_UP_MORE: Final = 4
# Otherwise the noise of arrivals would remove a pod and add it again every minute.
_SPARE: Final = 1.05
_PODS_A_PERIOD: Final = 500
_STALE_PERIODS: Final = 3
_STALE_S: Final = 3.0
_ROUNDING: Final = 1e-9


class ScalingPolicy(Struct, frozen=True):
    """The operator's settings, as `autoscale_…` of Azure.

    Attributes:
        min_replicas, max_replicas: Fewest and most pods; at least 0 and 1.
        target_percent: The target load of pods.
        refresh_s: The interval of requests to pods.
    """

    min_replicas: int = 1
    max_replicas: int = 10
    target_percent: int = 70
    refresh_s: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.min_replicas <= self.max_replicas or not self.max_replicas:
            raise ValueError(f"must have 0 <= min {self.min_replicas} <= max {self.max_replicas}")
        if not 0 < self.target_percent <= _PERCENT or not self.refresh_s > 0:
            raise ValueError(
                f"target {self.target_percent} is no percentage, or {self.refresh_s} s no period"
            )


class PodLoad(NamedTuple):
    """The report of one pod.

    Attributes:
        load: Its load: requested rows over those that it could do.
        overloaded: How many requests it has refused so far for lack of capacity.
        read_s: When it was read.
    """

    load: float
    overloaded: int
    read_s: float


class Pods(NamedTuple):
    """The observed pods.

    Attributes:
        ready: The names of those that get requests.
        loads: The last report of each pod; pods that never reported are missing.
        waiting: How many requests wait in routers for a pod; looked for only while there is none.
    """

    replicas: int
    ready: AbstractSet[str]
    loads: Mapping[str, PodLoad]
    waiting: int = 0


class ScalingState(Struct, frozen=True):
    """The state that one decision leaves for the next.

    Attributes:
        looked_s: When it was made; None before the first.
        known_since_s: The time since when all ready pods have reported at every step.
        wanted: When how many pods were wanted, within the last minute; of each number the last time, and none that a
            larger one has followed.
        overloaded: Refused requests by pod.
    """

    looked_s: float | None = None
    known_since_s: float = math.inf
    wanted: tuple[tuple[float, int], ...] = ()
    overloaded: Mapping[str, int] = field(default_factory=dict)


class Decision(Struct, frozen=True):
    """The result of a decision.

    Attributes:
        replicas: The new number of pods.
        leaving: The pods to remove if there are fewer, the least loaded first.
        unknown: Number of ready pods without a recent report.
        load: The sum of the other pods' loads.
        state: The state for the next decision.
    """

    replicas: int
    leaving: tuple[str, ...]
    unknown: int
    load: float
    state: ScalingState


def period_s(policy: ScalingPolicy, pods: int) -> float:
    """Return the interval of requests to this many pods: above 500 it grows with their number."""
    return policy.refresh_s * max(1.0, pods / _PODS_A_PERIOD)


def decide(pods: Pods, now_s: float, state: ScalingState, policy: ScalingPolicy) -> Decision:
    """Decide how many pods there should be.

    Args:
        now_s: The time, on the clock of `PodLoad.read_s`.
        state: What the last decision left; a fresh one at the beginning.
    """
    stale_s = max(_STALE_S, _STALE_PERIODS * period_s(policy, len(pods.ready)))
    fresh = {
        name: pod
        for name, pod in pods.loads.items()
        if name in pods.ready and now_s - pod.read_s <= stale_s and pod.load >= 0
    }
    unknown = len(pods.ready) - len(fresh)
    target = policy.target_percent / _PERCENT
    load = math.fsum(pod.load for pod in fresh.values())
    needed = max(load / target + unknown, float(pods.waiting > 0))
    refused = state.looked_s is not None and any(
        pod.overloaded > state.overloaded.get(name, 0) for name, pod in fresh.items()
    )
    if refused:
        needed = max(needed, len(pods.ready) + 1)
    known = bool(fresh) and not unknown
    state = _noted(state, now_s, stale_s, known, _whole(needed * _SPARE, policy), pods, fresh)
    replicas = _stepped(pods.replicas, _whole(needed, policy), now_s, state, policy)
    idlest = sorted(fresh, key=lambda name: (fresh[name].load, name))
    # Those of the step before may still be ready: not counted, they alone would be named again, and others go.
    surplus = max(pods.replicas, len(pods.ready)) - replicas if replicas < pods.replicas else 0
    return Decision(replicas, tuple(idlest[:surplus]), unknown, load, state)


def _whole(needed: float, policy: ScalingPolicy) -> int:
    """A whole number of pods, within the limits of the policy."""
    most = min(needed, float(policy.max_replicas))
    return min(policy.max_replicas, max(policy.min_replicas, math.ceil(most - _ROUNDING)))


def _stepped(replicas: int, wanted: int, now_s: float, state: ScalingState, policy: ScalingPolicy) -> int:
    """The number of pods after one step towards the wanted number."""
    if not policy.min_replicas <= replicas <= policy.max_replicas:
        # Bounds that an operator has set apply at once. If someone scales to zero, the autoscaler does nothing.
        return min(max(replicas, policy.min_replicas), policy.max_replicas) if replicas else 0
    if wanted > replicas:
        return min(wanted, _UP_FACTOR * replicas + _UP_MORE)
    most = max((number for _, number in state.wanted), default=replicas)
    if most >= replicas or now_s - state.known_since_s < _DOWN_AFTER_S:
        return replicas
    return max(most, replicas - max(1, math.floor(_DOWN_SHARE * replicas)))


def _noted(
    state: ScalingState,
    now_s: float,
    stale_s: float,
    known: bool,
    wanted: int,
    pods: Pods,
    fresh: Mapping[str, PodLoad],
) -> ScalingState:
    """Return the state with the number of pods that is wanted now."""
    unbroken = known and state.looked_s is not None and 0 <= now_s - state.looked_s <= stale_s
    since_s = min(state.known_since_s, now_s) if unbroken else now_s if known else math.inf
    later = [(at_s, number) for at_s, number in state.wanted if now_s - at_s < _DOWN_AFTER_S]
    while later and later[-1][1] <= wanted:
        later.pop()
    refused = {name: count for name, count in state.overloaded.items() if name in pods.ready}
    refused |= {name: pod.overloaded for name, pod in fresh.items()}
    return ScalingState(now_s, since_s, (*later, (now_s, wanted)), refused)
