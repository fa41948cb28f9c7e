"""Metrics of runs for other programs: pictures by matplotlib, event files of TensorBoard, copies in MLflow.

Matplotlib and MLflow are imported only where they are used.

The tag `stoker.run_id` identifies a run that was copied to an MLflow tracking store. Outputs are not copied: the tag
`stoker.folder` is their folder.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from stoker.errors import InvalidSettings, OperatorError
from stoker.system.durable import private_folder
from stoker_runs.records.comparing import parameters_of
from stoker_runs.records.folder import RunFolder, numbers_of
from stoker_runs.records.states import RunState, Status

Curve = tuple[list[float], list[float], bool]
"""X positions, values, and whether positions are steps given by the script."""

_MOST_POINTS: Final = 2000
_COLUMNS: Final = 2
_WIDTH_INCHES, _HEIGHT_INCHES = 6.0, 3.6
_SINGLE: Final = 2


def curves_of(lines: Iterable[Mapping[str, Any]]) -> dict[str, Curve]:
    """Return the curve of each numeric metric; lists, rows and tables are curves too, as `numbers_of` names them.

    The x position of a value is its step, else its index among the values of its name. Values that are not finite
    numbers are left out.
    """
    curves: dict[str, Curve] = {}
    counts: dict[str, int] = {}
    for line in lines:
        for name, numbers in numbers_of(line):
            # The values of a list have places of their own.
            step = line.get("s") if "y" not in line else None
            has_step = isinstance(step, int | float)
            for value in numbers:
                place = counts[name] = counts.get(name, -1) + 1
                places, values, all_steps = curves.get(name, ([], [], True))
                if math.isfinite(value):
                    places.append(float(step) if has_step and step is not None else float(place))
                    values.append(value)
                curves[name] = places, values, all_steps and has_step
    return curves


def downsample(curve: Curve) -> Curve:
    """Reduce the points of a long curve, keeping minimum and maximum of each section."""
    places, values, steps = curve
    if len(values) <= _MOST_POINTS:
        return curve
    stretch = -(-2 * len(values) // _MOST_POINTS)
    kept: list[int] = []
    for begin in range(0, len(values), stretch):
        part = range(begin, min(begin + stretch, len(values)))
        kept += sorted({min(part, key=values.__getitem__), max(part, key=values.__getitem__)})
    return [places[i] for i in kept], [values[i] for i in kept], steps


def draw(folders: Sequence[RunFolder], metrics: Sequence[str], path: Path) -> list[str]:
    """Plot metrics of runs, one panel per metric and one line per run.

    Args:
        metrics: The metrics to plot; if empty, all that any of the runs has.
        path: The output file; its suffix determines the format.

    Returns:
        The names of the plotted metrics.

    Raises:
        InvalidSettings: There is nothing to plot, no such metric (the message names the existing ones), or the suffix
            names no format that matplotlib writes.
        OperatorError: matplotlib is not installed.
    """
    curves = [(folder.id, curves_of(folder.metric_lines())) for folder in folders]
    there = sorted({name for _, of_run in curves for name in of_run})
    if missing := [name for name in metrics if name not in there]:
        raise InvalidSettings(f"no run has measured {missing[0]!r}; there are: {', '.join(there) or 'none'}")
    names = list(metrics) or there
    if not names:
        raise InvalidSettings("these runs have measured no numbers, so there is nothing to draw")
    try:
        # Without pyplot, which may open windows.
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise OperatorError(
            f"plots need matplotlib, which is not installed ({error.name}): pip install matplotlib"
        ) from error
    columns = 1 if len(names) < _SINGLE else _COLUMNS
    rows = -(-len(names) // columns)
    figure = Figure((_WIDTH_INCHES * columns, _HEIGHT_INCHES * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis, name in zip(axes.flat, names, strict=False):
        _draw_panel(axis, name, [(run, of_run[name]) for run, of_run in curves if name in of_run])
    for axis in list(axes.flat)[len(names) :]:
        axis.set_visible(False)
    try:
        figure.savefig(path, dpi=110)
    except ValueError as error:
        raise InvalidSettings(f"{path} cannot be drawn: {error}") from error
    return names


def _draw_panel(axis: Any, name: str, curves: Sequence[tuple[str, Curve]]) -> None:
    all_steps = all(curve[2] for _, curve in curves)
    for run, curve in curves:
        places, values, _ = downsample(curve)
        # A single value would be an invisible line.
        axis.plot(places, values, label=run, marker="o" if len(values) < _SINGLE else None, linewidth=1.4)
    axis.set_title(name)
    axis.set_ylabel(name)
    axis.set_xlabel("step" if all_steps else "value number")
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.grid(visible=True, alpha=0.3)
    axis.legend(fontsize="small")


_POLYNOMIAL: Final = 0x82F63B78
_MASK: Final = 0xA282EAD8
_VERSION: Final = b"brain.Event:2"
_FOLDERS: Final = ("outputs", "logs")


def _table() -> tuple[int, ...]:
    rows = []
    for number in range(256):
        value = number
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        rows.append(value)
    return tuple(rows)


_TABLE: Final = _table()


def crc32c(data: bytes) -> int:
    """The CRC-32C checksum (Castagnoli's polynomial)."""
    value = 0xFFFFFFFF
    for byte in data:
        value = (value >> 8) ^ _TABLE[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


def _masked_checksum(data: bytes) -> bytes:
    value = crc32c(data)
    return struct.pack("<I", (((value >> 15) | (value << 17)) + _MASK) & 0xFFFFFFFF)


def _record(event: bytes) -> bytes:
    length = struct.pack("<Q", len(event))
    return length + _masked_checksum(length) + event + _masked_checksum(event)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _bytes(field: int, content: bytes) -> bytes:
    return bytes([field << 3 | 2]) + _varint(len(content)) + content


def event_record(name: str, value: float, step: int, time_s: float) -> bytes:
    """Encode one value of a metric as a record.

    Args:
        value: The value; stored as float32.
        time_s: When it was measured, in seconds since 1970.
    """
    # Event{wall_time = 1, step = 2, summary = 5}, Summary{value = 1}, Value{tag = 1, simple_value = 2}.
    kept = _bytes(1, name.encode()) + b"\x15" + struct.pack("<f", max(min(value, 3.4e38), -3.4e38))
    return _record(
        b"\x09" + struct.pack("<d", time_s) + b"\x10" + _varint(max(step, 0)) + _bytes(5, _bytes(1, kept))
    )


def write_logdir(folders: Sequence[RunFolder], place: Path) -> Path:
    """Make a folder for TensorBoard with each run's metrics, and the event files its script has written itself.

    Args:
        place: The folder; its previous content is removed.
    """
    shutil.rmtree(place, ignore_errors=True)
    for folder in folders:
        home = private_folder(place / folder.id)
        began_s = folder.record().created_ms / 1000
        (home / "events.out.tfevents.0.stoker").write_bytes(b"".join(_events(folder, began_s)))
        for number in folder.attempts():
            for name in _FOLDERS:
                _link(folder.attempt(number) / "work" / name, home / name)
        for name in _FOLDERS:
            _link(folder.path / name, home / name)
    return place


def _events(folder: RunFolder, began_s: float) -> Iterable[bytes]:
    yield _record(b"\x09" + struct.pack("<d", began_s) + _bytes(3, _VERSION))
    for name, curve in curves_of(folder.metric_lines()).items():
        places, values, _ = downsample(curve)
        yield from (
            event_record(name, value, int(step), began_s) for step, value in zip(places, values, strict=True)
        )


def _link(written: Path, place: Path) -> None:
    if (
        written.is_dir()
        and not written.is_symlink()
        and any(written.iterdir())
        and not os.path.lexists(place)
    ):
        place.symlink_to(written)


_RUN: Final = "stoker.run_id"
_STAMP: Final = "stoker.stamp"
_MEASURED: Final = "stoker.values"
_STATUSES: Final[Mapping[Status, str]] = {
    Status.COMPLETED: "FINISHED",
    Status.FAILED: "FAILED",
    Status.CANCELED: "KILLED",
}
# Limits of MLflow's stores for one request, and for the length of a text.
_BATCH: Final = 1000
_PARAMETERS: Final = 100
_LONGEST: Final = 6000
_FOREIGN: Final = re.compile(r"[^\w/. :-]", re.ASCII)


class Mirror:
    """An MLflow tracking store.

    Args:
        address: Its tracking URI, such as `sqlite:///runs.db` or `http://127.0.0.1:5000`.
    """

    def __init__(self, address: str) -> None:
        try:
            from mlflow.entities import Metric, Param, RunTag
            from mlflow.exceptions import MlflowException
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            raise OperatorError(
                f"mirroring needs MLflow ({error.name} is missing): pip install mlflow-skinny sqlalchemy alembic"
            ) from error
        self._metric, self._param, self._tag, self._error = Metric, Param, RunTag, MlflowException
        self._client: Any = MlflowClient(tracking_uri=address)
        self._experiments: dict[str, str] = {}
        self._copies: dict[str, tuple[str, Mapping[str, str]]] = {}

    def put(self, folder: RunFolder) -> bool:
        """Copy a run, or its changes since the last copy; returns whether there were any."""
        try:
            return self._put(folder)
        except self._error as error:
            raise OperatorError(f"the tracking store does not take {folder.id}: {error}") from error

    def _put(self, folder: RunFolder) -> bool:
        record, state = folder.record(), folder.state()
        experiment = self._experiment(record.experiment)
        stamp = _stamp_of(folder, state)
        known, tags = self._copies.get(record.id, ("", {}))
        if tags.get(_STAMP) == stamp:
            return False
        if not known:
            labels = {_RUN: record.id, "mlflow.runName": record.id, "stoker.folder": str(folder.path)}
            created = self._client.create_run(experiment, record.created_ms, labels, record.id)
            known = created.info.run_id
        params = [
            self._param(_mlflow_name(name), value[:_LONGEST])
            for name, value in parameters_of(folder).items()
            if value
        ]
        done = int(tags.get(_MEASURED, 0))
        values = islice(_metric_values(folder), done, None)
        for part in _batches(values, _BATCH):
            metrics = [self._metric(name, value, time_ms, step) for name, value, time_ms, step in part]
            self._client.log_batch(known, metrics=metrics)
            done += len(part)
            # If this is interrupted here, the next copy continues after these values.
            self._client.set_tag(known, _MEASURED, str(done))
        if _STAMP not in tags:
            for batch in _batches(params, _PARAMETERS):
                self._client.log_batch(known, params=batch)
        labels = {**folder.properties(), **folder.tags(), "mlflow.source.name": record.definition.script}
        new = [self._tag(_mlflow_name(name), value[:_LONGEST]) for name, value in labels.items()]
        self._client.log_batch(known, tags=new[:_PARAMETERS])
        if state.is_terminal:
            self._client.set_terminated(known, _STATUSES[state.status], state.ended_ms)
        # Last, so that an interrupted copy does not count as complete.
        self._client.set_tag(known, _STAMP, stamp)
        self._copies[record.id] = known, {_STAMP: stamp, _MEASURED: str(done)}
        return True

    def _experiment(self, name: str) -> str:
        """The id of an experiment; also loads which of its runs are copies."""
        if name in self._experiments:
            return self._experiments[name]
        found = self._client.get_experiment_by_name(name)
        key: str = self._client.create_experiment(name) if found is None else found.experiment_id
        token: str | None = ""
        while token is not None:
            page = self._client.search_runs([key], page_token=token or None, max_results=_BATCH)
            for run in page:
                if _RUN in run.data.tags:
                    self._copies[run.data.tags[_RUN]] = run.info.run_id, run.data.tags
            token = page.token or None
        self._experiments[name] = key
        return key


def _stamp_of(folder: RunFolder, state: RunState) -> str:
    """A text that changes with every change of a run that is copied."""
    sizes = [
        path.stat().st_size
        for number in folder.attempts()
        for path in (folder.attempt(number) / "metrics.jsonl", folder.attempt(number) / "events.jsonl")
        if path.exists()
    ]
    own = folder.events.stat().st_size if folder.events.exists() else 0
    return f"{state.status.value} {own} {sum(sizes)}"


def _metric_values(folder: RunFolder) -> Iterator[tuple[str, float, int, int]]:
    """All numeric values: name, value, time in ms, step."""
    counts: dict[str, int] = {}
    for line in folder.metric_lines():
        step = line.get("s") if "y" not in line else None
        for name, values in numbers_of(line):
            for value in values:
                place = counts[name] = counts.get(name, -1) + 1
                yield (
                    _mlflow_name(name),
                    value,
                    int(line.get("t", 0)),
                    step if isinstance(step, int) else place,
                )


def _mlflow_name(text: str) -> str:
    """A valid name in MLflow."""
    return _FOREIGN.sub("_", text).strip("-").strip()[:250] or "_"


def _batches(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part
