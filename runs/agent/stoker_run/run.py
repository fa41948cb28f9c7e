"""`azureml.core.Run` as a script in a run has it, which `stoker_run.current()` returns too.

Outside of a run it is an object that prints what it would have logged.
"""

import contextlib
import json
import os
import re
import shutil
import time
import uuid
from pathlib import Path
from types import GeneratorType
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Union

from stoker_base.trees import files_below
from stoker_run.attempt import OUTPUTS
from stoker_run.exceptions import NotOffered, RunEnvironmentException, UserErrorException
from stoker_run.json_files import read_json, replace_json
from stoker_run.records import (
    Recorder,
    column,
    has_labels,
    outside_name,
    read_events,
    read_metrics,
    to_json,
)

__all__ = [
    "Experiment",
    "Inputs",
    "MetricLogger",
    "OfflineRun",
    "PendingModel",
    "Run",
    "RunFiles",
    "RunWorkspace",
    "current",
    "is_submitted",
    "run_of",
]


class RunWorkspace:
    """A script's view of its workspace."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self.name = variables.get("AZUREML_ARM_WORKSPACE_NAME", "local")
        self.subscription_id = variables.get("AZUREML_ARM_SUBSCRIPTION", "")
        self.resource_group = variables.get("AZUREML_ARM_RESOURCEGROUP", "local")

    def __getattr__(self, name: str) -> Any:
        """Everything else is with the code that has submitted the run."""
        if name.startswith("_"):
            raise AttributeError(name)
        raise NotOffered(
            f"workspace.{name} is not offered in a script: pass data as an input, and register models by "
            "run.register_model or in the code that submits the run"
        )


class Experiment:
    """The experiment of a run."""

    def __init__(self, name: str, workspace: RunWorkspace) -> None:
        self.name = name
        self.workspace = workspace


class Inputs(Dict[str, str]):
    """Paths of the run's inputs by their names."""

    def __missing__(self, name: str) -> str:
        raise KeyError(f"the run has no input {name!r}; it has: {', '.join(self) or 'none'}")


class PendingModel:
    """A model that is registered when the script has ended.

    Attributes:
        model_path: Its file or folder among the run's files.
    """

    version = None

    def __init__(self, name: str, model_path: str) -> None:
        self.name = name
        self.model_path = model_path


class MetricLogger:
    """Checks what is logged, and hands it on."""

    def log(self, name: str, value: Any, description: str = "", step: Optional[int] = None) -> None:
        """Log one value: a number, a boolean, a text, or a scalar of numpy or a framework.

        Args:
            name: Of the metric; logging it again makes it a list.
            value: The value. Anything else becomes its `repr`.

        Raises:
            UserErrorException: The value is a list.
        """
        if isinstance(value, (list, tuple, range, GeneratorType)):
            raise UserErrorException("run.log takes one value; use run.log_list for several")
        self._log_value(name, value, step, description)

    def log_list(self, name: str, value: Any, description: str = "") -> None:
        """Log a list of values."""
        self._log_structure(name, "list", list(value), description)

    def log_row(self, name: str, description: Optional[str] = None, **kwargs: Any) -> None:
        """Log a row: each keyword is a column. Rows of one name make a table."""
        self._log_structure(name, "row", kwargs, description)

    def log_table(self, name: str, value: Dict[str, Any], description: str = "") -> None:
        """Log a table: a dict of columns, each a value or a list."""
        self._log_structure(name, "table", value, description)

    def log_confusion_matrix(self, name: str, value: Any, description: str = "") -> None:
        """Log a confusion matrix, in Azure's schema: a dict or JSON."""
        self._log_structure(name, "confusion_matrix", value, description)

    def log_accuracy_table(self, name: str, value: Any, description: str = "") -> None:
        """Log an accuracy table, in Azure's schema: a dict or JSON."""
        self._log_structure(name, "accuracy_table", value, description)

    def log_residuals(self, name: str, value: Any, description: str = "") -> None:
        """Log residuals, in Azure's schema: a dict or JSON."""
        self._log_structure(name, "residuals", value, description)

    def log_predictions(self, name: str, value: Any, description: str = "") -> None:
        """Log predictions, in Azure's schema: a dict or JSON."""
        self._log_structure(name, "predictions", value, description)

    def log_image(
        self, name: str, path: Optional[str] = None, plot: Any = None, description: str = ""
    ) -> None:
        """Log an image.

        Args:
            path: A file; exactly one of it and `plot`.
            plot: matplotlib's `pyplot` or a figure of it.

        Raises:
            UserErrorException: Both or none are given, or there is no such file.
        """
        if (path is None) == (plot is None):
            raise UserErrorException("run.log_image takes either a path or a plot")
        if path is not None and not Path(path).is_file():
            raise UserErrorException(f"run.log_image: there is no file {path}")
        self._log_image(name, path, plot, description)

    def _log_value(self, name: str, value: Any, step: Optional[int], description: str) -> None:
        raise NotImplementedError

    def _log_structure(self, name: str, kind: str, value: Any, description: Optional[str]) -> None:
        raise NotImplementedError

    def _log_image(self, name: str, path: Optional[str], plot: Any, description: str) -> None:
        raise NotImplementedError


class RunFiles:
    """Keeps files among the run's, finds them, and has them registered."""

    _recorder: Recorder

    def upload_file(self, name: str, path_or_stream: Any, datastore_name: Optional[str] = None) -> str:
        """Keep a file, or what a stream holds, among the run's under a name; returns the name.

        Raises:
            UserErrorException: The name leads out of the run, or there is no such file.
        """
        try:
            if hasattr(path_or_stream, "read"):
                target = self._recorder.place(name)
                target.parent.mkdir(parents=True, exist_ok=True)
                data = path_or_stream.read()
                target.write_bytes(data.encode("utf-8") if isinstance(data, str) else data)
            else:
                self._recorder.file(name, Path(path_or_stream))
            return outside_name(name)
        except (ValueError, FileNotFoundError, IsADirectoryError) as error:
            raise UserErrorException(str(error)) from error

    def upload_files(self, names: Sequence[str], paths: Sequence[str], *_others: Any, **_more: Any) -> None:
        """Keep several files, each under its name."""
        for name, path in zip(names, paths):
            self.upload_file(name, path)

    def upload_folder(self, name: str, path: str, datastore_name: Optional[str] = None) -> None:
        """Keep all files of a folder below a name."""
        for file in sorted(files_below(Path(path))):
            if file.is_file():
                self.upload_file(f"{name}/{file.relative_to(path).as_posix()}", file)

    def get_file_names(self) -> List[str]:
        """Names of the run's files, as far as the script has made them."""
        bases = [(self._recorder.folder / "files", "")]
        bases += [(self._recorder.work / name, name + "/") for name in OUTPUTS]
        return sorted(
            prefix + path.relative_to(base).as_posix()
            for base, prefix in bases
            for path in files_below(base)
            if path.is_file()
        )

    def download_file(self, name: str, output_file_path: Optional[str] = None, **_others: Any) -> None:
        """Copy one of the run's files.

        Raises:
            UserErrorException: The run has none of this name.
        """
        source = self._recorder.place(name)
        if not source.is_file():
            raise UserErrorException(
                f"the run has no file {name}; it has: {', '.join(self.get_file_names())}"
            )
        target = Path(output_file_path or source.name)
        target = target / source.name if target.is_dir() else target
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(str(source), str(target))

    def register_model(
        self, model_name: str, model_path: Optional[str] = None, **details: Any
    ) -> PendingModel:
        """Have files of the run registered as a model when the script has ended.

        Args:
            model_path: A file or folder of the run; by default one of the model's name.
            details: Azure's `tags`, `properties`, `description` and so on.

        Raises:
            UserErrorException: The run has no such file yet.
        """
        path = model_path or model_name
        if not self._recorder.place(path).exists():
            raise UserErrorException(
                f"the run has no file {path}; it has: {', '.join(self.get_file_names())}"
            )
        kept = {key: value for key, value in details.items() if isinstance(value, (str, dict, int, float))}
        self._recorder.event("register", None, {"model_name": model_name, "model_path": path, **kept})
        return PendingModel(model_name, path)


_CHILDREN_AT_MOST = 100
_CHILD_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}\Z")


class Run(MetricLogger, RunFiles):
    """The run of this script.

    What is said to it is appended to files in the folder of the attempt, a line at a time: nothing that was said is
    lost when the script is killed. How the run has ended is told by its process, whatever the script says of itself.

    Args:
        inputs: Paths by name.
        parent: The run that this one is a child of.
        number: Of a child among those of its parent.
    """

    type = "azureml.scriptrun"

    def __init__(
        self,
        recorder: Recorder,
        id: str,  # noqa: A002  # Azure's name
        experiment: Experiment,
        inputs: Optional[Mapping[str, str]] = None,
        parent: "Optional[Run]" = None,
        number: int = 1,
    ) -> None:
        self._recorder = recorder
        self._display_name = ""
        self._description = ""
        self._ended = False
        self.id = id
        self.experiment = experiment
        self.input_datasets = Inputs(inputs or {})
        self.parent = parent
        self.number = number

    def __repr__(self) -> str:
        return f"Run(experiment={self.experiment.name!r}, id={self.id!r})"

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.complete()
        else:
            self.fail(f"{kind.__name__}: {error}")

    @staticmethod
    def get_context(allow_offline: bool = True, **_others: Any) -> Any:
        """The run of this script; outside of a run an object that prints what it would log.

        Raises:
            RunEnvironmentException: There is no run, and `allow_offline` is false.
        """
        return current(allow_offline)

    # --- what it says ---

    @property
    def recorder(self) -> Recorder:
        """Writes its lines and files."""
        return self._recorder

    @property
    def display_name(self) -> str:
        """The name that the script has given the run."""
        return self._display_name or self.id

    @display_name.setter
    def display_name(self, name: str) -> None:
        self._display_name = str(name)
        self._recorder.event("name", None, str(name))

    @property
    def description(self) -> str:
        """The description of the run."""
        return self._description

    @description.setter
    def description(self, text: str) -> None:
        self._description = str(text)
        self._recorder.event("tag", "description", str(text))

    @property
    def name(self) -> str:
        """The same as `display_name`."""
        return self.display_name

    @property
    def status(self) -> str:
        """`Running`, and `Finalizing` when the script has said that it is done; of a child how it has ended."""
        if self.parent is None:
            return "Running" if not self._ended else "Finalizing"
        ended = (line["v"] for line in self._recorder.events() if line.get("e") == "status")
        return next((said["status"] for said in ended if isinstance(said, dict)), "Running")

    @property
    def tags(self) -> Dict[str, Any]:
        """Tags that the script has set."""
        return read_events(self._recorder.events())["tag"]

    @property
    def properties(self) -> Dict[str, Any]:
        """Properties that the script has added."""
        return read_events(self._recorder.events())["property"]

    def get_status(self) -> str:
        """The same as `status`."""
        return self.status

    def get_tags(self) -> Dict[str, Any]:
        """The same as `tags`."""
        return self.tags

    def get_properties(self) -> Dict[str, Any]:
        """The same as `properties`."""
        return self.properties

    def get_details(self) -> Dict[str, Any]:
        """A script's view of its run."""
        return {
            "runId": self.id,
            "status": self.status,
            "properties": self.properties,
            "inputDatasets": dict(self.input_datasets),
        }

    def tag(self, key: str, value: Any = None) -> None:
        """Set a tag."""
        self._recorder.event("tag", str(key), "" if value is None else str(value))

    def set_tags(self, tags: Mapping[str, Any]) -> None:
        """Set several tags."""
        for key, value in tags.items():
            self.tag(key, value)

    def remove_tags(self, tags: Sequence[str]) -> None:
        """Remove tags."""
        for key in tags:
            self._recorder.event("tag", str(key), None)

    def add_properties(self, properties: Mapping[str, Any]) -> None:
        """Add properties, which never change."""
        for key, value in properties.items():
            self._recorder.event("property", str(key), str(value))

    def get_metrics(
        self, name: Optional[str] = None, recursive: bool = False, **_others: Any
    ) -> Dict[str, Any]:
        """Return the metrics logged so far in this attempt: a value, or a list of values.

        Args:
            recursive: By the ids of the run and of all below it, each with its metrics.
        """
        found = self._recorder.metrics()
        if name is not None:
            found = {name: found[name]} if name in found else {}
        if not recursive:
            return found
        below = self.get_children(recursive=True)
        return dict({self.id: found}, **{child.id: child.get_metrics(name) for child in below})

    def complete(self) -> None:
        """Say that the script is done; what counts is how it ends."""
        self._end("Completed", 0)

    def fail(self, error_details: Any = None, error_code: Any = None) -> None:
        """Say that the script has failed; a script that has, ends with another status than 0."""
        self._end("Failed", 1, None if error_details is None else str(error_details), error_code)

    def cancel(self) -> None:
        """Have the script ended, as somebody outside would; a child is only marked as canceled."""
        if self.parent is not None:
            self._end("Canceled", 1)
        else:
            self._recorder.event("status", None, {"status": "Canceled"})
            replace_json(self._recorder.folder / "stop.json", {"grace_s": None, "reason": "canceled"})

    def start(self) -> None:
        """Do nothing: the run has been started."""

    def flush(self, timeout_seconds: float = 300) -> None:
        """Write what could not be written before; everything else is written already."""
        self._recorder.flush()

    def wait_for_completion(self, *_arguments: Any, **_keywords: Any) -> Dict[str, Any]:
        """A script does not wait for itself."""
        return self.get_details()

    # --- children ---

    def child_run(
        self, name: Optional[str] = None, run_id: Optional[str] = None, outputs: Any = None
    ) -> "Run":
        """Begin a child of this run: of another `with` or loop, in the same process.

        Raises:
            UserErrorException: There is a child with this id.
        """
        if run_id is not None and not _CHILD_ID.match(run_id):
            raise UserErrorException(
                f"{run_id!r} cannot be the id of a child run: it begins with a letter or digit, and "
                "has letters, digits, _, . and - alone, at most 255"
            )
        folder = self._recorder.folder / "children"
        number = 0
        while True:
            child_id = run_id or f"{self.id}_{number}"
            place = folder / child_id
            try:
                place.mkdir(parents=True)
            except FileExistsError as error:
                if run_id:
                    raise UserErrorException(f"there is a child run {run_id}") from error
                number += 1
            else:
                break
        said = {"id": child_id, "number": number + 1, "name": name, "parent": self.id}
        replace_json(place / "child.json", {**said, "started_ms": int(time.time() * 1000)})
        child = self._child(place, said)
        if name:
            child.display_name = name
        return child

    def create_children(
        self,
        count: Optional[int] = None,
        tag_key: Optional[str] = None,
        tag_values: Optional[Sequence[Any]] = None,
    ) -> "List[Run]":
        """Begin several children.

        Raises:
            UserErrorException: Neither or both of `count` and the tags are given, or there are more than 100.
        """
        if (count is None) == (tag_values is None) or (tag_values is not None and tag_key is None):
            raise UserErrorException("create_children takes either a count, or a tag_key and tag_values")
        wanted = len(tag_values) if tag_values is not None else count or 0
        if wanted > _CHILDREN_AT_MOST:
            raise UserErrorException(
                f"create_children makes at most {_CHILDREN_AT_MOST} at once, not {wanted}"
            )
        children = [self.child_run() for _ in range(wanted)]
        for child, value in zip(children, tag_values or ()):
            child.tag(str(tag_key), value)
        return children

    def get_children(
        self,
        recursive: bool = False,
        tags: Any = None,
        properties: Any = None,
        type: Optional[str] = None,  # noqa: A002  # Azure's name
        status: Optional[str] = None,
        **_others: Any,
    ) -> "Iterator[Run]":
        """The children that this attempt has begun, the last one first.

        Args:
            recursive: With their children.
            tags: A name, or values by name, that the child's tags must have.
            properties: The same of its properties.
            type: `azureml.scriptrun`.
        """
        found = []
        for place in (self._recorder.folder / "children").glob("*"):
            said = read_json(place / "child.json")
            if isinstance(said, dict):
                found.append((said.get("started_ms", 0), said.get("number", 0), place, said))
        for _, _, place, said in sorted(found, key=lambda one: one[:2], reverse=True):
            child = self._child(place, said)
            fits = type in (None, child.type) and status in (None, child.status)
            if fits and has_labels(child.tags, tags) and has_labels(child.properties, properties):
                yield child
            if recursive:
                yield from child.get_children(True, tags, properties, type, status)

    def __getattr__(self, name: str) -> Any:
        """Raise NotOffered for methods that only the code that submits runs can call."""
        if name.startswith("_"):
            raise AttributeError(name)
        raise NotOffered(f"run.{name} is not offered in a script; the code that submits the run has it")

    def _child(self, place: Path, said: Dict[str, Any]) -> "Run":
        recorder = Recorder(place, place, self._recorder.attempt)
        child = Run(recorder, said["id"], self.experiment, {}, self, said["number"])
        child._display_name = said["name"] or ""
        return child

    def _end(self, status: str, number: int, error: Optional[str] = None, code: Any = None) -> None:
        if self._ended:
            return
        self._ended = True
        said = {"status": status}
        if error is not None:
            said["error"] = error
        if code is not None:
            said["code"] = str(code)
        self._recorder.event("status", None, said)
        if self.parent is not None:
            ended = {"version": 1, "outcome": "exited", "exit_status": number, "reason": error}
            replace_json(self._recorder.folder / "exit.json", {**ended, "ended_ms": int(time.time() * 1000)})

    # --- where what is logged goes ---

    def _log_value(self, name: str, value: Any, step: Optional[int], description: str) -> None:
        self._recorder.number(name, value, step, description)

    def _log_structure(self, name: str, kind: str, value: Any, description: Optional[str]) -> None:
        if isinstance(value, (str, bytes)) and kind not in ("row", "table", "list"):
            try:
                value = json.loads(value if isinstance(value, str) else value.decode("utf-8"))
            except ValueError as error:
                raise UserErrorException(f"run.log_{kind}: this is no JSON: {error}") from error
        self._recorder.structure(name, kind, value, None, description or "")

    def _log_image(self, name: str, path: Optional[str], plot: Any, description: str) -> None:
        stem = "".join(sign if sign.isalnum() or sign in "-_." else "_" for sign in str(name)) or "image"
        suffix = Path(path).suffix if path is not None else ".png"
        file = f"{stem}_{int(time.time() * 1000)}{suffix}"
        target = self._recorder.place(file)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path is not None:
            shutil.copyfile(path, str(target))
        else:
            plot.savefig(str(target), format="png")
        self._recorder.structure(name, "image", file, None, description)


_PRINTED = {"residuals": "residual"}


class OfflineRun(MetricLogger):
    """Prints what is said to it, and knows it afterwards.

    Args:
        id: Of the run; one of its own by default.
    """

    type = "azureml.offlinerun"
    number = 1
    parent = None

    def __init__(self, id: Optional[str] = None) -> None:  # noqa: A002  # Azure's name
        self.id = id or f"OfflineRun_{uuid.uuid4()}"
        self.status = "Running"
        self.display_name = self.id
        self.description = ""
        self.tags: Dict[str, Any] = {}
        self.properties: Dict[str, Any] = {}
        self.input_datasets: Dict[str, str] = {}
        self._lines: List[Dict[str, Any]] = []
        self._children: List[OfflineRun] = []

    def __repr__(self) -> str:
        return f"OfflineRun(id={self.id!r})"

    def __enter__(self) -> "OfflineRun":
        print(f"[START] Run {self.id} context")
        return self

    def __exit__(self, *_error: object) -> None:
        print(f"[STOP] Run {self.id} context")

    def __getattr__(self, name: str) -> Any:
        """Raise NotOffered for methods that only a run has."""
        if name.startswith("_") or name == "experiment":
            # Scripts ask whether there is an experiment, to know whether there is a run.
            raise AttributeError(name)
        raise NotOffered(f"run.{name} is not offered outside of a run; submit the script")

    def get_metrics(self, name: Optional[str] = None, **_others: Any) -> Dict[str, Any]:
        """Return the metrics logged so far."""
        found = read_metrics(self._lines)
        return found if name is None else {key: value for key, value in found.items() if key == name}

    def get_status(self) -> str:
        """`Running`, until the script says otherwise."""
        return self.status

    def get_children(self, **_filters: Any) -> "Iterator[OfflineRun]":
        """The children, the last one first."""
        return iter(self._children[::-1])

    def tag(self, key: str, value: Any = None) -> None:
        """Print a tag."""
        print(f"Attempted to add tag {key} with value {value}")
        self.tags[key] = value

    def set_tags(self, tags: Mapping[str, Any]) -> None:
        """Print tags."""
        print(f"Attempted to set tags {tags}")
        self.tags.update(tags)

    def remove_tags(self, tags: Sequence[str]) -> None:
        """Forget tags."""
        for name in tags:
            self.tags.pop(name, None)

    def add_properties(self, properties: Mapping[str, Any]) -> None:
        """Print properties."""
        print(f"Attempted to add properties {properties}")
        self.properties = {**properties, **self.properties}

    def upload_file(self, name: str, path_or_stream: Any, *_others: Any, **_more: Any) -> None:
        """Print what would be kept."""
        print(f"Attempted to track file {name} at {path_or_stream}")

    def upload_files(self, names: Sequence[str], paths: Sequence[str], *_others: Any, **_more: Any) -> None:
        """Print what would be kept."""
        for name, path in zip(names, paths):
            self.upload_file(name, path)

    def upload_folder(self, name: str, path: str, *_others: Any, **_more: Any) -> None:
        """Print what would be kept."""
        print(f"Attempted to track folder {name} at {path}")

    def child_run(
        self, name: Optional[str] = None, run_id: Optional[str] = None, outputs: Any = None
    ) -> "OfflineRun":
        """Another one."""
        child = OfflineRun(run_id or f"{self.id}.{name or uuid.uuid4()}")
        self._children.append(child)
        return child

    def complete(self) -> None:
        """Say that the script is done."""
        self.status = "Completed"

    def fail(self, error_details: Any = None, error_code: Any = None) -> None:
        """Print what has failed."""
        self.status = "Failed"
        print(f"Run failed with error code {error_code}:\n{error_details}")

    def cancel(self) -> None:
        """Say that the script gives up."""
        self.status = "Canceled"

    def flush(self, timeout_seconds: float = 300) -> None:
        """Print that there was something to write."""
        print(f"Attempted to flush run with id {self.id}")

    def _log_value(self, name: str, value: Any, step: Optional[int], description: str) -> None:
        self._emit("scalar", "", name, value, to_json(value))

    def _log_structure(self, name: str, kind: str, value: Any, description: Optional[str]) -> None:
        kept = value
        with contextlib.suppress(AttributeError, TypeError):
            if kind in ("row", "table"):
                kept = {key: column(one) for key, one in value.items()}
            elif kind == "list":
                kept = column(value)
        self._emit(_PRINTED.get(kind, kind), kind, name, value, kept)

    def _log_image(self, name: str, path: Optional[str], plot: Any, description: str) -> None:
        self._emit("image", "image", name, plot if path is None else path, str(path))

    def _emit(self, printed: str, kind: str, name: str, value: Any, kept: Any) -> None:
        print(f"Attempted to log {printed} metric {name}:\n{value}")
        self._lines.append({"t": int(time.time() * 1000), "k": name, "v": kept, "y": kind})


_known: Dict[str, Run] = {}
_offline: Dict[str, OfflineRun] = {}


def is_submitted(variables: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is one of a run."""
    return "STOKER_ATTEMPT_DIR" in variables and "STOKER_RUN_ID" in variables


def run_of(variables: Mapping[str, str]) -> Run:
    """The run that environment variables tell of."""
    folder = Path(variables["STOKER_ATTEMPT_DIR"])
    recorder = Recorder(
        folder,
        Path(variables.get("STOKER_WORK_DIR", ".")),
        int(variables.get("STOKER_ATTEMPT", "1")),
        int(variables.get("STOKER_RANK", "0")),
    )
    experiment = Experiment(variables.get("STOKER_EXPERIMENT", ""), RunWorkspace(variables))
    inputs = json.loads(variables.get("STOKER_INPUTS", "{}"))
    return Run(recorder, variables["STOKER_RUN_ID"], experiment, inputs)


def current(allow_offline: bool = True) -> Union[Run, OfflineRun]:
    """The run of this process, the same object each time; outside of a run one that prints.

    Raises:
        RunEnvironmentException: There is no run, and `allow_offline` is false.
    """
    if is_submitted():
        key = os.environ["STOKER_ATTEMPT_DIR"]
        if key not in _known:
            _known[key] = run_of(os.environ)
        return _known[key]
    if not allow_offline:
        raise RunEnvironmentException(
            "this process is not of a run; submit the script, or allow_offline=True"
        )
    return _offline.setdefault("", OfflineRun())
