"""`azureml.core.run`: a run, seen by the code that has submitted it; its record is a folder (decision 27)."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from msgspec.structs import replace

from stoker_azure.exceptions import (
    ExperimentExecutionException,
    ModelPathNotFoundException,
    UserErrorException,
    WebserviceException,
)
from stoker_azure.sdk.base import BaseWorkspace, Printable, raised_as, text_labels
from stoker_azure.sdk.model import Model
from stoker_azure.sdk.registered_model import refuse_parts
from stoker_azure.sdk.request import make_request
from stoker_azure.sdk.run_configuration import ScriptRunConfig, SweepConfig
from stoker_azure.sdk.run_files import FilesOfRun
from stoker_azure.sdk.run_labels import LabelsOfRun
from stoker_azure.sdk.run_state import StateOfRun
from stoker_azure.sdk.run_waiting import wait_for_run
from stoker_azure.sdk.unoffered import with_unoffered_names
from stoker_run import OfflineRun
from stoker_run import Run as RunOfScript
from stoker_run.records import has_labels, read_metrics
from stoker_runs.errors import SubmissionRefused, UnknownRun
from stoker_runs.launch.interactive import InteractiveRun
from stoker_runs.launch.registration import register_model
from stoker_runs.launch.submission import submit
from stoker_runs.records.folder import RunFolder
from stoker_runs.records.record import SWEEP, RunRecord, checked_experiment
from stoker_runs.records.store import RunStore
from stoker_runs.tuning.children import Trial, definition_of, submit_sweep, trials_of

__all__ = [
    "Experiment",
    "HyperDriveRun",
    "Run",
    "RunDetails",
    "ScriptRun",
    "StartedRun",
    "ViewType",
    "get_run",
    "wait_for_run",
]


_OfflineRun = OfflineRun


@with_unoffered_names
class Run(FilesOfRun, LabelsOfRun, StateOfRun):
    """A run of an experiment.

    Attributes:
        type: `azureml.scriptrun`.
        number: 1 for the experiment's first one.

    Raises:
        UserErrorException: The workspace has no such run.
    """

    type = "azureml.scriptrun"

    def __init__(self, experiment: Any, run_id: str, **_others: Any) -> None:
        self.experiment = experiment
        with raised_as(UserErrorException):
            self.folder: RunFolder = RunStore(experiment.workspace.local.runs_dir).get(run_id)
        self.id = run_id

    def __repr__(self) -> str:
        return f"Run(Experiment: {self.experiment.name}, Id: {self.id}, Status: {self.get_status()})"

    @staticmethod
    def get_context(allow_offline: bool = True, **_others: Any) -> Any:
        """Return the run of this script; outside of a run, an object that prints what it would log."""
        return RunOfScript.get_context(allow_offline)

    @staticmethod
    def get_submitted_run(**others: Any) -> Any:
        """Return `get_context`, by an older name."""
        return Run.get_context(**others)

    @staticmethod
    def list_by_compute(
        compute: Any,
        type: str | None = None,  # noqa: A002  # Azure's name
        tags: Any = None,
        properties: Any = None,
        status: str | None = None,
    ) -> Iterator[Run]:
        """Yield the runs of a compute target in all experiments, the newest first of each; see `list`."""
        for experiment in Experiment.list(compute.workspace, view_type="All"):
            for run in Run.list(experiment, type, tags, properties, status, include_children=True):
                if run.folder.record().definition.target_name == compute.name:
                    yield run

    @staticmethod
    def get(workspace: BaseWorkspace, run_id: str) -> Run:
        """Find a run by its id.

        Raises:
            UserErrorException: The workspace has no such run.
        """
        with raised_as(UserErrorException):
            record = RunStore(workspace.local.runs_dir).get(run_id).record()
        return _run(Experiment(workspace, record.experiment), record)

    @staticmethod
    def list(
        experiment: Any,
        type: str | None = None,  # noqa: A002  # Azure's name
        tags: Any = None,
        properties: Any = None,
        status: str | None = None,
        include_children: bool = False,
        **_others: Any,
    ) -> Iterator[Run]:
        """Yield the runs of an experiment, the newest first.

        Args:
            type: The `type` of a run.
            tags: A name, or values by name, that the run's tags must have.
            properties: The same of its properties.
            include_children: Whether those that are parts of others are listed too.
        """
        store = RunStore(experiment.workspace.local.runs_dir)
        families = [store.folders(experiment.name)]
        if include_children:
            families.append(store.children(experiment.name))
        found = []
        for folder in itertools.chain(*families):
            with contextlib.suppress(UnknownRun):
                found.append((folder.record(), folder))
        for record, folder in sorted(found, key=lambda one: (one[0].created_ms, one[0].id), reverse=True):
            if not include_children and record.parent:
                continue
            if has_labels(folder.tags(), tags) and has_labels(folder.properties(), properties):
                run = _run(experiment, record)
                if type in (None, run.type) and status in (None, run.get_status()):
                    yield run

    @property
    def number(self) -> int:
        """The run's number in its experiment, from 1."""
        created = self.folder.record().created_ms
        store = RunStore(self.experiment.workspace.local.runs_dir)
        return sum(folder.record().created_ms <= created for folder in store.folders(self.experiment.name))

    @property
    def parent(self) -> Run | None:
        """The parent run; None if the run has none."""
        parent = self.folder.record().parent
        return Run.get(self.experiment.workspace, parent) if parent else None

    @property
    def portal_url(self) -> str:
        """The URI of the run's folder."""
        return self.get_portal_url()

    def get_metrics(
        self,
        name: str | None = None,
        recursive: bool = False,
        run_type: str | None = None,
        populate: bool = False,
    ) -> dict[str, Any]:
        """Return the logged metrics: a value by name, or the list of values where several were logged.

        Args:
            name: Of one metric.
            recursive: By the ids of the run and of all below it, each with its metrics.
            run_type: The `type` of the runs below it.
            populate: Not used: values are never elsewhere.
        """
        del populate
        found = read_metrics(self.folder.metric_lines())
        if name is not None:
            found = {name: found[name]} if name in found else {}
        if not recursive:
            return found
        below = self.get_children(recursive=True, type=run_type)
        return {self.id: found} | {run.id: run.get_metrics(name) for run in below}

    def get_children(
        self,
        recursive: bool = False,
        tags: Any = None,
        properties: Any = None,
        type: str | None = None,  # noqa: A002  # Azure's name
        status: str | None = None,
        **_others: Any,
    ) -> Iterator[Run]:
        """Yield the child runs, the newest first: runs of a sweep, and those that the script has begun.

        Args:
            recursive: With their children.
        """
        store = RunStore(self.experiment.workspace.local.runs_dir)
        for run in Run.list(self.experiment, type, tags, properties, status, include_children=True):
            above = run.folder.record().parent
            # A run in between may have been deleted.
            with contextlib.suppress(UnknownRun):
                while recursive and above not in ("", self.id):
                    above = store.get(above).record().parent
            if above == self.id:
                yield run

    def register_model(
        self,
        model_name: str,
        model_path: str | None = None,
        tags: Mapping[str, Any] | None = None,
        properties: Mapping[str, Any] | None = None,
        description: str | None = None,
        *,
        model_framework: str | None = None,
        model_framework_version: str | None = None,
        datasets: Any = None,
        sample_input_dataset: Any = None,
        sample_output_dataset: Any = None,
        resource_configuration: Any = None,
    ) -> Model:
        """Register a file or folder of the run as the next version of a model.

        Args:
            model_path: Name of the file or folder among the run's; by default the model's.
            properties: Labels, beside those that say which run it came from.
            model_framework: Whether a pickle is a model of scikit-learn; else not used.
            model_framework_version: Not used: the files tell.
            resource_configuration: Not used: nothing is sized by it here.

        Raises:
            NotOffered: A data set is given.
            ModelPathNotFoundException: The run has no such file; the message lists those that it has.
            WebserviceException: It cannot be registered.
        """
        del model_framework_version, resource_configuration
        refuse_parts(datasets, samples=(sample_input_dataset, sample_output_dataset))
        with raised_as(WebserviceException):
            try:
                registered = register_model(
                    self.experiment.workspace.local,
                    self.folder,
                    model_name,
                    model_path,
                    framework="sklearn" if model_framework == "ScikitLearn" else None,
                    description=description or "",
                    tags=text_labels(tags),
                    properties=text_labels(properties),
                )
            except SubmissionRefused as error:
                raise ModelPathNotFoundException(str(error)) from error
        return Model(self.experiment.workspace, registered.name, version=registered.version)

    def submit_child(self, config: Any, tags: Mapping[str, Any] | None = None, **others: Any) -> Run:
        """Submit a script as a child of this run; see `Experiment.submit`."""
        return Experiment(self.experiment.workspace, self.experiment.name).submit(
            config, tags, _parent=self.id, **others
        )

    def get_portal_url(self) -> str:
        """Return the URI of the run's folder."""
        return self.folder.path.as_uri()

    def flush(self, timeout_seconds: float = 300) -> None:
        """Do nothing: values are written when they are logged."""


ScriptRun = Run


def get_run(experiment: Any, run_id: str, rehydrate: bool = True, clean_up: bool = True) -> Run:
    """Return a run of an experiment; see `Run.get`."""
    del rehydrate, clean_up
    return Run.get(experiment.workspace, run_id)


def _run(experiment: Any, record: RunRecord) -> Run:
    """Return a run as an object of the class of its kind."""
    if record.kind == SWEEP:
        return HyperDriveRun(experiment, record.id)
    return Run(experiment, record.id)


class HyperDriveRun(Run):
    """A sweep: a run whose children run one script with different parameters.

    Attributes:
        type: `hyperdrive`.

    Raises:
        UserErrorException: The workspace has no such run.
    """

    type = "hyperdrive"

    def __init__(self, experiment: Any, run_id: str, hyperdrive_config: Any = None, **_others: Any) -> None:
        super().__init__(experiment, run_id)
        self._config = hyperdrive_config

    def _trials(self, *, with_earlier: bool = False) -> list[Trial]:
        store = RunStore(self.experiment.workspace.local.runs_dir)
        return trials_of(self.folder, store, with_earlier=with_earlier)

    def get_best_run_by_primary_metric(
        self,
        include_failed: bool = True,
        include_canceled: bool = True,
        include_resume_from_runs: bool = True,
    ) -> Run | None:
        """Return the child with the best value of the primary metric; None, with a line, if no child logged it.

        Args:
            include_failed: Whether it may be one that has failed.
            include_canceled: Whether it may be one that was ended.
            include_resume_from_runs: Whether it may be one of the runs with whose children these were compared.
        """
        left_out = {"Failed": not include_failed, "Canceled": not include_canceled}
        trials = self._trials(with_earlier=include_resume_from_runs)
        for trial in trials:
            if trial.best is not None and not left_out.get(trial.status.value):
                return Run.get(self.experiment.workspace, trial.id)
        metric = definition_of(self.folder.record()).metric
        names = sorted({name for run in self.get_children() for name in run.get_metrics()})
        print(f"No run has logged the metric {metric}; they have logged: {', '.join(names) or 'none'}")
        return None

    def get_children_sorted_by_primary_metric(
        self, top: int = 0, reverse: bool = False, discard_no_metric: bool = False
    ) -> Sequence[dict[str, Any]]:
        """Return the children with their parameters and best values, the best first.

        Args:
            top: How many; 0 is all.
            reverse: The worst first; those without a value stay last.
            discard_no_metric: Leave those without a value out.
        """
        trials = self._trials()
        valued = [trial for trial in trials if trial.best is not None]
        others = [] if discard_no_metric else [trial for trial in trials if trial.best is None]
        found = [
            {
                "run_id": trial.id,
                "hyperparameters": json.dumps(trial.parameters),
                "best_primary_metric": trial.best,
                "status": trial.status.value,
            }
            for trial in [*(reversed(valued) if reverse else valued), *others]
        ]
        return found[:top] if top else found

    def get_hyperparameters(self) -> dict[str, str]:
        """Return the parameters of all children as JSON, by id."""
        trials = sorted(self._trials(), key=lambda trial: trial.number)
        return {trial.id: json.dumps(trial.parameters) for trial in trials}

    def get_metrics(
        self,
        name: str | None = None,
        recursive: bool = False,
        run_type: str | None = None,
        populate: bool = False,
    ) -> dict[str, Any]:
        """Return the metrics of the children, by id; with `recursive` of all runs below it."""
        del populate
        return {run.id: run.get_metrics(name) for run in self.get_children(recursive, type=run_type)}


_AS_IN_A_SCRIPT: Final = (
    *("log", "log_list", "log_row", "log_table", "log_image", "log_confusion_matrix", "log_accuracy_table"),
    *("log_residuals", "log_predictions", "upload_file", "upload_files", "upload_folder", "add_properties"),
    *("child_run", "create_children", "start"),
)


class StartedRun(Run):
    """A run that this process logs to, as a script does; `complete`, `fail` or leaving the context ends it.

    Args:
        outputs: A folder whose files become the run's when it ends.
    """

    type = "azureml.interactiverun"

    def __init__(self, experiment: Any, outputs: Path | None) -> None:
        self._begun = InteractiveRun(experiment.workspace.local, experiment.name)
        self._outputs = outputs
        super().__init__(experiment, self._begun.folder.id)
        run = RunOfScript(self._begun.recorder, self.id, experiment)
        # In the place of those that a run has which somebody else runs.
        offered = {name: getattr(run, name) for name in _AS_IN_A_SCRIPT}
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
        """Return the status now."""
        return str(self.folder.state().status.value)

    def cancel(self) -> None:
        """End the run as canceled."""
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


_ACTIVE: Final = "ActiveOnly"
_ARCHIVED: Final = "ArchivedOnly"
_ALL: Final = "All"


class ViewType:
    """Views of `Experiment.list`."""

    ActiveOnly = _ACTIVE
    ArchivedOnly = _ARCHIVED
    All = _ALL


@with_unoffered_names
class Experiment:
    """A name for runs that belong together. An experiment exists as soon as it has a run.

    Attributes:
        name: Its name, and its id.

    Raises:
        UserErrorException: It cannot have this name.
    """

    def __init__(self, workspace: BaseWorkspace, name: str, **_others: Any) -> None:
        with raised_as(UserErrorException):
            self.name = checked_experiment(name)
        self.id = self.name
        self.workspace = workspace

    def __repr__(self) -> str:
        return f"Experiment(Name: {self.name}, Workspace: {self.workspace.name})"

    def submit(
        self, config: Any, tags: Mapping[str, Any] | None = None, *, _parent: str = "", **others: Any
    ) -> Run:
        """Submit a script.

        Args:
            config: What is to run: a `ScriptRunConfig`, an estimator, or a `HyperDriveConfig`.

        Raises:
            UserErrorException: The configuration is incomplete, or of another kind.
            ExperimentExecutionException: It cannot run as it is asked for.
        """
        if others:
            raise UserErrorException(
                f"submit takes a configuration and tags, not {', '.join(others)}: set it in the configuration"
            )
        if isinstance(config, SweepConfig):
            return self._submit_sweep(config, text_labels(tags), _parent)
        if not isinstance(config, ScriptRunConfig):
            raise UserErrorException(
                f"{type(config).__name__} cannot be submitted: submit a ScriptRunConfig or an estimator"
            )
        with (
            make_request(self.workspace, self.name, config, text_labels(tags)) as request,
            raised_as(ExperimentExecutionException),
        ):
            folder, _ = submit(replace(request, parent=_parent), self.workspace.local)
        return Run(self, folder.id)

    def _submit_sweep(self, config: SweepConfig, tags: Mapping[str, str], parent: str) -> HyperDriveRun:
        with raised_as(UserErrorException):
            definition = config.terms(self.workspace)
        with (
            make_request(self.workspace, self.name, config.run_config, tags) as request,
            raised_as(ExperimentExecutionException),
        ):
            folder, _ = submit_sweep(replace(request, parent=parent), definition, self.workspace.local)
        return HyperDriveRun(self, folder.id)

    def start_logging(
        self,
        outputs: str | None = None,
        snapshot_directory: str | None = ".",
        display_name: str | None = None,
        **_others: Any,
    ) -> StartedRun:
        """Start a run of this process, such as a notebook.

        Args:
            outputs: A folder whose files become the run's when it ends.
            snapshot_directory: Not used: what this process runs is not kept.
            display_name: A name beside the id.

        Raises:
            ExperimentExecutionException: The workspace cannot be written to.
        """
        del snapshot_directory
        with raised_as(ExperimentExecutionException):
            run = StartedRun(self, None if outputs is None else Path(outputs))
        if display_name:
            run.display_name = display_name
        return run

    def get_runs(
        self,
        type: str | None = None,  # noqa: A002  # Azure's name
        tags: Any = None,
        properties: Any = None,
        include_children: bool = False,
    ) -> Iterator[Run]:
        """Yield the runs, the newest first."""
        return Run.list(self, type, tags, properties, None, include_children)

    @staticmethod
    def list(
        workspace: BaseWorkspace,
        experiment_name: str | None = None,
        view_type: str = _ACTIVE,
        tags: Any = None,
    ) -> Sequence[Experiment]:
        """Return the experiments of a workspace that have runs.

        Args:
            view_type: `ActiveOnly`, those that are not archived; `ArchivedOnly` or `All`.
            tags: Experiments have none: with any wanted, none is returned.

        Raises:
            UserErrorException: There is no such view.
        """
        if view_type not in (_ACTIVE, _ARCHIVED, _ALL):
            raise UserErrorException(f"view_type is {view_type!r}; it is {_ACTIVE}, {_ARCHIVED} or {_ALL}")
        store = RunStore(workspace.local.runs_dir)
        archived = store.archived()
        kept = {_ACTIVE: lambda name: name not in archived, _ARCHIVED: lambda name: name in archived}
        names = [] if tags else [*filter(kept.get(view_type, bool), store.experiments())]
        return [Experiment(workspace, name) for name in names if experiment_name in (None, name)]

    @property
    def tags(self) -> dict[str, str]:
        """Empty: its runs have tags."""
        return {}

    @property
    def workspace_object(self) -> BaseWorkspace:
        """The workspace, by an older name."""
        return self.workspace

    @property
    def portal_url(self) -> str:
        """The URI of the folder with the runs."""
        return self.get_portal_url()

    def refresh(self) -> None:
        """Do nothing: attributes are looked up when they are read."""

    def archive(self) -> None:
        """Leave the experiment out of lists; its runs stay.

        Raises:
            UserErrorException: It has no runs yet.
        """
        with raised_as(UserErrorException):
            RunStore(self.workspace.local.runs_dir).archive(self.name)

    def reactivate(self, new_name: str | None = None) -> None:
        """Show the experiment in lists again, under its own name.

        Raises:
            UserErrorException: Another name is given, or it has no runs.
        """
        if new_name not in (None, self.name):
            raise UserErrorException("an experiment keeps its name here: it is in the ids of its runs")
        with raised_as(UserErrorException):
            RunStore(self.workspace.local.runs_dir).archive(self.name, restore=True)

    def get_portal_url(self) -> str:
        """Return the URI of the folder with the runs."""
        return (self.workspace.local.runs_dir / self.name).as_uri()


class RunDetails(Printable):
    """Shows a run as lines of text."""

    def __init__(self, run_instance: Run) -> None:
        self._run = run_instance

    def _printed(self) -> dict[str, Run]:
        return {"run": self._run}

    def show(self, render_lib: object = None, widget_settings: object = None) -> None:
        """Print the status and the target of the run."""
        del render_lib, widget_settings
        details = self._run.get_details()
        print(f"{details['runId']}: {details['status']} on {details['target']}")
        print(f"stoker runs logs {details['runId']} -f")

    def get_widget_data(self) -> dict[str, object]:
        """Return the details of the run."""
        return self._run.get_details()
