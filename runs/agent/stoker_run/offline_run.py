"""The object that stands for the run outside of a run: it prints what it would log."""

import contextlib
import time
import uuid
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence

from stoker_run.exceptions import NotOffered
from stoker_run.metric_logger import MetricLogger
from stoker_run.records import column, read_metrics, to_json

_PRINTED = {"residuals": "residual"}


class OfflineRun(MetricLogger):
    """Prints what a run would keep, and returns it when asked.

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
        """Return the status, `Running` until the script changes it."""
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
        """Print the names that a run would keep."""
        print(f"Attempted to track file {name} at {path_or_stream}")

    def upload_files(self, names: Sequence[str], paths: Sequence[str], *_others: Any, **_more: Any) -> None:
        """Print the names that a run would keep."""
        for name, path in zip(names, paths):
            self.upload_file(name, path)

    def upload_folder(self, name: str, path: str, *_others: Any, **_more: Any) -> None:
        """Print the names that a run would keep."""
        print(f"Attempted to track folder {name} at {path}")

    def child_run(
        self, name: Optional[str] = None, run_id: Optional[str] = None, outputs: Any = None
    ) -> "OfflineRun":
        """Begin a child, which prints too."""
        child = OfflineRun(run_id or f"{self.id}.{name or uuid.uuid4()}")
        self._children.append(child)
        return child

    def complete(self) -> None:
        """Set the status to `Completed`."""
        self.status = "Completed"

    def fail(self, error_details: Any = None, error_code: Any = None) -> None:
        """Print the failure."""
        self.status = "Failed"
        print(f"Run failed with error code {error_code}:\n{error_details}")

    def cancel(self) -> None:
        """Set the status to `Canceled`."""
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
