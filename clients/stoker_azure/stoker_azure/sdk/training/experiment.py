"""`azureml.core.experiment`: a name for runs that belong together."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Final, Self

from stoker_azure.exceptions import ExperimentExecutionException, NotOffered, UserErrorException
from stoker_azure.sdk.failures import raised_as
from stoker_azure.sdk.labels import Shown, labels
from stoker_azure.sdk.training.hyperdrive_run import HyperDriveRun
from stoker_azure.sdk.training.request import requested
from stoker_azure.sdk.training.run import Run
from stoker_azure.sdk.training.run_configuration import ScriptRunConfig
from stoker_azure.sdk.unoffered import UnofferedMethod
from stoker_azure.sdk.workspace import Workspace
from stoker_run import Run as RunOfScript
from stoker_runs.launch.interactive import InteractiveRun
from stoker_runs.launch.submission import submit
from stoker_runs.records.record import checked_experiment
from stoker_runs.records.store import RunStore
from stoker_runs.tuning.policies import Bandit, MedianStopping, NoTermination, Policy, TruncationSelection
from stoker_runs.tuning.samplers import GRID, RANDOM, new_seed, sampler
from stoker_runs.tuning.spaces import Expression, checked_space, expression
from stoker_runs.tuning.submission import going_on, submit_sweep
from stoker_runs.tuning.terms import Terms, terms

__all__ = [
    "BanditPolicy",
    "BayesianParameterSampling",
    "Experiment",
    "GridParameterSampling",
    "HyperDriveConfig",
    "HyperDriveRun",
    "HyperDriveRunConfig",
    "MedianStoppingPolicy",
    "NoTerminationPolicy",
    "PrimaryMetricGoal",
    "RandomParameterSampling",
    "StartedRun",
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


# `experiment.start_logging()`: a run of the process that has begun it.


_AS_IN_A_SCRIPT: Final = (
    *("log", "log_list", "log_row", "log_table", "log_image", "log_confusion_matrix", "log_accuracy_table"),
    *("log_residuals", "log_predictions", "upload_file", "upload_files", "upload_folder", "add_properties"),
    *("child_run", "create_children"),
)


class StartedRun(Run):
    """A run that this process logs to as a script does, and ends by `complete`, `fail` or as a context.

    Args:
        experiment: Its experiment.
        outputs: A folder whose files become the run's when it ends.
    """

    type = "azureml.interactiverun"

    def __init__(self, experiment: Any, outputs: Path | None) -> None:
        self._begun = InteractiveRun(experiment.workspace.local, experiment.name)
        self._outputs = outputs
        super().__init__(experiment, self._begun.folder.id)
        said = RunOfScript(self._begun.recorder, self.id, experiment)
        # In the place of those that a run has which somebody else runs.
        offered = {name: getattr(said, name) for name in _AS_IN_A_SCRIPT}
        vars(self).update(offered, complete=self._complete, fail=self._fail)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        error = raised[1]
        if error is None:
            self._complete()
        else:
            self._fail(f"{error.__class__.__name__}: {error}")

    def get_status(self) -> str:
        """What it is doing now."""
        return str(self.folder.state().status.value)

    def cancel(self) -> None:
        """Say that it was given up."""
        self._collect()
        self._begun.interrupt()

    def _complete(self) -> None:
        self._collect()
        self._begun.end()

    def _fail(self, error_details: Any = None, error_code: Any = None) -> None:
        del error_code
        self._collect()
        self._begun.end(str(error_details or "the program says that it has failed"))

    def _collect(self) -> None:
        if self._begun.is_open and self._outputs is not None and self._outputs.is_dir():
            shutil.copytree(self._outputs, self.folder.outputs, dirs_exist_ok=True)


# `azureml.train.hyperdrive`: a script that is run with many parameters, and what ends poor runs early.


_A_WEEK_MINUTES = 10_080


class PrimaryMetricGoal(Enum):
    """Which values of the primary metric are better."""

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
    """One of the options, or of a list or range of them."""
    return _expression("choice", *options)


def randint(upper: int) -> Expression:
    """A whole number from 0 up, below `upper`."""
    return _expression("randint", upper)


def uniform(min_value: float, max_value: float) -> Expression:
    """A number between the two."""
    return _expression("uniform", min_value, max_value)


def quniform(min_value: float, max_value: float, q: float) -> Expression:
    """The same, rounded to a multiple of `q`."""
    return _expression("quniform", min_value, max_value, q)


def loguniform(min_value: float, max_value: float) -> Expression:
    """The exponential of a number between the two."""
    return _expression("loguniform", min_value, max_value)


def qloguniform(min_value: float, max_value: float, q: float) -> Expression:
    """The same, rounded to a multiple of `q`."""
    return _expression("qloguniform", min_value, max_value, q)


def normal(mu: float, sigma: float) -> Expression:
    """A number of a normal distribution."""
    return _expression("normal", mu, sigma)


def qnormal(mu: float, sigma: float, q: float) -> Expression:
    """The same, rounded to a multiple of `q`."""
    return _expression("qnormal", mu, sigma, q)


def lognormal(mu: float, sigma: float) -> Expression:
    """The exponential of a number of a normal distribution."""
    return _expression("lognormal", mu, sigma)


def qlognormal(mu: float, sigma: float, q: float) -> Expression:
    """The same, rounded to a multiple of `q`."""
    return _expression("qlognormal", mu, sigma, q)


class _Sampling(Shown):
    """A way to choose parameters.

    Args:
        parameter_space: What each parameter may be, by its name.
        properties: Not used.

    Raises:
        UserErrorException: It cannot choose from this space.
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
    """Not offered."""

    def __init__(self, parameter_space: Mapping[str, Any], properties: Any = None) -> None:
        del parameter_space, properties
        raise NotOffered(
            "Bayesian sampling is not offered: use RandomParameterSampling, with a policy that ends poor runs early, "
            "or GridParameterSampling"
        )


class _EarlyTermination(Shown):
    """What ends poor runs early.

    Attributes:
        policy: The policy of Stoker.
    """

    policy: Policy


class BanditPolicy(_EarlyTermination):
    """Ends what is not within a slack of the best.

    Args:
        evaluation_interval: How many values of the metric lie between two looks.
        slack_factor: The slack as a ratio.
        slack_amount: The slack as a difference.
        delay_evaluation: How many values a run logs before the first look.

    Raises:
        UserErrorException: Not exactly one slack is given, or a number is none.
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
    """Ends what is worse than the median of the others' running averages.

    Args:
        evaluation_interval: How many values of the metric lie between two looks.
        delay_evaluation: How many values a run logs before the first look.
    """

    def __init__(self, evaluation_interval: int = 1, delay_evaluation: int = 0) -> None:
        with raised_as(UserErrorException):
            self.policy = MedianStopping(evaluation_interval, delay_evaluation)


class TruncationSelectionPolicy(_EarlyTermination):
    """Ends the worst part of those that have come as far.

    Args:
        truncation_percentage: The part, in percent.
        evaluation_interval: How many values of the metric lie between two looks.
        delay_evaluation: How many values a run logs before the first look.
        exclude_finished_jobs: Whether a run is compared only with those that go on.
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


class HyperDriveConfig(Shown):
    """A script, and how its runs differ.

    Args:
        hyperparameter_sampling: Chooses the parameters.
        primary_metric_name: The metric by which runs are compared.
        primary_metric_goal: Which of its values are better.
        max_total_runs: How many runs there may be.
        max_concurrent_runs: How many at the same time; all by default.
        max_duration_minutes: After how long the runs that are left are ended.
        policy: Ends poor runs early.
        estimator: The script, as an estimator.
        run_config: The script, as a `ScriptRunConfig`.
        resume_from: Earlier runs of HyperDrive, with whose children these are compared.
        resume_child_runs: Children of those, which go on as the first ones of this one.
        pipeline: Not offered.

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

    def _facts(self) -> dict[str, Any]:
        names = ("run_config", "primary_metric_name", "_goal", "_sampling", "_policy", "_max_total_runs")
        return {name.lstrip("_"): getattr(self, name) for name in (*names, "_max_concurrent_runs")}

    def terms(self, workspace: Workspace) -> Terms:
        """Return what is asked of the sweep; a random one begins with another seed each time.

        Raises:
            OperatorError: A number cannot be, or a run that is to go on is none of HyperDrive's.
        """
        again = going_on(self._resume_child_runs, RunStore(workspace.local.runs_dir))
        minutes = self._max_duration_minutes
        return terms(
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


class Experiment:
    """An experiment. It is there as soon as it has a run.

    Args:
        workspace: Its workspace.
        name: Its name.

    Attributes:
        workspace: Its workspace.
        name: Its name, and its id.

    Raises:
        UserErrorException: It cannot have this name.
    """

    def __init__(self, workspace: Workspace, name: str, **_others: Any) -> None:
        with raised_as(UserErrorException):
            self.name = checked_experiment(name)
        self.id = self.name
        self.workspace = workspace

    def __repr__(self) -> str:
        return f"Experiment(Name: {self.name}, Workspace: {self.workspace.name})"

    def submit(self, config: Any, tags: Mapping[str, Any] | None = None, **_others: Any) -> Run:
        """Have a script run.

        Args:
            config: What is to run: a `ScriptRunConfig`, an estimator, or a `HyperDriveConfig`.
            tags: Labels.

        Raises:
            UserErrorException: The configuration is incomplete, or of another kind.
            ExperimentExecutionException: It cannot run as it is asked for.
        """
        if isinstance(config, HyperDriveConfig):
            return self._tuned(config, labels(tags))
        if not isinstance(config, ScriptRunConfig):
            raise UserErrorException(
                f"{type(config).__name__} cannot be submitted: submit a ScriptRunConfig or an estimator"
            )
        with (
            requested(self.workspace, self.name, config, labels(tags)) as request,
            raised_as(ExperimentExecutionException),
        ):
            folder, _ = submit(request, self.workspace.local)
        return Run(self, folder.id)

    def _tuned(self, config: HyperDriveConfig, tags: Mapping[str, str]) -> HyperDriveRun:
        with raised_as(UserErrorException):
            asked = config.terms(self.workspace)
        with (
            requested(self.workspace, self.name, config.run_config, tags) as request,
            raised_as(ExperimentExecutionException),
        ):
            folder, _ = submit_sweep(request, asked, self.workspace.local)
        return HyperDriveRun(self, folder.id)

    def start_logging(
        self, outputs: str | None = None, snapshot_directory: str | None = ".", **_others: Any
    ) -> StartedRun:
        """Begin a run of this process: a notebook's, say.

        Args:
            outputs: A folder whose files become the run's when it ends.
            snapshot_directory: Not used: what this process runs is not kept.

        Raises:
            ExperimentExecutionException: The workspace cannot be written to.
        """
        del snapshot_directory
        with raised_as(ExperimentExecutionException):
            return StartedRun(self, None if outputs is None else Path(outputs))

    def get_runs(
        self,
        type: str | None = None,  # noqa: A002  # Azure's name
        tags: Any = None,
        properties: Any = None,
        include_children: bool = False,
    ) -> Iterator[Run]:
        """Its runs, the last one first."""
        return Run.list(self, type, tags, properties, None, include_children)

    @staticmethod
    def list(
        workspace: Workspace, experiment_name: str | None = None, **_others: Any
    ) -> Sequence[Experiment]:
        """The experiments of a workspace that have runs, without archived ones."""
        store = RunStore(workspace.local.runs_dir)
        names = [name for name in store.experiments() if name not in store.archived()]
        return [Experiment(workspace, name) for name in names if experiment_name in (None, name)]

    def archive(self) -> None:
        """Take it out of lists; its runs stay.

        Raises:
            UserErrorException: It has no runs yet.
        """
        with raised_as(UserErrorException):
            RunStore(self.workspace.local.runs_dir).archive(self.name)

    def reactivate(self, new_name: str | None = None) -> None:
        """Put it back, under its own name.

        Raises:
            UserErrorException: Another name is given, or it has no runs.
        """
        if new_name not in (None, self.name):
            raise UserErrorException("an experiment keeps its name here: it is in the ids of its runs")
        with raised_as(UserErrorException):
            RunStore(self.workspace.local.runs_dir).archive(self.name, restore=True)

    def get_portal_url(self) -> str:
        """Where its runs are: a folder."""
        return (self.workspace.local.runs_dir / self.name).as_uri()

    tag = UnofferedMethod("tag its runs: run.tag")
    delete = UnofferedMethod("delete its runs: 'stoker runs delete'")
