"""`azureml.train.hyperdrive`: a script that runs with many parameters (decision 45), and rules that end poor runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from stoker_azure.exceptions import NotOffered, UserErrorException
from stoker_azure.sdk.base import BaseWorkspace, Printable, raised_as
from stoker_azure.sdk.run import HyperDriveRun
from stoker_azure.sdk.run_configuration import ScriptRunConfig, SweepConfig
from stoker_runs.records.store import RunStore
from stoker_runs.tuning.children import continued_children
from stoker_runs.tuning.definition import (
    BAYESIAN,
    GRID,
    RANDOM,
    Expression,
    SweepDefinition,
    checked_space,
    define_sweep,
    expression,
    new_seed,
    sampler,
)
from stoker_runs.tuning.policies import Bandit, MedianStopping, NoTermination, Policy, TruncationSelection

__all__ = [
    "BanditPolicy",
    "BayesianParameterSampling",
    "GridParameterSampling",
    "HyperDriveConfig",
    "HyperDriveRun",
    "HyperDriveRunConfig",
    "MedianStoppingPolicy",
    "NoTerminationPolicy",
    "PrimaryMetricGoal",
    "RandomParameterSampling",
    "TruncationSelectionPolicy",
    "choice",
    "lognormal",
    "loguniform",
    "normal",
    "qlognormal",
    "qloguniform",
    "qnormal",
    "quniform",
    "randint",
    "uniform",
]

_A_WEEK_MINUTES = 10_080


class PrimaryMetricGoal(Enum):
    """The direction in which the primary metric improves."""

    MAXIMIZE = "MAXIMIZE"
    MINIMIZE = "MINIMIZE"

    @staticmethod
    def from_str(goal: str) -> PrimaryMetricGoal:
        """The goal of this name, in any case."""
        return PrimaryMetricGoal[goal.upper()]


def _expression(kind: str, *arguments: Any) -> Expression:
    with raised_as(UserErrorException):
        return expression(kind, *arguments)


def choice(*options: Any) -> Expression:
    """Choose one of the options, or of a list or range of them."""
    return _expression("choice", *options)


def randint(upper: int) -> Expression:
    """Choose a whole number from 0 to below `upper`."""
    return _expression("randint", upper)


def uniform(min_value: float, max_value: float) -> Expression:
    """Choose a number between the two."""
    return _expression("uniform", min_value, max_value)


def quniform(min_value: float, max_value: float, q: float) -> Expression:
    """Choose the same, rounded to a multiple of `q`."""
    return _expression("quniform", min_value, max_value, q)


def loguniform(min_value: float, max_value: float) -> Expression:
    """Choose the exponential of a number between the two."""
    return _expression("loguniform", min_value, max_value)


def qloguniform(min_value: float, max_value: float, q: float) -> Expression:
    """Choose the same, rounded to a multiple of `q`."""
    return _expression("qloguniform", min_value, max_value, q)


def normal(mu: float, sigma: float) -> Expression:
    """Choose a number of a normal distribution."""
    return _expression("normal", mu, sigma)


def qnormal(mu: float, sigma: float, q: float) -> Expression:
    """Choose the same, rounded to a multiple of `q`."""
    return _expression("qnormal", mu, sigma, q)


def lognormal(mu: float, sigma: float) -> Expression:
    """Choose the exponential of a number of a normal distribution."""
    return _expression("lognormal", mu, sigma)


def qlognormal(mu: float, sigma: float, q: float) -> Expression:
    """Choose the same, rounded to a multiple of `q`."""
    return _expression("qlognormal", mu, sigma, q)


class _Sampling(Printable):
    """A way to choose parameters.

    Args:
        parameter_space: What each parameter may be, by its name.

    Raises:
        UserErrorException: The sampling cannot choose from this space.
    """

    kind: str

    def __init__(self, parameter_space: Mapping[str, Any], properties: Any = None) -> None:
        del properties
        with raised_as(UserErrorException):
            self.parameter_space = checked_space(parameter_space)
            sampler(self.kind, self.parameter_space)


class RandomParameterSampling(_Sampling):
    """Parameters by chance."""

    kind = RANDOM


class GridParameterSampling(_Sampling):
    """Every combination of choices."""

    kind = GRID


class BayesianParameterSampling(_Sampling):
    """Parameters that follow from what the earlier runs have logged."""

    kind = BAYESIAN


class _EarlyTermination(Printable):
    """A policy that ends poor runs early."""

    policy: Policy


class BanditPolicy(_EarlyTermination):
    """Ends runs that are not within a slack of the best.

    Args:
        evaluation_interval: Number of values of the metric between two evaluations.
        slack_factor: The slack as a ratio.
        slack_amount: The slack as a difference.
        delay_evaluation: Number of values of a run before the first evaluation.

    Raises:
        UserErrorException: Not exactly one slack is given, or a number is not allowed.
    """

    def __init__(
        self,
        evaluation_interval: int = 1,
        slack_factor: float | None = None,
        slack_amount: float | None = None,
        delay_evaluation: int = 0,
    ) -> None:
        with raised_as(UserErrorException):
            self.policy = Bandit(slack_factor, slack_amount, evaluation_interval, delay_evaluation)


class MedianStoppingPolicy(_EarlyTermination):
    """Ends runs that are worse than the median of the others' running averages.

    Args:
        evaluation_interval: Number of values of the metric between two evaluations.
        delay_evaluation: Number of values of a run before the first evaluation.
    """

    def __init__(self, evaluation_interval: int = 1, delay_evaluation: int = 0) -> None:
        with raised_as(UserErrorException):
            self.policy = MedianStopping(evaluation_interval, delay_evaluation)


class TruncationSelectionPolicy(_EarlyTermination):
    """Ends the worst part of the runs that have logged as many values.

    Args:
        truncation_percentage: The part, in percent.
        evaluation_interval: Number of values of the metric between two evaluations.
        delay_evaluation: Number of values of a run before the first evaluation.
        exclude_finished_jobs: Compare a run only with running ones.
    """

    def __init__(
        self,
        truncation_percentage: int,
        evaluation_interval: int = 1,
        delay_evaluation: int = 0,
        exclude_finished_jobs: bool = False,
    ) -> None:
        with raised_as(UserErrorException):
            self.policy = TruncationSelection(
                truncation_percentage, evaluation_interval, delay_evaluation, exclude_finished_jobs
            )


class NoTerminationPolicy(_EarlyTermination):
    """Ends nothing early."""

    def __init__(self) -> None:
        self.policy = NoTermination()


class HyperDriveConfig(SweepConfig):
    """A script, and how its runs differ.

    Args:
        primary_metric_name: The metric by which runs are compared.
        primary_metric_goal: Which of its values are better.
        max_concurrent_runs: Largest number of runs at the same time; all by default.
        max_duration_minutes: Minutes after which the remaining runs are ended.
        resume_from: Earlier sweeps, with whose children the new ones are compared.
        resume_child_runs: Children of those, which are continued first.

    Raises:
        UserErrorException: There is no script, or several.
    """

    def __init__(
        self,
        hyperparameter_sampling: _Sampling,
        primary_metric_name: str,
        primary_metric_goal: PrimaryMetricGoal,
        max_total_runs: int,
        max_concurrent_runs: int | None = None,
        max_duration_minutes: float | None = _A_WEEK_MINUTES,
        policy: _EarlyTermination | None = None,
        estimator: ScriptRunConfig | None = None,
        run_config: ScriptRunConfig | None = None,
        resume_from: Any = None,
        resume_child_runs: Any = None,
        pipeline: Any = None,
        **_others: Any,
    ) -> None:
        if pipeline is not None:
            raise NotOffered("a pipeline cannot be tuned: give the script as run_config=ScriptRunConfig(…)")
        given = [one for one in (estimator, run_config) if one is not None]
        if len(given) != 1 or not isinstance(given[0], ScriptRunConfig):
            raise UserErrorException("give the script as run_config=ScriptRunConfig(…), or as an estimator")
        self.run_config = given[0]
        self.primary_metric_name = primary_metric_name
        self._sampling = hyperparameter_sampling
        self._goal = primary_metric_goal
        self._max_total_runs, self._max_concurrent_runs = max_total_runs, max_concurrent_runs
        self._max_duration_minutes = max_duration_minutes
        self._policy = policy
        self._resume_from = [run.id for run in _as_list(resume_from)]
        self._resume_child_runs = [run.id for run in _as_list(resume_child_runs)]

    def _printed(self) -> dict[str, Any]:
        names = ("run_config", "primary_metric_name", "_goal", "_sampling", "_policy", "_max_total_runs")
        return {name.lstrip("_"): getattr(self, name) for name in (*names, "_max_concurrent_runs")}

    def terms(self, workspace: BaseWorkspace) -> SweepDefinition:
        """Return the terms of the sweep; random and Bayesian sampling get a new seed each time.

        Raises:
            OperatorError: A number is not allowed, or a run to resume is not a child of a sweep.
        """
        again = continued_children(self._resume_child_runs, RunStore(workspace.local.runs_dir))
        minutes = self._max_duration_minutes
        return define_sweep(
            sampler(self._sampling.kind, self._sampling.parameter_space, new_seed()),
            self.primary_metric_name,
            getattr(self._goal, "value", self._goal),
            self._max_total_runs,
            self._max_concurrent_runs,
            None if self._policy is None else self._policy.policy,
            max_duration_s=None if minutes is None else minutes * 60.0,
            warm_start=self._resume_from,
            again=again,
        )


HyperDriveRunConfig = HyperDriveConfig


def _as_list(runs: Any) -> Sequence[Any]:
    if runs is None:
        return ()
    return runs if isinstance(runs, list | tuple) else (runs,)
