"""`azureml.core.run`: a run, seen by the code that has submitted it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from stoker.errors import SubmissionRefused, UnknownRun
from stoker_azure.exceptions import ModelPathNotFoundException, UserErrorException, WebserviceException
from stoker_azure.sdk import deferred
from stoker_azure.sdk.failures import raised_as
from stoker_azure.sdk.labels import labels
from stoker_azure.sdk.training.waiting import wait_for
from stoker_azure.sdk.unoffered import UnofferedMethod
from stoker_azure.sdk.workspace import Workspace
from stoker_run import OfflineRun
from stoker_run import Run as RunOfScript
from stoker_run.records import read_metrics
from stoker_runs.launch.runners import adopt
from stoker_runs.records.folder import RunFolder, copy_files, find_file, run_files
from stoker_runs.records.record import SWEEP, RunRecord
from stoker_runs.records.snapshots import SnapshotStore
from stoker_runs.records.store import RunStore

__all__ = ["Run", "ScriptRun"]


# Files of a run, for the code that has submitted it.


class _FilesOfRun:
    """A run's logs, outputs, uploads, and the files that it was submitted with.

    Attributes:
        id: The run's id.
        folder: Its folder.
        experiment: Its experiment.
    """

    id: str
    folder: RunFolder
    experiment: Any

    def get_file_names(self) -> Sequence[str]:
        """Names of its files: logs, `outputs/`, `logs/`, and what was uploaded."""
        return [*run_files(self.folder)]

    def download_file(self, name: str, output_file_path: str | None = None, **_others: Any) -> None:
        """Copy one of its files, by default into the current directory.

        Raises:
            UserErrorException: It has none of this name.
        """
        with raised_as(UserErrorException):
            source = find_file(self.folder, name)
        target = Path(output_file_path or source.name)
        target = target / source.name if target.is_dir() else target
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)

    def download_files(
        self,
        prefix: str | None = None,
        output_directory: str | None = None,
        output_paths: Sequence[str] | None = None,
        batch_size: int = 100,
        append_prefix: bool = True,
        timeout_seconds: int | None = None,
    ) -> None:
        """Copy its files into a folder, at their names.

        Args:
            prefix: How the names begin; all by default.
            output_directory: The folder; the current one by default.
            output_paths: Not offered.
            batch_size: Not used.
            append_prefix: Whether the prefix stays a part of the path.
            timeout_seconds: Not used.
        """
        del output_paths, batch_size, timeout_seconds
        place = Path(output_directory or ".")
        start = prefix or ""
        if append_prefix or not start:
            copy_files(self.folder, start, place)
            return
        for name, path in run_files(self.folder).items():
            if name.startswith(start):
                target = place / name[len(start) :].lstrip("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)

    def get_all_logs(self, destination: str | None = None) -> Sequence[str]:
        """Copy its logs into a folder; returns their paths."""
        place = Path(destination or self.id)
        return [str(place / name) for name in copy_files(self.folder, "azureml-logs/", place)]

    def get_snapshot_id(self) -> str:
        """Digest of the files that it was submitted with."""
        return self.folder.record().snapshot

    def restore_snapshot(self, snapshot_id: str | None = None, path: str | None = None) -> str:
        """Write the files that it was submitted with into a folder; returns its path.

        Raises:
            UserErrorException: They are not there any more, or the folder is.
        """
        place = Path(path or self.id).absolute()
        store = SnapshotStore(self.experiment.workspace.local.snapshots_dir)
        with raised_as(UserErrorException):
            store.restore(snapshot_id or self.get_snapshot_id(), place)
        return str(place)


_OfflineRun = OfflineRun
_IN_SCRIPTS: Final = (
    "a script logs to its own run (Run.get_context()), a notebook to one that it has begun "
    "(experiment.start_logging())"
)


class Run(_FilesOfRun):
    """A run of an experiment.

    Args:
        experiment: Its experiment.
        run_id: Its id.

    Attributes:
        folder: Its folder on this machine.
        type: `azureml.scriptrun`.
        number: 1 for the experiment's first one.

    Raises:
        UserErrorException: There is no such run.
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
        """The run of this process, if it is one of a script; else an object that prints what it would log."""
        return RunOfScript.get_context(allow_offline)

    @staticmethod
    def get(workspace: Workspace, run_id: str) -> Run:
        """A run by its id.

        Raises:
            UserErrorException: There is none.
        """
        with raised_as(UserErrorException):
            record = RunStore(workspace.local.runs_dir).get(run_id).record()
        return _run(deferred.experiment.Experiment(workspace, record.experiment), record)

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
        """The runs of an experiment, the last one first.

        Args:
            experiment: The experiment.
            type: Not used: all are scripts'.
            tags: A name, or values by name, that the run's tags must have.
            properties: The same of its properties.
            status: What it must be doing.
            include_children: Whether those that are parts of others are listed too.
        """
        del type
        store = RunStore(experiment.workspace.local.runs_dir)
        found = []
        for folder in store.folders(experiment.name):
            try:
                found.append((folder.record().created_ms, folder.id, folder))
            except UnknownRun:
                continue
        for _, _, folder in sorted(found, key=lambda one: one[:2], reverse=True):
            if not include_children and folder.record().parent:
                continue
            if _has(folder.tags(), tags) and _has(folder.properties(), properties):
                run = _run(experiment, folder.record())
                if status is None or run.get_status() == status:
                    yield run

    # --- what it is doing ---

    @property
    def status(self) -> str:
        """What it is doing, in Azure's words."""
        return self.get_status()

    @property
    def number(self) -> int:
        """Which one of the experiment's it is, from 1 up."""
        created = self.folder.record().created_ms
        store = RunStore(self.experiment.workspace.local.runs_dir)
        return sum(folder.record().created_ms <= created for folder in store.folders(self.experiment.name))

    @property
    def parent(self) -> Run | None:
        """The run that it is a part of."""
        parent = self.folder.record().parent
        return Run.get(self.experiment.workspace, parent) if parent else None

    @property
    def display_name(self) -> str:
        """The name that the script has given it, else its id."""
        names = [line.get("v") for line in self.folder.event_lines() if line.get("e") == "name"]
        return str(names[-1]) if names else self.id

    name = display_name

    @property
    def tags(self) -> dict[str, str]:
        """Its tags."""
        return self.folder.tags()

    @property
    def properties(self) -> dict[str, str]:
        """What is known of its origin, and what the script has added."""
        return self.folder.properties()

    def get_tags(self) -> dict[str, str]:
        """The same as `tags`."""
        return self.tags

    def get_properties(self) -> dict[str, str]:
        """The same as `properties`."""
        return self.properties

    def get_status(self) -> str:
        """What it is doing now; one that nobody looks after is looked after again."""
        adopt(self.folder, self.experiment.workspace.local)
        return str(self.folder.state().status.value)

    def get_detailed_status(self) -> dict[str, Any]:
        """What it is doing, and why."""
        state = self.folder.state()
        return {"status": self.get_status(), "details": [state.reason] if state.reason else []}

    def get_details(self) -> dict[str, Any]:
        """What is known of it, in Azure's JSON."""
        record, state = self.folder.record(), self.folder.state()
        definition = record.definition
        inputs = [
            {
                "dataset": {"id": digest, "path": definition.inputs.get(name, "")},
                "consumptionDetails": {"type": "Reference", "inputName": name, "mechanism": "Mount"},
            }
            for name, digest in record.data.items()
        ]
        details: dict[str, Any] = {
            "runId": self.id,
            "target": definition.target_name,
            "status": self.get_status(),
            "startTimeUtc": _utc(state.started_ms),
            "endTimeUtc": _utc(state.ended_ms),
            "properties": self.properties,
            "inputDatasets": inputs,
            "outputDatasets": [],
            "runDefinition": definition.to_json(),
            "logFiles": {
                name: str(path)
                for name, path in run_files(self.folder).items()
                if name.startswith("azureml-logs/")
            },
            "submittedBy": "local",
        }
        if state.error is not None:
            details["error"] = {"error": {"code": "UserError", **state.error.to_json()}}
        return details

    def get_details_with_logs(self) -> dict[str, Any]:
        """The same, with what the logs hold in the place of their paths."""
        details = self.get_details()
        logs = {name: Path(path).read_text("utf-8", "replace") for name, path in details["logFiles"].items()}
        return {**details, "logFiles": logs}

    def wait_for_completion(
        self, show_output: bool = False, wait_post_processing: bool = False, raise_on_error: bool = True
    ) -> dict[str, Any]:
        """Wait for its end.

        Args:
            show_output: Whether to print what the script prints, as it prints it.
            wait_post_processing: Not used: its end is after that.
            raise_on_error: Whether a failure is raised.

        Raises:
            ActivityFailedException: It has failed; the message is the error as JSON, with the traceback unless
                that was printed.
            ExperimentExecutionException: Ctrl-C was pressed; the run goes on.
        """
        del wait_post_processing
        wait_for(self.folder, self.experiment.workspace.local, show_output, raise_on_error)
        return self.get_details()

    def cancel(self) -> None:
        """Have it ended."""
        self.folder.ask_to_cancel("run.cancel()", int(time.time() * 1000))
        adopt(self.folder, self.experiment.workspace.local)

    # --- what it has logged and made ---

    def get_metrics(self, name: str | None = None, recursive: bool = False, **_others: Any) -> dict[str, Any]:
        """What it has logged: a value, or the list of all that were logged under a name.

        Args:
            name: Of one metric.
            recursive: With those of its parts, by their ids.
        """
        found = read_metrics(self.folder.metric_lines())
        if name is not None:
            found = {name: found[name]} if name in found else {}
        if recursive:
            found |= {child.id: child.get_metrics(name) for child in self.get_children()}
        return found

    def get_children(
        self,
        recursive: bool = False,
        tags: Any = None,
        properties: Any = None,
        type: str | None = None,  # noqa: A002  # Azure's name
        status: str | None = None,
        **_others: Any,
    ) -> Iterator[Run]:
        """The runs that are parts of this one, the last one first."""
        del type
        for run in Run.list(self.experiment, None, tags, properties, status, include_children=True):
            if run.folder.record().parent == self.id:
                yield run
                if recursive:
                    yield from run.get_children(True, tags, properties, None, status)

    def register_model(
        self,
        model_name: str,
        model_path: str | None = None,
        tags: Mapping[str, Any] | None = None,
        properties: Mapping[str, Any] | None = None,
        description: str | None = None,
        *,
        model_framework: str | None = None,
        **_others: Any,
    ) -> deferred.model.Model:
        """Register a file or folder of the run as the next version of a model.

        Args:
            model_name: The model's name.
            model_path: Name of the file or folder among the run's; by default the model's.
            tags: Labels.
            properties: Labels, beside those that say which run it came from.
            description: Free text.
            model_framework: Whether a pickle is a model of scikit-learn; else not used.

        Raises:
            ModelPathNotFoundException: The run has no such file; the message lists those that it has.
            WebserviceException: It cannot be registered.
        """
        with raised_as(WebserviceException):
            try:
                registered = deferred.registration.register_model(
                    self.experiment.workspace.local,
                    self.folder,
                    model_name,
                    model_path,
                    framework="sklearn" if model_framework == "ScikitLearn" else None,
                    description=description or "",
                    tags=labels(tags),
                    properties=labels(properties),
                )
            except SubmissionRefused as error:
                raise ModelPathNotFoundException(str(error)) from error
        return deferred.model.Model(self.experiment.workspace, registered.name, version=registered.version)

    # --- what is said of it ---

    def tag(self, key: str, value: Any = None) -> None:
        """Set a tag."""
        self.set_tags({key: "" if value is None else value})

    def set_tags(self, tags: Mapping[str, Any]) -> None:
        """Set several tags."""
        changes = {str(key): str(value) for key, value in tags.items()}
        self.folder.change_tags(changes, int(time.time() * 1000))

    def remove_tags(self, tags: Sequence[str]) -> None:
        """Remove tags."""
        self.folder.change_tags(dict.fromkeys(tags), int(time.time() * 1000))

    def get_portal_url(self) -> str:
        """Where it is: its folder."""
        return self.folder.path.as_uri()

    def flush(self, timeout_seconds: float = 300) -> None:
        """Nothing waits to be written."""

    log = UnofferedMethod(_IN_SCRIPTS)
    log_list = UnofferedMethod(_IN_SCRIPTS)
    log_row = UnofferedMethod(_IN_SCRIPTS)
    log_table = UnofferedMethod(_IN_SCRIPTS)
    log_image = UnofferedMethod(_IN_SCRIPTS)
    complete = UnofferedMethod("a run ends with its script; cancel() ends both")
    fail = UnofferedMethod("a run ends with its script; cancel() ends both")
    get_secret = UnofferedMethod("scripts find secrets in environment variables")
    get_environment = UnofferedMethod("what it asked for and got is in environment/ of run.folder.path")


ScriptRun = Run


def _run(experiment: Any, record: RunRecord) -> Run:
    """A run as an object of the class that its kind has."""
    if record.kind == SWEEP:
        return deferred.hyperdrive_run.HyperDriveRun(experiment, record.id)
    return Run(experiment, record.id)


def _has(labelled: Mapping[str, str], wanted: Any) -> bool:
    if not wanted:
        return True
    if isinstance(wanted, str):
        return wanted in labelled
    return all(labelled.get(name) == str(value) for name, value in wanted.items())


def _utc(time_ms: int | None) -> str | None:
    return (
        None
        if time_ms is None
        else datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    )
