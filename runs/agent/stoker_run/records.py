"""Logged records of a run: lines and files in the folder of its attempt, and their values read back."""

import contextlib
import math
import numbers
import os
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Optional, Union

from stoker_run.attempt import OUTPUTS
from stoker_run.json_files import Appender, compact, read_json_lines

_TEXTS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

Scalar = Union[int, float, bool, str]


def scalar(value: Any) -> Scalar:
    """Return a value as one of Python's own types; other values become their `repr`, with a line on stderr.

    numpy's and others' scalars (anything with `item()` that has one element) become what they hold.
    """
    kind = type(value)
    if kind is float or kind is int or kind is bool or kind is str:
        return value  # type: ignore[no-any-return]
    item = getattr(value, "item", None)
    # tf.Tensor of older versions has no item(), but numpy().
    if item is None and hasattr(value, "numpy"):
        value = value.numpy()
        item = getattr(value, "item", None)
    if item is not None and getattr(value, "size", 1) == 1:
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            value = item()
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    sys.stderr.write(f"stoker_run: a value of {type(value).__name__} is logged as its repr\n")
    return repr(value)


def to_json(value: Any) -> Any:
    """A scalar as it stands in a line: NaN and infinities as texts."""
    value = scalar(value)
    if type(value) is float and not math.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    return value


def column(value: Any) -> Any:
    """A scalar, or a list of them, as it stands in a line."""
    if not isinstance(value, (str, bytes)) and hasattr(value, "tolist") and getattr(value, "ndim", False):
        value = value.tolist()
    if isinstance(value, (list, tuple, set, range)):
        return [to_json(one) for one in value]
    return to_json(value)


def from_json(value: Any) -> Any:
    """Return a logged value: the texts of NaN and infinities become numbers again, also within lists and columns."""
    if isinstance(value, str):
        return _TEXTS.get(value, value)
    if isinstance(value, list):
        return [from_json(one) for one in value]
    if isinstance(value, dict):
        return {name: from_json(one) for name, one in value.items()}
    return value


lines = read_json_lines


def outside_name(name: str) -> str:
    """The name of a file of a run, with `/` between its parts.

    Raises:
        ValueError: It is empty, or leads out of the run.
    """
    parts = [part for part in str(name).replace("\\", "/").split("/") if part not in ("", ".")]
    if not parts or ".." in parts or "\0" in name:
        raise ValueError(f"{name!r} is no name of a file of a run")
    return "/".join(parts)


class Recorder:
    """Writes the lines and files of one attempt.

    Args:
        work: The working directory, whose `outputs/` and `logs/` are the run's.
    """

    def __init__(self, folder: Path, work: Path, attempt: int = 1, rank: int = 0) -> None:
        self.folder = Path(folder)
        self.work = Path(work)
        self.attempt = attempt
        self._end = ',"a":{}{}}}\n'.format(attempt, f',"r":{rank}' if rank else "")
        self._metrics = Appender(self.folder / "metrics.jsonl")
        self._events = Appender(self.folder / "events.jsonl")
        self._names: Dict[str, str] = {}
        self._lock = threading.Lock()

    def number(self, name: str, value: Any, step: Optional[int] = None, description: str = "") -> None:
        """Log one value: a number, a boolean or a text."""
        if type(value) is float and value - value == 0.0:
            # The way of nearly all, without a detour: repr is JSON for finite numbers.
            self._line(name, repr(value), "", step, description)
            return
        shown = to_json(value)
        text = isinstance(shown, str) and not isinstance(from_json(shown), float)
        self._line(name, compact(shown), "text" if text else "", step, description)

    def structure(
        self, name: str, kind: str, value: Any, step: Optional[int] = None, description: str = ""
    ) -> None:
        """Log a value of another kind: those of `y` in the contract.

        Args:
            kind: `list`, `row`, `table`, `image` or one of Azure's schemas.
            value: A list; a dict of columns; a file's name; the JSON object of a schema.
        """
        if kind in ("list", "row", "table"):
            value = (
                {str(key): column(one) for key, one in value.items()}
                if isinstance(value, dict)
                else column(value)
            )
        self._line(name, compact(_plain(value)), kind, step, description)

    def event(self, kind: str, key: Optional[str] = None, value: Any = None) -> None:
        """Append an event of the run: see `events.jsonl` in the contract."""
        line: Dict[str, Any] = {"t": int(time.time() * 1000), "e": kind}
        if key is not None:
            line["k"] = key
        line["v"] = _plain(value)
        line["a"] = self.attempt
        self._events.append(compact(line).encode("utf-8", "backslashreplace") + b"\n")

    def place(self, name: str) -> Path:
        """Where a file of this name lies: in the working directory for `outputs/` and `logs/`, else beside it.

        Raises:
            ValueError: The name leads out of the run.
        """
        inside = outside_name(name)
        base = self.work if inside.split("/")[0] in OUTPUTS else self.folder / "files"
        return base / inside

    def file(self, name: str, source: Path) -> Path:
        """Keep a copy of a file under this name.

        Raises:
            ValueError: The name leads out of the run.
            OSError: The file cannot be read, or not be copied.
        """
        target = self.place(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists() and target.samefile(source):
            return target
        beside = target.with_name(target.name + f".{os.getpid()}.tmp")
        shutil.copyfile(str(source), str(beside))
        beside.replace(target)
        return target

    def metrics(self) -> Dict[str, Any]:
        """Return the metrics logged so far, as `Run.get_metrics` does."""
        self.flush()
        return read_metrics(read_json_lines(self._metrics.path))

    def events(self) -> List[Dict[str, Any]]:
        """Return the events logged so far."""
        self.flush()
        return list(read_json_lines(self._events.path))

    def flush(self) -> None:
        """Write lines that could not be written before."""
        self._metrics.flush()
        self._events.flush()

    def close(self) -> None:
        """Close the files."""
        self._metrics.close()
        self._events.close()

    def _line(self, name: str, value: str, kind: str, step: Optional[int], description: str) -> None:
        start = self._names.get(name)
        if start is None:
            start = self._names[name] = f',"k":{compact(str(name))},"v":'
        rest = f',"y":"{kind}"' if kind else ""
        if step is not None:
            rest += f',"s":{step if type(step) is int else compact(to_json(step))}'
        if description:
            rest += f',"d":{compact(str(description))}'
        line = f'{{"t":{int(time.time() * 1000)}{start}{value}{rest}{self._end}'
        self._metrics.append(line.encode("utf-8", "backslashreplace"))


def _plain(value: Any) -> Any:
    """Return a script's value in a form that JSON has."""
    if value is None:
        return None
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if not isinstance(value, (str, bytes)) and hasattr(value, "tolist"):
        return _plain(value.tolist()) if getattr(value, "ndim", 0) else to_json(value)
    return to_json(value)


def read_metrics(found: Iterable[Dict[str, Any]]) -> Dict[str, Any]:
    """Metrics by name: a value that was logged once as such, others as the list of all, in their order.

    Rows and tables are dicts of columns. Lines that are not of this form are skipped.
    """
    values: Dict[str, List[Any]] = {}
    columns: Dict[str, Dict[str, List[Any]]] = {}
    whole: Dict[str, Any] = {}
    for line in found:
        name, value, kind = line.get("k"), line.get("v"), line.get("y", "")
        if not isinstance(name, str) or "v" not in line:
            continue
        if kind in ("row", "table") and isinstance(value, dict):
            into = columns.setdefault(name, {})
            for key, one in from_json(value).items():
                into.setdefault(key, []).extend(one if isinstance(one, list) else [one])
        elif kind == "list" and isinstance(value, list):
            values.setdefault(name, []).extend(from_json(value))
            # A list of one stays a list.
            whole[name] = values[name]
        else:
            values.setdefault(name, []).append(value if kind else from_json(value))
    read = {name: several[0] if len(several) == 1 else several for name, several in values.items()}
    read.update(whole)
    for name, table in columns.items():
        read[name] = {key: one[0] if len(one) == 1 else one for key, one in table.items()}
    return read


def read_events(found: Iterable[Dict[str, Any]]) -> Dict[str, Dict[str, Any]]:
    """Tags, properties and parameters as the lines leave them, by kind."""
    read: Dict[str, Dict[str, Any]] = {"tag": {}, "property": {}, "param": {}}
    for line in found:
        kind, key, value = line.get("e"), line.get("k"), line.get("v")
        if kind not in read or not isinstance(key, str):
            continue
        if kind == "tag" and value is None:
            read["tag"].pop(key, None)
        elif kind == "property":
            read["property"].setdefault(key, value)
        else:
            read[kind][key] = value
    return read


def has_labels(labelled: Mapping[str, Any], wanted: Any) -> bool:
    """Whether tags or properties have what is wanted: a name, or values by name; nothing is always there."""
    if not wanted:
        return True
    if isinstance(wanted, str):
        return wanted in labelled
    return all(labelled.get(name) == str(value) for name, value in wanted.items())
