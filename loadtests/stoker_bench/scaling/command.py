"""The command line of `loadtests/simulate_scaling.py`."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from stoker_bench.scaling.fleet import STEP_S, Fleet, Model
from stoker_bench.scaling.rules import Fixed, Horizontal, Knative, Rule, Stoker
from stoker_cluster.scaling import ScalingPolicy

__all__ = ["TRACES", "Outcome", "Trace", "main", "parser", "rules_for", "simulate", "table"]


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
    """From 50 pods to 700 within 20 s, a third of the way in, and back over some minutes: all come at once."""
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
    """What came of it.

    Attributes:
        missed_percent: Rows that were late or refused, of all.
        gpu_hours: Of pods that start, serve and drain.
        most: The most pods at a time.
        ups, downs: How often there were to be more, and fewer.
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
        rule: It looks once a second.
        asked: What is asked in each second, as pods that are fully at work.
        model: What a pod does.
        target: The load of pods at the beginning.
        random: For arrivals.
    """
    fleet = Fleet(model, max(1, math.ceil(asked[0] / target)), random)
    most, ups, downs = fleet.replicas, 0, 0
    for pods_asked in asked.tolist():
        for _ in range(round(1 / STEP_S)):
            fleet.step(pods_asked)
        before, wanted = fleet.replicas, rule.look(fleet)
        if wanted != before:
            fleet.scale(wanted)
            ups += wanted > before
            downs += wanted < before
            most = max(most, wanted)
    return Outcome(100 * fleet.missed / max(1.0, fleet.rows), fleet.pod_s / _HOUR_S, most, ups, downs)


_PERCENT: Final = 100
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
    """Return the rules by what they are called; `peak` is what is asked at most, in pods."""
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
