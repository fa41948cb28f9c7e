"""Data collected by entry scripts with `azureml.monitoring`: CSV files in Azure's layout.

MODEL/VERSION/DESIGNATION/YYYY/MM/DD/COLLECTION-ID.csv in the service's folder, with days in UTC. Each process writes
its own files, so that each has one header, and lines of different processes do not mix.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import re
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final

from msgspec import Struct

from stoker.collecting.record_files import make_room, new_file
from stoker.settings.collection import CollectionSettings
from stoker.system.durable import write_all
from stoker_base.trees import files_below

logger = logging.getLogger(__name__)

_MAX_QUEUED_BYTES: Final = 64 << 20
_TICK_S: Final = 0.25
_WARN_EVERY_S: Final = 60.0
_END_WITHIN_S: Final = 3.0
_PARTS: Final = 8
_DAY_S: Final = 86_400
_NOT_IN_NAMES: Final = re.compile(r"[^\w.-]|^\.+")


class Series(Struct, frozen=True):
    """Rows of one kind (the designation: `inputs`, `predictions`, ...), which are written to the same files."""

    model: str
    version: str
    designation: str
    collection: str
    header: bytes

    def folder(self, time_s: float) -> Path:
        """Return the folder for a time in seconds since 1970, relative to the service's folder."""
        day = datetime.fromtimestamp(time_s, UTC)
        names = (_name(part) for part in (self.model, self.version, self.designation))
        return Path(*names, day.strftime("%Y/%m/%d"))


class ModelDataFiles:
    """The files written by one process. Not thread-safe.

    Args:
        max_bytes: Limit of all files in it; each series of each process may exceed it by an eighth.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._part_bytes = max_bytes // _PARTS
        self._room_bytes = max_bytes - self._part_bytes
        self._open: dict[Series, tuple[int, BinaryIO]] = {}

    def write(self, series: Series, time_s: float, lines: bytes) -> None:
        """Append complete lines to the file of a day (seconds since 1970); the kernel has them when this returns."""
        day, file = self._open.get(series, (0, None))
        if file is not None and (day != int(time_s // _DAY_S) or file.tell() >= self._part_bytes):
            self._open.pop(series)[1].close()
            file = None
        if file is None:
            file = self._new(series, time_s)
            self._open[series] = (int(time_s // _DAY_S), file)
            lines = series.header + lines
        try:
            write_all(file.fileno(), lines)
        except OSError:
            # The last line may be incomplete: nothing may be appended.
            self._open.pop(series)[1].close()
            raise

    def close(self) -> None:
        """Close all files."""
        while self._open:
            self._open.popitem()[1][1].close()

    def _new(self, series: Series, time_s: float) -> BinaryIO:
        # Folders from the day up to the model.
        make_room(_by_age(self._folder), self._room_bytes, folders=6)
        folder = self._folder / series.folder(time_s)
        return new_file(folder / f"{_name(series.collection)}-{uuid.uuid4().hex[:12]}.csv")


def _by_age(folder: Path) -> list[Path]:
    """Return the files of all series, the least recently written first."""
    written: list[tuple[int, int, Path]] = []
    for path in files_below(folder):
        if path.suffix != ".csv":
            continue
        with contextlib.suppress(FileNotFoundError):  # another process may have removed it
            state = path.stat()
            written.append((state.st_mtime_ns, state.st_size, path))
    return [path for _, _, path in sorted(written)]


class ModelData:
    """Queues rows from any thread, and writes them on its own thread, so that no caller waits for the disk."""

    def __init__(
        self,
        name: str,
        version: int,
        settings: CollectionSettings,
        files: ModelDataFiles,
        clock_s: Callable[[], float] = time.time,
    ) -> None:
        """Prepare it; `start` starts the thread. `clock_s` returns seconds since 1970."""
        self.name = name
        self.version = version
        self.settings = settings
        self.clock_s = clock_s
        self._files = files
        self._queue: deque[tuple[Series, float, bytes]] = deque()
        self._queued_bytes = 0
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._warned_s = -_WARN_EVERY_S
        self._thread = threading.Thread(target=self._live, name="model data", daemon=True)

    def start(self) -> None:
        """Start the writing thread; rows still queued when Python exits are written too."""
        self._thread.start()
        atexit.register(self.close)

    def close(self) -> None:
        """Write what is queued and stop; what is not written within 3 s is lost."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(_END_WITHIN_S)

    def enqueue(self, series: Series, time_s: float, lines: bytes) -> None:
        """Queue lines for writing; if 64 MiB are queued already, they are dropped."""
        with self._lock:
            fits = self._queued_bytes + len(lines) <= _MAX_QUEUED_BYTES
            if fits:
                self._queued_bytes += len(lines)
                self._queue.append((series, time_s, lines))
        if not fits:
            self.warn("they come faster than they can be written")

    def write_queued(self) -> None:
        """Write all that is queued."""
        while self._queue:
            series, time_s, lines = self._queue.popleft()
            with self._lock:
                self._queued_bytes -= len(lines)
            try:
                self._files.write(series, time_s, lines)
            except OSError as error:
                self.warn(str(error))

    def warn(self, reason: str) -> None:
        """Log at most once a minute why rows are lost."""
        if time.monotonic() - self._warned_s >= _WARN_EVERY_S:
            self._warned_s = time.monotonic()
            logger.warning("rows that the script has collected are lost: %s", reason)

    def _live(self) -> None:
        while not self._closing.wait(_TICK_S):
            self.write_queued()
        self.write_queued()
        self._files.close()


class _Process:
    """Where the script of this process collects data; empty in other processes."""

    model_data: ModelData | None = None


def open_model_data(name: str, version: int, collection: CollectionSettings, folder: Path) -> None:
    """Enable collection for the entry script of this process, of a service with this name, before it is loaded.

    All processes of the service share `folder`.
    """
    files = ModelDataFiles(folder, collection.max_mb << 20)
    _Process.model_data = ModelData(name, version, collection, files)
    _Process.model_data.start()


def model_data() -> ModelData | None:
    """Return the collector for the entry script of this process; None if its service collects nothing."""
    return _Process.model_data


def _name(text: str) -> str:
    """Return a valid name of a folder or file, similar to this text from a script."""
    return _NOT_IN_NAMES.sub("_", text) or "_"
