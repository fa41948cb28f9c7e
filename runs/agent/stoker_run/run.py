"""`azureml.core.Run` as a script in a run has it: the same object as `stoker_run.current()`."""

import json
import shutil
import time
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Sequence

from stoker_run.child_runs import ChildRuns
from stoker_run.exceptions import NotOffered, UserErrorException
from stoker_run.json_files import replace_json
from stoker_run.metric_logger import MetricLogger
from stoker_run.records import Recorder, read_events
from stoker_run.run_files import RunFiles


class RunWorkspace:
    """A script's view of its workspace."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self.name = variables.get("AZUREML_ARM_WORKSPACE_NAME", "local")
        self.subscription_id = variables.get("AZUREML_ARM_SUBSCRIPTION", "")
        self.resource_group = variables.get("AZUREML_ARM_RESOURCEGROUP", "local")

    def __getattr__(self, name: str) -> Any:
        """Raise NotOffered: only the code that submitted the run has the whole workspace."""
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


class Run(MetricLogger, RunFiles, ChildRuns):
    """The run of this script.

    Each call appends a line to files in the attempt's folder, so nothing is lost when the script is killed. The exit
    status of the script's process decides how the run ended, whatever the script reports.

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
        self._has_ended = False
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
        """Return the run of this script; outside of a run an object that prints what it would log.

        Raises:
            RunEnvironmentException: There is no run, and `allow_offline` is false.
        """
        # Imported here: that module makes runs.
        from stoker_run.current_run import current

        return current(allow_offline)

    @property
    def recorder(self) -> Recorder:
        """The writer of the run's lines and files."""
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
        """`Running`, or `Finalizing` after the script called `complete`; of a child the status that it ended with."""
        if self.parent is None:
            return "Running" if not self._has_ended else "Finalizing"
        reports = (line["v"] for line in self._recorder.events() if line.get("e") == "status")
        return next((report["status"] for report in reports if isinstance(report, dict)), "Running")

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
        """Report that the script is done; its exit status decides."""
        self._end("Completed", 0)

    def fail(self, error_details: Any = None, error_code: Any = None) -> None:
        """Report that the script failed; a script that fails should also exit with another status than 0."""
        self._end("Failed", 1, None if error_details is None else str(error_details), error_code)

    def cancel(self) -> None:
        """Ask the agent to end the script, as `stoker runs cancel` does; a child is only marked as canceled."""
        if self.parent is not None:
            self._end("Canceled", 1)
        else:
            self._recorder.event("status", None, {"status": "Canceled"})
            replace_json(self._recorder.folder / "stop.json", {"grace_s": None, "reason": "canceled"})

    def start(self) -> None:
        """Do nothing: the run has been started."""

    def flush(self, timeout_seconds: float = 300) -> None:
        """Write the lines that could not be written before; all others are in their files already."""
        self._recorder.flush()

    def wait_for_completion(self, *_arguments: Any, **_keywords: Any) -> Dict[str, Any]:
        """Return at once: a script cannot wait for its own end."""
        return self.get_details()

    def __getattr__(self, name: str) -> Any:
        """Raise NotOffered for methods that only the code that submits runs can call."""
        if name.startswith("_"):
            raise AttributeError(name)
        raise NotOffered(f"run.{name} is not offered in a script; the code that submits the run has it")

    def _child(self, folder: Path, facts: Dict[str, Any]) -> "Run":
        recorder = Recorder(folder, folder, self._recorder.attempt)
        child = Run(recorder, facts["id"], self.experiment, {}, self, facts["number"])
        child._display_name = facts["name"] or ""
        return child

    def _end(self, status: str, number: int, error: Optional[str] = None, code: Any = None) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        report = {"status": status}
        if error is not None:
            report["error"] = error
        if code is not None:
            report["code"] = str(code)
        self._recorder.event("status", None, report)
        if self.parent is not None:
            end = {"version": 1, "outcome": "exited", "exit_status": number, "reason": error}
            replace_json(self._recorder.folder / "exit.json", {**end, "ended_ms": int(time.time() * 1000)})

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
