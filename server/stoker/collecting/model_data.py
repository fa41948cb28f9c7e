"""What entry scripts collect themselves, by `azureml.monitoring`: CSV files, laid out as those of Azure.

MODEL/VERSION/DESIGNATION/YYYY/MM/DD/COLLECTION-ID.csv in the service's folder, with days in UTC. Each process
writes files of its own, so a header stands once and no two processes write into one line.
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
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final

from stoker.collecting.collected_files import make_room, new_file, write_all
from stoker.collecting.collection import CollectionSettings
from stoker.system.durable import private_folder

__all__ = ["ModelData", "ModelDataFiles", "Series", "model_data", "open_model_data"]

logger = logging.getLogger(__name__)

_MAX_QUEUED_BYTES: Final = 64 << 20
_TICK_S: Final = 0.25
_WARN_EVERY_S: Final = 60.0
_END_WITHIN_S: Final = 3.0
_PARTS: Final = 8
_DAY_S: Final = 86_400
_NOT_IN_NAMES: Final = re.compile(r"[^\w.-]|^\.+")


@dataclass(frozen=True, slots=True)
class Series:
    """Rows of one kind, which go into the same files.

    Attributes:
        model: Name of the model.
        version: Its version.
        designation: What the rows are: `inputs`, `predictions` and so on.
        collection: What the files are called.
        header: The line with the names of the columns.
    """

    model: str
    version: str
    designation: str
    collection: str
    header: bytes

    def folder(self, time_s: float) -> Path:
        """The folder of a moment in seconds since 1970, relative to the service's."""
        day = datetime.fromtimestamp(time_s, UTC)
        names = (_name(part) for part in (self.model, self.version, self.designation))
        return Path(*names, day.strftime("%Y/%m/%d"))


class ModelDataFiles:
    """The files that one process writes. Not thread-safe.

    Args:
        folder: The service's folder, which all of its processes share.
        max_bytes: What the files in it may take; each series of each process may pass it by an eighth.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._part_bytes = max_bytes // _PARTS
        self._room_bytes = max_bytes - self._part_bytes
        self._open: dict[Series, tuple[int, BinaryIO]] = {}

    def write(self, series: Series, time_s: float, lines: bytes) -> None:
        """Append lines to the file of a day; they reach the kernel before this returns.

        Args:
            series: What they are.
            time_s: A moment in that day, seconds since 1970.
            lines: Whole lines.

        Raises:
            OSError: They cannot be written.
        """
        day, file = self._open.get(series, (0, None))
        if file is not None and (day != int(time_s // _DAY_S) or file.tell() >= self._part_bytes):
            self._open.pop(series)[1].close()
            file = None
        if file is None:
            file = self._new(series, time_s)
            self._open[series] = (int(time_s // _DAY_S), file)
            lines = series.header + lines
        try:
            write_all(file, lines)
        except OSError:
            # Its last line may be torn now: nothing must follow it.
            self._open.pop(series)[1].close()
            raise

    def close(self) -> None:
        """Close all files."""
        while self._open:
            self._open.popitem()[1][1].close()

    def _new(self, series: Series, time_s: float) -> BinaryIO:
        # Folders from the day up to the model.
        make_room(_by_age(self._folder), self._room_bytes, folders=6)
        folder = private_folder(self._folder / series.folder(time_s))
        return new_file(folder / f"{_name(series.collection)}-{uuid.uuid4().hex[:12]}.csv")


def _by_age(folder: Path) -> list[Path]:
    """The files of all series, those first that were written to least lately."""
    written: list[tuple[int, int, Path]] = []
    for path in folder.rglob("*.csv"):
        with contextlib.suppress(FileNotFoundError):  # another process makes room too
            state = path.stat()
            written.append((state.st_mtime_ns, state.st_size, path))
    return [path for _, _, path in sorted(written)]


class ModelData:
    """Takes rows from any thread, and writes them on one of its own, so that no caller waits for the disk.

    Attributes:
        name: Name of the model that is served.
        version: Its version.
        settings: What is collected.
    """

    def __init__(
        self,
        name: str,
        version: int,
        settings: CollectionSettings,
        files: ModelDataFiles,
        clock_s: Callable[[], float] = time.time,
    ) -> None:
        """Make it; `start` makes its thread.

        Args:
            name: Name of the model that is served.
            version: Its version.
            settings: What is collected.
            files: Where rows go.
            clock_s: Seconds since 1970.
        """
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
        """Write from now on, and what is queued when Python ends."""
        self._thread.start()
        atexit.register(self.close)

    def close(self) -> None:
        """Write what is queued and end; what is not written within 3 s is lost."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(_END_WITHIN_S)

    def offer(self, series: Series, time_s: float, lines: bytes) -> None:
        """Have lines written; where 64 MiB wait already, they are dropped."""
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
        """Say in the log, once a minute, why rows are lost."""
        if time.monotonic() - self._warned_s >= _WARN_EVERY_S:
            self._warned_s = time.monotonic()
            logger.warning("rows that the script has collected are lost: %s", reason)

    def _live(self) -> None:
        while not self._closing.wait(_TICK_S):
            self.write_queued()
        self.write_queued()
        self._files.close()


class _Process:
    """What this process, which is one of an entry script or none, collects into."""

    model_data: ModelData | None = None


def open_model_data(name: str, version: int, collection: CollectionSettings, folder: Path) -> None:
    """Let the entry script of this process collect; called before it is loaded.

    Args:
        name: Name of its service.
        version: Its version.
        collection: What is kept.
        folder: Where.
    """
    files = ModelDataFiles(folder, collection.max_mb << 20)
    _Process.model_data = ModelData(name, version, collection, files)
    _Process.model_data.start()


def model_data() -> ModelData | None:
    """Where the entry script of this process collects; None if its service does not."""
    return _Process.model_data


def _name(text: str) -> str:
    """A name of a folder or file like this text, whatever a script has called it."""
    return _NOT_IN_NAMES.sub("_", text) or "_"
