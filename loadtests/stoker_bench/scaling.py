"""Rules that scale the pods of a model, on bursty traces: `python loadtests/simulate_scaling.py`.

Pods are simulated as a fluid: rows arrive at random, wait, and are processed as fast as full batches are.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np

from stoker_cluster.scaling import PodLoad, Pods, ScalingPolicy, ScalingState, decide, period_s

STEP_S: Final = 0.25
_SECOND: Final = round(1 / STEP_S)


@dataclass(frozen=True, slots=True)
class Model:
    """A pod's behaviour, and the service level.

    Attributes:
        fixed_s, row_s: A batch of b rows takes `fixed_s + b * row_s`.
        batch_rows: Maximum rows per batch.
        queue_s: Work that may wait in a pod before it refuses rows.
        limit_s: Maximum latency of a row; longer ones and refusals are misses.
        start_s: Time from a wanted pod to a ready one.
        drain_s: How long a stopping pod keeps its GPU.
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
        """Return the time of batches at a rate of rows: each batch has the rows that arrive during the one before."""
        spare = np.maximum(1 - rows_s * self.row_s, 1e-9)
        rows = np.clip(rows_s * self.fixed_s / spare, 1.0, self.batch_rows)
        return np.asarray(self.fixed_s + rows * self.row_s)


class Fleet:
    """The pods and their counters.

    Attributes:
        rows, missed: All rows, and those that were late or refused.
        pod_s: GPU seconds of pods, from when they were wanted to their end.
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
        """Return the rows that each pod holds: waiting ones, and those that arrive during a batch."""
        asked = np.minimum(self.asked, self.model.capacity_rows_s)
        return np.asarray(self.backlog + asked * 1.5 * self.model.batch_s(asked))

    def scale(self, replicas: int) -> None:
        """Set the wanted number of pods: starting ones stop first, then those with the least waiting rows."""
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


_PERCENT: Final = 100


class Rule(Protocol):
    """Looks at the pods once a second."""

    def decide(self, fleet: Fleet) -> int:
        """Return the wanted number of pods."""
        ...


@dataclass
class Fixed:
    """As many as the highest peak needs, all the time."""

    replicas: int

    def decide(self, fleet: Fleet) -> int:
        """Return that number."""
        del fleet
        return self.replicas


class Stoker:
    """`stoker_cluster.scaling`, with the current loads of the pods."""

    def __init__(self, policy: ScalingPolicy) -> None:
        self._policy = policy
        self._state = ScalingState()
        self._next_s = 0.0

    def decide(self, fleet: Fleet) -> int:
        """Return the policy's number of pods."""
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
        utilization: Whether the metric is the GPU's utilization instead of `stoker_load`.
        down_window_s: `stabilizationWindowSeconds` for scaling down; for scaling up it is 0.
        down_share, down_period_s: The policy for scaling down: this share of the pods in this time.
        scrape_s, sync_s: How often the metric is scraped, and how often the autoscaler acts.
    """

    policy: ScalingPolicy
    utilization: bool = False
    down_window_s: float = 300
    down_share: float = 1.0
    down_period_s: float = 15
    scrape_s: float = 15
    sync_s: float = 15
    _scraped: np.ndarray = field(default_factory=lambda: np.zeros(0))
    _wanted: deque[tuple[float, int]] = field(default_factory=deque)
    _removed: deque[tuple[float, int]] = field(default_factory=deque)

    def decide(self, fleet: Fleet) -> int:
        """Return its decision at its own times, and the current number at others."""
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
        most: Maximum requests in flight of a pod, or requests per second; the target is a share of it.
        by_rate: Whether requests per second count, instead of those in flight.
    """

    policy: ScalingPolicy
    most: float
    by_rate: bool = False
    _seen: deque[float] = field(default_factory=lambda: deque(maxlen=60))
    _panic_until_s: float = -1.0
    _panic_pods: int = 0

    def decide(self, fleet: Fleet) -> int:
        """Return its decision."""
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


# Rows that arrive, second by second: seeded, so that each run has the same.


Trace = Callable[[int, np.random.Generator], np.ndarray]
"""From seconds and randomness to what is asked in each second, as pods that are fully at work: `float64[seconds]`."""


def steps(seconds: int, random: np.random.Generator) -> np.ndarray:
    """From 1 pod to 14, every ten minutes up or down."""
    del random
    return np.where(np.arange(seconds) // 600 % 2, 14.0, 0.6)


def noise(seconds: int, random: np.random.Generator) -> np.ndarray:
    """Around 200 pods, and no trend: fluctuations of 8 percent that last a minute."""
    around = np.zeros(seconds)
    for second in range(1, seconds):
        around[second] = around[second - 1] * (1 - 1 / 60) + random.normal(0, 0.08 * np.sqrt(2 / 60))
    return np.maximum(1.0, 200 * (1 + around))


def day(seconds: int, random: np.random.Generator) -> np.ndarray:
    """A day of 30 to 420 pods in the time of the trace, with bursts of half as much again that last two minutes."""
    phase = np.arange(seconds) / seconds * 2 * np.pi
    base = 225 - 195 * np.cos(phase)
    for begin in random.integers(0, seconds, size=max(1, seconds // 600)):
        base[begin : begin + 120] *= 1.5
    return base


def bursts(seconds: int, random: np.random.Generator) -> np.ndarray:
    """30 pods, and bursts at any time: of many sizes up to 600 pods, there within 5 s, gone after a minute or so."""
    asked = np.full(seconds, 30.0)
    at = np.arange(seconds)
    for begin in random.integers(0, seconds, size=max(1, seconds // 150)):
        height = min(600.0, 20 * (1 + random.pareto(1.0)))
        lasts_s = random.exponential(60)
        since = at - begin
        asked += (
            height * np.clip(since / 5, 0, 1) * np.exp(-np.maximum(0, since - 5) / lasts_s) * (since >= 0)
        )
    return np.asarray(np.minimum(700.0, asked))


def crowd(seconds: int, random: np.random.Generator) -> np.ndarray:
    """From 50 pods to 700 within 20 s, a third of the way in, and back over some minutes."""
    del random
    since = np.arange(seconds) - seconds // 3
    return np.asarray(50 + 650 * np.clip(since / 20, 0, 1) * np.exp(-np.maximum(0, since - 120) / 300))


TRACES: Final[dict[str, Trace]] = {
    function.__name__: function for function in (steps, noise, day, bursts, crowd)
}
"""All of them, by name."""


# A rule on a trace, and what came of it.


_HOUR_S: Final = 3600


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of a simulation.

    Attributes:
        missed_percent: Percentage of rows that were late or refused.
        gpu_hours: Of pods that start, serve and drain.
        ups, downs: How often the wanted number grew and shrank.
    """

    missed_percent: float
    gpu_hours: float
    most: int
    ups: int
    downs: int


def simulate(
    rule: Rule, asked: np.ndarray, model: Model, target: float, random: np.random.Generator
) -> Outcome:
    """Let a rule choose the pods of a trace.

    Args:
        rule: Called once per second.
        asked: Load in each second, in fully used pods.
        target: The load of pods at the beginning.
    """
    fleet = Fleet(model, max(1, math.ceil(asked[0] / target)), random)
    most, ups, downs = fleet.replicas, 0, 0
    for pods_asked in asked.tolist():
        for _ in range(round(1 / STEP_S)):
            fleet.step(pods_asked)
        before, wanted = fleet.replicas, rule.decide(fleet)
        if wanted != before:
            fleet.scale(wanted)
            ups += wanted > before
            downs += wanted < before
            most = max(most, wanted)
    return Outcome(100 * fleet.missed / max(1.0, fleet.rows), fleet.pod_s / _HOUR_S, most, ups, downs)


_HEAD: Final = (
    "| trace | rule | missed | GPU hours | most GPUs | changes up, down |\n|---|---|---|---|---|---|"
)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(
        prog="simulate_scaling.py",
        description="Rules that choose the number of pods, on bursty traces: late or refused rows, and GPU hours.",
    )
    made.add_argument("--seconds", type=int, default=1800, help="of each trace (default %(default)s)")
    made.add_argument("--seed", type=int, default=1, help="of arrivals and bursts (default %(default)s)")
    made.add_argument("--target", type=int, default=70, help="wanted load in percent (default %(default)s)")
    made.add_argument("--gpus", type=int, default=1000, help="most pods (default %(default)s)")
    made.add_argument(
        "--start-s", type=float, default=Model().start_s, help="until a pod is ready (default %(default)s)"
    )
    made.add_argument(
        "--traces", nargs="+", choices=TRACES, default=list(TRACES), help="which (default: all)"
    )
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table, a trace after the other."""
    args = parser().parse_args(argv)
    model = Model(start_s=args.start_s)
    policy = ScalingPolicy(1, args.gpus, args.target)
    sys.stdout.write(f"{_HEAD}\n")
    for line in table(args.traces, args.seconds, args.seed, model, policy):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    return 0


def table(
    traces: Sequence[str], seconds: int, seed: int, model: Model, policy: ScalingPolicy
) -> Iterator[str]:
    """Yield a line for each rule on each trace; the same seed gives the same lines."""
    target = policy.target_percent / _PERCENT
    for trace in traces:
        asked = TRACES[trace](seconds, np.random.default_rng(seed))
        for name, rule in rules_for(policy, model, float(asked.max())).items():
            outcome = simulate(rule, asked, model, target, np.random.default_rng(seed))
            yield _line(trace, name, outcome)


def rules_for(policy: ScalingPolicy, model: Model, peak: float) -> dict[str, Rule]:
    """Return the rules by name; `peak` is the maximum load in pods."""
    target = policy.target_percent / _PERCENT
    return {
        "all the time as the peak needs": Fixed(min(policy.max_replicas, math.ceil(peak / target))),
        "stoker autoscale": Stoker(policy),
        "HPA on stoker_load, as rendered": Horizontal(
            policy, down_window_s=60, down_share=0.1, down_period_s=60
        ),
        "HPA on stoker_load, its defaults": Horizontal(policy),
        "HPA on GPU utilisation": Horizontal(policy, utilization=True),
        "Knative on concurrency": Knative(policy, _concurrency(model, target)),
        "Knative on requests a second": Knative(policy, model.capacity_rows_s, by_rate=True),
    }


def _concurrency(model: Model, target: float) -> float:
    """The limit of requests in flight by which Knative's target is that load: somebody has tried it out."""
    rows_s = np.array(target * model.capacity_rows_s)
    return float(rows_s * 1.5 * model.batch_s(rows_s)) / target


def _line(trace: str, rule: str, outcome: Outcome) -> str:
    return (
        f"| {trace} | {rule} | {outcome.missed_percent:.2f} % | {outcome.gpu_hours:.1f} | {outcome.most} | "
        f"{outcome.ups}, {outcome.downs} |"
    )
