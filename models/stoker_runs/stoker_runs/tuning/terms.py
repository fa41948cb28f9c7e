"""What was asked of a sweep: how its children differ, what they are compared by, and when it ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from stoker.errors import InvalidSettings
from stoker_runs.tuning.policies import (
    Goal,
    NoTermination,
    Policy,
    policy_from_json,
    policy_to_json,
    read_goal,
)
from stoker_runs.tuning.samplers import Sampler
from stoker_runs.tuning.spaces import Value

__all__ = ["Again", "Terms", "arguments_of", "terms"]

_MOST_RUNS: Final = 100_000


@dataclass(frozen=True, slots=True)
class Again:
    """A child of an earlier sweep that goes on in this one.

    Attributes:
        run: Its id; its outputs are what the new child goes on with.
        parameters: Its parameters, which the new child has too.
    """

    run: str
    parameters: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Terms:
    """One sweep; made by `terms`, which checks it.

    Attributes:
        sampler: Chooses the parameters.
        metric: The primary metric: what children are compared by.
        goal: Which of its values are better.
        max_runs: How many children there are; of a grid no more than it has combinations.
        at_once: How many of them run at the same time.
        policy: Ends poor ones early.
        max_duration_s: After how long no more begin, and those that run are ended; None for never.
        warm_start: Ids of earlier sweeps, with whose children those of this one are compared.
        again: Children of earlier sweeps that go on, as the first ones of this sweep.
    """

    sampler: Sampler
    metric: str
    goal: Goal
    max_runs: int
    at_once: int
    policy: Policy = field(default_factory=NoTermination)
    max_duration_s: float | None = None
    warm_start: Sequence[str] = ()
    again: Sequence[Again] = ()

    @property
    def total(self) -> int:
        """How many children there will be."""
        size = self.sampler.size
        return self.max_runs if size is None else min(self.max_runs, size + len(self.again))

    def parameters(self, number: int) -> dict[str, Value]:
        """The parameters of a child, from 0 up."""
        if number < len(self.again):
            return dict(self.again[number].parameters)
        return self.sampler.parameters(number - len(self.again))

    def resumes(self, number: int) -> str:
        """Id of the run that a child goes on with; empty for none."""
        return self.again[number].run if number < len(self.again) else ""

    def to_json(self) -> dict[str, Any]:
        """Return the `sweep` of `run.json`."""
        return {
            "sampler": self.sampler.to_json(),
            "metric": self.metric,
            "goal": self.goal.value,
            "max_runs": self.max_runs,
            "at_once": self.at_once,
            "policy": policy_to_json(self.policy),
            "max_duration_s": self.max_duration_s,
            "warm_start": list(self.warm_start),
            "again": [{"run": one.run, "parameters": dict(one.parameters)} for one in self.again],
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Terms:
        """Read what `to_json` has written."""
        return cls(
            Sampler.from_json(content["sampler"]),
            str(content["metric"]),
            Goal(content["goal"]),
            int(content["max_runs"]),
            int(content["at_once"]),
            policy_from_json(content["policy"]),
            content["max_duration_s"],
            tuple(content["warm_start"]),
            tuple(Again(str(one["run"]), dict(one["parameters"])) for one in content["again"]),
        )


def terms(
    sampler: Sampler,
    metric: str,
    goal: Any,
    max_runs: int,
    at_once: int | None = None,
    policy: Policy | None = None,
    *,
    max_duration_s: float | None = None,
    warm_start: Sequence[str] = (),
    again: Sequence[Again] = (),
) -> Terms:
    """Return the terms of a sweep.

    Args:
        sampler: Chooses the parameters.
        metric: The primary metric.
        goal: `maximize` or `minimize`, in any case.
        max_runs: How many children there may be.
        at_once: How many at the same time; None for all.
        policy: Ends poor ones early; None ends none.
        max_duration_s: After how long the sweep is ended.
        warm_start: Ids of earlier sweeps.
        again: Children of earlier sweeps that go on.

    Raises:
        InvalidSettings: A number or a name cannot be.
    """
    if not isinstance(metric, str) or not metric:
        raise InvalidSettings("the sweep needs the name of a metric that its script logs, to compare runs by")
    at_once = max_runs if at_once is None else at_once
    _check_numbers(max_runs, at_once, max_duration_s)
    if len(again) > max_runs:
        raise InvalidSettings(
            f"{len(again)} runs are to go on, and the sweep may have {max_runs}; allow it more"
        )
    return Terms(
        sampler,
        metric,
        read_goal(goal),
        max_runs,
        min(at_once, max_runs),
        policy if policy is not None else NoTermination(),
        max_duration_s,
        tuple(warm_start),
        tuple(again),
    )


def _check_numbers(max_runs: Any, at_once: Any, max_duration_s: float | None) -> None:
    for what, number in (("the number of runs", max_runs), ("the number of runs at once", at_once)):
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= _MOST_RUNS:
            raise InvalidSettings(
                f"{what} has to be a whole number from 1 to {_MOST_RUNS:,}, and is {number!r}"
            )
    if max_duration_s is not None and max_duration_s <= 0:
        raise InvalidSettings("the longest duration of a sweep has to be more than 0 s")


def arguments_of(parameters: Mapping[str, Value]) -> list[str]:
    """The words of a command line that give a script its parameters; a name gets the dashes that it lacks."""
    words = []
    for name, value in parameters.items():
        words += [name if name.startswith("-") else f"--{name}", str(value)]
    return words
