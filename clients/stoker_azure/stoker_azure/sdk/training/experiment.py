"""`azureml.core.experiment`: a name for runs that belong together."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from stoker_azure.exceptions import ExperimentExecutionException, UserErrorException
from stoker_azure.sdk.failures import raised_as
from stoker_azure.sdk.labels import labels
from stoker_azure.sdk.training.hyperdrive import HyperDriveConfig
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
from stoker_runs.tuning.children import submit_sweep

__all__ = ["Experiment", "StartedRun"]


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
