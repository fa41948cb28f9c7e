"""The command line of `loadtests/simulate_scaling.py`."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from stoker_bench.scaling.fleet import Model
from stoker_bench.scaling.rules import Fixed, Horizontal, Knative, Rule, Stoker
from stoker_bench.scaling.simulation import Outcome, simulate
from stoker_bench.scaling.traces import TRACES
from stoker_cluster.scaling import ScalingPolicy

__all__ = ["main", "parser", "rules_for", "table"]

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
