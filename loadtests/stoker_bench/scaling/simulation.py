"""A rule on a trace, and what came of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from stoker_bench.scaling.fleet import STEP_S, Fleet, Model
from stoker_bench.scaling.rules import Rule

__all__ = ["Outcome", "simulate"]

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
