"""The next step of a sweep, from the state of its children: pure, so that a killed sweep can go on.

`next_step` takes the state of the children from their folders and returns steps that may be repeated (decision 45).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from stoker.system.wording import format_count
from stoker_runs.records.states import FailureCode, RunFailure, Status
from stoker_runs.tuning.definition import SweepDefinition
from stoker_runs.tuning.policies import Curve, best_of, due_interval, termination_reason


class Child(Struct, frozen=True):
    """The state of a child, as the planner needs it.

    Attributes:
        curve: What it has logged of the primary metric.
        judged: The last interval at which the policy has looked at it.
        logged: Names of all numbers that it has logged, once it has ended.
    """

    status: Status
    curve: Curve = msgspec.field(default_factory=lambda: Curve(()))
    evaluated: int = 0
    is_cancel_requested: bool = False
    failure: RunFailure | None = None
    logged: Sequence[str] = ()


class Step(Struct, frozen=True):
    """The actions of one step.

    Attributes:
        starts: Numbers of the children that are to begin.
        ends: Why children are to be ended, by their numbers.
        judged: The interval at which the policy has looked at a child, by its number.
        is_over: Whether nothing is left to be done, now or later.
    """

    starts: Sequence[int] = ()
    ends: Mapping[int, str] = msgspec.field(default_factory=dict)
    evaluated: Mapping[int, int] = msgspec.field(default_factory=dict)
    is_over: bool = False


class Ending(Struct, frozen=True):
    """How a sweep ends that nobody has cancelled.

    Attributes:
        failure: Why it has failed; None where it is completed.
        reason: What its user should know all the same; empty for nothing.
    """

    failure: RunFailure | None = None
    reason: str = ""


def next_step(
    terms: SweepDefinition, children: Mapping[int, Child], earlier: Sequence[Curve] = (), ending: str = ""
) -> Step:
    """Return what a sweep does next.

    Args:
        earlier: What children of earlier sweeps have logged, with which these are compared.
        ending: Why the whole sweep ends, by its user or its duration; empty while it goes on.
    """
    going_on = {number: child for number, child in children.items() if not _is_over(child)}
    if ending:
        ends = {number: ending for number, child in going_on.items() if not child.is_cancel_requested}
        return Step(ends=ends, is_over=not going_on)
    ends, evaluated = _evaluate(terms, children, earlier)
    missing = [number for number in range(terms.total) if number not in children]
    room = max(0, terms.at_once - len(going_on))
    return Step(missing[:room], ends, evaluated, is_over=not missing and not going_on)


def _evaluate(
    terms: SweepDefinition, children: Mapping[int, Child], earlier: Sequence[Curve]
) -> tuple[dict[int, str], dict[int, int]]:
    ends: dict[int, str] = {}
    evaluated: dict[int, int] = {}
    for number, child in children.items():
        if _is_over(child) or child.is_cancel_requested:
            continue
        interval = due_interval(terms.policy, len(child.curve.values))
        if interval <= child.evaluated:
            continue
        evaluated[number] = interval
        others = [other.curve for of, other in children.items() if of != number]
        reason = termination_reason(terms.policy, terms.goal, child.curve, [*others, *earlier], interval)
        if reason:
            ends[number] = reason
    return ends, evaluated


def _is_over(child: Child) -> bool:
    return child.status in (Status.COMPLETED, Status.FAILED, Status.CANCELED)


def ending_of(terms: SweepDefinition, children: Mapping[int, Child], ending: str = "") -> Ending:
    """Return how a sweep ends after all its children have ended.

    Args:
        children: All that have begun, by their numbers.
        ending: Why it ended before it had all.
    """
    failed = [child.failure for child in children.values() if child.status is Status.FAILED]
    if failed and len(failed) == len(children):
        first = failed[0]
        subject = "the run" if len(failed) == 1 else f"all {len(failed)} runs"
        first_failure = "" if first is None else f", the first one: {first.code}: {first.message}"
        return Ending(
            RunFailure(
                FailureCode.SCRIPT_FAILED,
                f"{subject} of the sweep failed{first_failure}",
                "stoker runs children RUN",
            )
        )
    reasons = [ending] if ending else []
    if ending and len(children) < terms.total:
        reasons.append(f"{len(children)} of {format_count(terms.total, 'run')} had begun")
    if failed:
        reasons.append(f"{len(failed)} of {format_count(len(children), 'run')} failed")
    if children and all(best_of(child.curve.values, terms.goal) is None for child in children.values()):
        reasons.append(_never_logged(terms.metric, children))
    return Ending(reason="; ".join(reasons))


def _never_logged(metric: str, children: Mapping[int, Child]) -> str:
    if any(child.curve.values for child in children.values()):
        return f"no run has logged a finite value of {metric}, so that none is the best"
    names = sorted({name for child in children.values() for name in child.logged})
    there = f"they have logged {', '.join(names[:10])}" if names else "they have logged no numbers at all"
    return f"no run has logged the metric {metric}, so that none is the best; {there}"
