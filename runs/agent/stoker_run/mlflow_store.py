"""The plug-in by which MLflow's clients write into the run: `mlflow.log_*`, autologging, frameworks' MLflow loggers.

MLflow finds it by its entry point `mlflow.tracking_store` for `stoker://`. Artifacts need no plug-in: those of a run
are a folder. A second run in the same process, nested or not, is a child run.
"""

import getpass
import inspect
import time
import uuid
from pathlib import Path
from typing import Any, Dict, List, Optional

from mlflow.entities import (
    Experiment,
    LifecycleStage,
    Metric,
    Param,
    Run,
    RunData,
    RunInfo,
    RunStatus,
    RunTag,
)
from mlflow.exceptions import MlflowException
from mlflow.store.entities.paged_list import PagedList
from mlflow.store.tracking.abstract_store import AbstractStore

from stoker_run.current_run import current, is_submitted
from stoker_run.json_files import read_json, read_json_lines
from stoker_run.records import from_json, read_events
from stoker_run.run import Run as StokerRun

_EXPERIMENT_ID = "0"


class Store(AbstractStore):  # type: ignore[misc]  # MLflow is not there when types are checked
    """MLflow's tracking store: lines and files of the run of this process."""

    def __init__(self, store_uri: Optional[str] = None, artifact_uri: Optional[str] = None) -> None:
        super().__init__()
        del store_uri, artifact_uri
        if not is_submitted():
            raise MlflowException(
                "stoker:// is the run that a script belongs to, and this process is of none; submit the script"
            )
        run = current()
        assert isinstance(run, StokerRun)
        self._run = run
        self._runs: Dict[str, StokerRun] = {self._run.id: self._run}
        self._names: Dict[str, str] = {}
        self._states: Dict[str, Any] = {}
        self._models: Dict[str, Any] = {}

    def get_experiment(self, experiment_id: str) -> Any:
        """The run's experiment, whatever it is asked for by."""
        return self._experiment(self._run.experiment.name)

    def get_experiment_by_name(self, experiment_name: str) -> Any:
        """The run's experiment under the name that the script uses for its own."""
        return self._experiment(experiment_name)

    def create_experiment(self, name: str, artifact_location: Any = None, tags: Any = None) -> str:
        """The run's experiment."""
        return _EXPERIMENT_ID

    def search_experiments(self, *_arguments: Any, **_keywords: Any) -> Any:
        """The run's experiment."""
        return PagedList([self._experiment(self._run.experiment.name)], None)

    def list_experiments(self, *_arguments: Any, **_keywords: Any) -> Any:
        """The run's experiment, for MLflow 1."""
        return self.search_experiments()

    def set_experiment_tag(self, experiment_id: str, tag: Any) -> None:
        """Set a tag of the run: an experiment has none of its own here."""
        self._run.tag(f"experiment.{tag.key}", tag.value)

    def _experiment(self, name: str) -> Any:
        return Experiment(_EXPERIMENT_ID, name, self._artifacts(self._run), LifecycleStage.ACTIVE)

    def get_run(self, run_id: str) -> Any:
        """A run of this process: its own, or a child."""
        run = self._find_run(run_id)
        events = read_events(run.recorder.events())
        latest: Dict[str, Any] = {}
        for line in read_json_lines(run.recorder.folder / "metrics.jsonl"):
            if "y" not in line:
                latest[line["k"]] = self._metric(line)
        tags = [RunTag(key, str(value)) for key, value in events["tag"].items()]
        if run.parent is not None:
            tags.append(RunTag("mlflow.parentRunId", run.parent.id))
        params = [Param(key, str(value)) for key, value in events["param"].items()]
        return Run(self._info(run), RunData(metrics=list(latest.values()), params=params, tags=tags))

    def create_run(
        self, experiment_id: str, user_id: str, start_time: int, tags: Any, run_name: Optional[str] = None
    ) -> Any:
        """Begin a child run: the run itself is there already."""
        child = self._run.child_run(run_name)
        self._runs[child.id] = child
        self._names[child.id] = run_name or child.id
        for tag in tags or ():
            self.set_tag(child.id, tag)
        return self.get_run(child.id)

    def update_run_info(
        self, run_id: str, run_status: Any, end_time: Any, run_name: Optional[str] = None
    ) -> Any:
        """Take what the script says of its state, which decides nothing for the run itself."""
        run = self._find_run(run_id)
        if run_name and run_name != self._names.get(run_id):
            self._names[run_id] = run_name
            run.display_name = run_name
        if run_status is not None and run_status != RunStatus.RUNNING:
            self._states[run_id] = (run_status, end_time)
            if run_status == RunStatus.FINISHED:
                run.complete()
            else:
                run.fail(RunStatus.to_string(run_status))
        return self._info(run)

    def delete_run(self, run_id: str) -> None:
        """Refuse: what was logged stays."""
        raise MlflowException("a run is deleted by 'stoker runs delete', not by its script")

    def _search_runs(self, *_arguments: Any, **_keywords: Any) -> Any:
        return [self.get_run(run_id) for run_id in self._runs], None

    def _find_run(self, run_id: str) -> StokerRun:
        if run_id not in self._runs:
            # A child of this run that another process has begun.
            for child in self._run.get_children():
                self._runs.setdefault(child.id, child)
        if run_id not in self._runs:
            raise MlflowException(f"this script's run is {self._run.id}; it knows none with the id {run_id}")
        return self._runs[run_id]

    def _info(self, run: StokerRun) -> Any:
        status, end_time = self._states.get(run.id, (RunStatus.RUNNING, None))
        child = read_json(run.recorder.folder / "child.json") or read_json(run.recorder.folder / "agent.json")
        known = {
            "run_uuid": run.id,
            "run_id": run.id,
            "experiment_id": _EXPERIMENT_ID,
            "user_id": _user(),
            "status": RunStatus.to_string(status) if isinstance(status, int) else status,
            "start_time": (child or {}).get("started_ms", int(time.time() * 1000)),
            "end_time": end_time,
            "lifecycle_stage": LifecycleStage.ACTIVE,
            "artifact_uri": self._artifacts(run),
            "run_name": self._names.get(run.id, run.display_name),
        }
        return _construct(RunInfo, known)

    @staticmethod
    def _artifacts(run: StokerRun) -> str:
        return (Path(run.recorder.work).resolve() / "outputs").as_uri()

    def log_metric(self, run_id: str, metric: Any) -> None:
        """Log a value with its step."""
        self._find_run(run_id).log(metric.key, metric.value, step=metric.step)

    def log_param(self, run_id: str, param: Any) -> None:
        """Keep a parameter."""
        self._find_run(run_id).recorder.event("param", str(param.key), str(param.value))

    def set_tag(self, run_id: str, tag: Any) -> None:
        """Set a tag; that of the name names the run."""
        run = self._find_run(run_id)
        if tag.key == "mlflow.runName":
            self._names[run_id] = str(tag.value)
        run.tag(tag.key, tag.value)

    def delete_tag(self, run_id: str, key: str) -> None:
        """Remove a tag."""
        self._find_run(run_id).remove_tags([key])

    def log_batch(self, run_id: str, metrics: Any, params: Any, tags: Any) -> None:
        """Log several at once."""
        for metric in metrics:
            self.log_metric(run_id, metric)
        for param in params:
            self.log_param(run_id, param)
        for tag in tags:
            self.set_tag(run_id, tag)

    def log_inputs(self, run_id: str, datasets: Any = None, models: Any = None) -> None:
        """Keep the names and digests of data sets as tags."""
        for one in datasets or ():
            self._find_run(run_id).tag(f"mlflow.dataset.{one.dataset.name}", one.dataset.digest)

    def log_outputs(self, run_id: str, models: Any) -> None:
        """Keep which models the run has made as tags."""
        for model in models or ():
            self._find_run(run_id).tag(f"mlflow.model.{model.model_id}", str(getattr(model, "step", 0)))

    def record_logged_model(self, run_id: str, mlflow_model: Any) -> None:
        """Keep where a model lies as a tag."""
        self._find_run(run_id).tag("mlflow.model", str(getattr(mlflow_model, "artifact_path", "")))

    def get_metric_history(
        self, run_id: str, metric_key: str, max_results: Any = None, page_token: Any = None
    ) -> Any:
        """All values of a metric, in the order in which they were logged."""
        path = self._find_run(run_id).recorder.folder / "metrics.jsonl"
        found = [
            self._metric(line)
            for line in read_json_lines(path)
            if line.get("k") == metric_key and "y" not in line
        ]
        return PagedList(found, None)

    @staticmethod
    def _metric(line: Dict[str, Any]) -> Any:
        return Metric(line["k"], float(from_json(line["v"])), line["t"], line.get("s", 0))

    def create_logged_model(
        self,
        experiment_id: str = _EXPERIMENT_ID,
        name: Optional[str] = None,
        source_run_id: Optional[str] = None,
        tags: Any = None,
        params: Any = None,
        model_type: Optional[str] = None,
    ) -> Any:
        """A model whose files will lie in `outputs/NAME`."""
        from mlflow.entities import LoggedModel, LoggedModelStatus

        run = self._find_run(source_run_id) if source_run_id else self._run
        name = name or "model"
        now = int(time.time() * 1000)
        model = LoggedModel(
            experiment_id=_EXPERIMENT_ID,
            model_id=f"m-{uuid.uuid4().hex}",
            name=name,
            artifact_location=f"{self._artifacts(run)}/{name}",
            creation_timestamp=now,
            last_updated_timestamp=now,
            model_type=model_type,
            source_run_id=run.id,
            status=LoggedModelStatus.PENDING,
            tags={tag.key: tag.value for tag in tags or ()},
            params={param.key: param.value for param in params or ()},
        )
        self._models[model.model_id] = model
        return model

    def get_logged_model(self, model_id: str, allow_deleted: bool = False) -> Any:
        """A model that this process has made."""
        if model_id not in self._models:
            raise MlflowException(f"this script has logged no model with the id {model_id}")
        return self._models[model_id]

    def finalize_logged_model(self, model_id: str, status: Any) -> Any:
        """Take its state."""
        model = self.get_logged_model(model_id)
        model.status = status
        return model

    def set_logged_model_tags(self, model_id: str, tags: Any) -> None:
        """Keep its tags, while this process lives."""
        model = self.get_logged_model(model_id)
        model.tags = {**(model.tags or {}), **{tag.key: tag.value for tag in tags}}

    def log_logged_model_params(self, model_id: str, params: Any) -> None:
        """Keep its parameters, while this process lives."""
        model = self.get_logged_model(model_id)
        model.params = {**(model.params or {}), **{param.key: param.value for param in params}}

    def search_logged_models(self, *_arguments: Any, **_keywords: Any) -> Any:
        """The models that this process has made."""
        return PagedList(list(self._models.values()), None)


def _construct(kind: Any, known: Dict[str, Any]) -> Any:
    """An entity of whatever version of MLflow: it gets those arguments that it has."""
    parameters: List[str] = list(inspect.signature(kind.__init__).parameters)
    return kind(**{name: value for name, value in known.items() if name in parameters})


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def _not_offered(name: str) -> Any:
    def method(_self: Any, *_arguments: Any, **_keywords: Any) -> Any:
        raise MlflowException(f"{name} is not offered in a run of Stoker")

    return method


for _name in getattr(AbstractStore, "__abstractmethods__", ()):
    if getattr(Store, _name) is getattr(AbstractStore, _name):
        setattr(Store, _name, _not_offered(_name))
Store.__abstractmethods__ = frozenset()
