"""Early termination: whether a child of a sweep is so much worse than the others that it is ended.

Each value of the primary metric that a child logs is one interval. A policy looks at the multiples of its
`evaluation_interval` from `delay_evaluation` on, and compares a child with what the others had at the same interval,
those that have ended among them. So a child is never ended for being younger. What a child has then is the best of
its values so far; one that is not finite is worse than every number.

Source: azureml.train.hyperdrive.policy. Where Azure divides by `1 + slack_factor`, a metric below 0 would end the
best child itself: there the two goals change places.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from statistics import fmean, median
from typing import Any, Final

import msgspec
from msgspec import Struct

from stoker.errors import InvalidSettings
from stoker.system.wording import format_count
from stoker_runs.records.serialization import Record


class Goal(StrEnum):
    """The direction in which the primary metric improves."""

    MAXIMIZE = "maximize"
    MINIMIZE = "minimize"

    @property
    def sign(self) -> float:
        """The factor that makes greater values better."""
        return 1.0 if self is Goal.MAXIMIZE else -1.0


def read_goal(text: Any) -> Goal:
    """Return the goal that a text names, in any case."""
    try:
        return Goal(str(text).lower())
    except ValueError:
        raise InvalidSettings(f"the goal {text!r} has to be maximize or minimize") from None


class Curve(Struct, frozen=True):
    """The primary metric of a child, as it was logged.

    Attributes:
        number: Which child of its sweep, from 0 up.
    """

    values: Sequence[float]
    is_over: bool = False
    number: int = 0


def _check_intervals(evaluation_interval: int, delay_evaluation: int) -> None:
    for name, value, least in (
        ("evaluation_interval", evaluation_interval, 1),
        ("delay_evaluation", delay_evaluation, 0),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InvalidSettings(f"{name} has to be a whole number from {least} up, and is {value!r}")


class NoTermination(Record, frozen=True, tag_field="name", tag="none"):
    """Nothing is ended early."""

    evaluation_interval: int = 1
    delay_evaluation: int = 0

    def keeps(self, run: Curve, others: Sequence[Curve], interval: int, sign: float) -> bool:
        """Always."""
        del run, others, interval, sign
        return True


class Bandit(Record, frozen=True, tag_field="name", tag="bandit"):
    """Ends what is not within a slack of the best.

    Attributes:
        slack_factor: The slack as a ratio: with 0.2 and a best of 0.8, what is below 0.8 / 1.2 is ended.
        slack_amount: The slack as a difference: with 0.2 and a best of 0.8, what is below 0.6 is ended.
        evaluation_interval: How many values lie between two looks.
        delay_evaluation: How many values a child logs before the first look.

    Raises:
        InvalidSettings: Not exactly one slack is given, or a number is none.
    """

    slack_factor: int | float | None = None
    slack_amount: int | float | None = None
    evaluation_interval: int = 1
    delay_evaluation: int = 0

    def __post_init__(self) -> None:
        _check_intervals(self.evaluation_interval, self.delay_evaluation)
        given = [slack for slack in (self.slack_factor, self.slack_amount) if slack is not None]
        if len(given) != 1:
            raise InvalidSettings("a bandit policy needs either slack_factor or slack_amount")
        (slack,) = given
        if isinstance(slack, bool) or not isinstance(slack, int | float) or not 0 <= slack < math.inf:
            raise InvalidSettings(f"the slack has to be a number from 0 up, and is {slack!r}")

    def keeps(self, run: Curve, others: Sequence[Curve], interval: int, sign: float) -> bool:
        """Whether it is within the slack of the best at this interval."""
        there = _best_until(run, interval, sign)
        best = max([there, *(_best_until(other, interval, sign) for other in others)])
        if best == -math.inf:
            return True
        if self.slack_amount is not None:
            return there >= best - self.slack_amount
        assert self.slack_factor is not None
        ratio = 1 + self.slack_factor
        return there >= (best / ratio if best > 0 else best * ratio)


class MedianStopping(Record, frozen=True, tag_field="name", tag="median_stopping"):
    """Ends what is worse than the median of the others' running averages.

    Attributes:
        evaluation_interval: How many values lie between two looks.
        delay_evaluation: How many values a child logs before the first look.
    """

    evaluation_interval: int = 1
    delay_evaluation: int = 0

    def __post_init__(self) -> None:
        _check_intervals(self.evaluation_interval, self.delay_evaluation)

    def keeps(self, run: Curve, others: Sequence[Curve], interval: int, sign: float) -> bool:
        """Whether its best is no worse than the median of all averages up to this interval, its own among them."""
        averages = [_average_until(one, interval, sign) for one in (run, *others)]
        return _best_until(run, interval, sign) >= median(averages)


class TruncationSelection(Record, frozen=True, tag_field="name", tag="truncation_selection"):
    """Ends the worst part of the children that have logged as many values.

    Of n children, the worst floor(n · percentage / 100) are; of equal ones at the border none is.

    Attributes:
        truncation_percentage: The part in percent, from 1 to 99.
        evaluation_interval: How many values lie between two looks.
        delay_evaluation: How many values a child logs before the first look.
        exclude_finished_jobs: Whether a child is compared only with those that go on.
    """

    truncation_percentage: int
    evaluation_interval: int = 1
    delay_evaluation: int = 0
    exclude_finished_jobs: bool = False

    def __post_init__(self) -> None:
        _check_intervals(self.evaluation_interval, self.delay_evaluation)
        part = self.truncation_percentage
        if isinstance(part, bool) or not isinstance(part, int) or not 1 <= part <= 99:
            raise InvalidSettings(
                f"truncation_percentage has to be a whole number from 1 to 99, and is {part!r}"
            )

    def keeps(self, run: Curve, others: Sequence[Curve], interval: int, sign: float) -> bool:
        """Whether it is not among the worst at this interval."""
        compared = [other for other in others if not (self.exclude_finished_jobs and other.is_over)]
        there = _best_until(run, interval, sign)
        count = len(compared) + 1
        cut = count * self.truncation_percentage // 100
        better = sum(_best_until(other, interval, sign) > there for other in compared)
        return better < count - cut


class Hyperband(Record, frozen=True, tag_field="name", tag="hyperband"):
    """Successive halving in brackets: at each rung all but the best children of a bracket are ended.

    A rung is a number of logged values: `min_values` times a power of `reduction_factor`, below `max_values`. Each
    bracket skips one rung more than the bracket before. A child is compared with those of its bracket that have
    reached the rung, so no child waits for another.
    Sources: Li et al., "Hyperband", 2018, for the brackets and their sizes; Li et al., "A System for Massively
    Parallel Hyperparameter Tuning", 2020, for rungs without waiting.

    Attributes:
        max_values: How many values a child logs that is not ended.
        min_values: How many values a child of the first bracket logs before the first look.
        reduction_factor: Of so many children, one goes on at each rung.

    Raises:
        InvalidSettings: A number is none, or leaves no rung.
    """

    max_values: int
    min_values: int = 1
    reduction_factor: int = 3

    def __post_init__(self) -> None:
        for name, least in (("max_values", 2), ("min_values", 1), ("reduction_factor", 2)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InvalidSettings(f"{name} has to be a whole number from {least} up, and is {value!r}")
        if not self.rungs:
            raise InvalidSettings(
                f"min_values {self.min_values} has to be below max_values {self.max_values}: nothing would be ended"
            )

    @property
    def rungs(self) -> list[int]:
        """After how many values children are looked at, in ascending order."""
        found = [self.min_values]
        while found[-1] < self.max_values:
            found.append(found[-1] * self.reduction_factor)
        return found[:-1]

    def first_rung(self, number: int) -> int:
        """Return the place of the rung at which a child is first looked at: its bracket."""
        last = len(self.rungs)
        sizes = [
            math.ceil((last + 1) / (kept + 1) * self.reduction_factor**kept) for kept in range(last, -1, -1)
        ]
        place = number % sum(sizes)
        bracket = 0
        while place >= sizes[bracket]:
            place -= sizes[bracket]
            bracket += 1
        return bracket

    def keeps(self, run: Curve, others: Sequence[Curve], interval: int, sign: float) -> bool:
        """Whether it is among the best of its bracket at this rung."""
        bracket = self.first_rung(run.number)
        if interval < (*self.rungs, math.inf)[bracket]:
            return True
        compared = [other for other in others if self.first_rung(other.number) == bracket]
        there = _best_until(run, interval, sign)
        better = sum(_best_until(other, interval, sign) > there for other in compared)
        return better < max(1, (len(compared) + 1) // self.reduction_factor)


Policy = NoTermination | Bandit | MedianStopping | TruncationSelection | Hyperband
POLICIES: Final[Mapping[str, type[Policy]]] = {
    str(kind.__struct_config__.tag): kind
    for kind in (NoTermination, Bandit, MedianStopping, TruncationSelection, Hyperband)
}
"""All policies, by the names that files have."""


def due_interval(policy: Policy, count: int) -> int:
    """Return the last interval at which a policy evaluates a child with so many values; 0 for none yet."""
    if isinstance(policy, Hyperband):
        return max((rung for rung in policy.rungs if rung <= count), default=0)
    interval = count - count % policy.evaluation_interval
    return interval if interval >= max(policy.delay_evaluation, 1) else 0


def termination_reason(policy: Policy, goal: Goal, run: Curve, others: Sequence[Curve], interval: int) -> str:
    """Return why a policy ends a child; empty if it does not.

    Args:
        run: What the child has logged, `interval` values or more.
        others: What the others have; those that have not come as far are not compared with it.
        interval: One that `due_interval` gave.
    """
    compared = [other for other in others if len(other.values) >= interval]
    if policy.keeps(run, compared, interval, goal.sign):
        return ""
    best = best_of(run.values[:interval], goal)
    values = format_count(interval, "value")
    return f"{policy_text(policy)}: {'NaN' if best is None else format(best, '.6g')} after {values}"


def best_of(values: Sequence[float], goal: Goal) -> float | None:
    """The best finite value; None where there is none."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None
    return max(finite) if goal is Goal.MAXIMIZE else min(finite)


def _best_until(run: Curve, interval: int, sign: float) -> float:
    values = (sign * value for value in run.values[:interval] if math.isfinite(value))
    return max(values, default=-math.inf)


def _average_until(run: Curve, interval: int, sign: float) -> float:
    values = [sign * value for value in run.values[:interval] if math.isfinite(value)]
    # The rounded mean of equal values may be above all of them, which would end the best child.
    return min(fmean(values), max(values)) if values else -math.inf


def policy_text(policy: Policy) -> str:
    """Return a policy with its settings, as reasons and listings show it."""
    unsaid = {("delay_evaluation", 0), ("exclude_finished_jobs", False)}
    given = [
        one for one in msgspec.structs.asdict(policy).items() if one[1] is not None and one not in unsaid
    ]
    return f"{type(policy).__name__}({', '.join(f'{name}={value}' for name, value in given)})"
