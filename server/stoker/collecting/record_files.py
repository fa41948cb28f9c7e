"""Files of collected records: a folder per hour, files limited in size, the oldest removed beyond a total limit.

FOLDER/VERSION/YYYY/MM/DD/HH/MMSS-ID.jsonl       JSON lines
FOLDER/VERSION/YYYY/MM/DD/HH/MMSS-ID.journal     JSON lines that will be converted to Parquet
FOLDER/VERSION/YYYY/MM/DD/HH/MMSS-ID.parquet     the converted file, made when a journal is closed

Hours are in UTC. Several processes write into one folder, each to files of its own, and each enforces the limit. If a
process is killed, its file stays as it is: the last line may be incomplete, and a journal is not converted.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import uuid
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final

from stoker.settings.collection import RecordFormat
from stoker.system.durable import private_folder, write_all
from stoker_base.trees import files_below

logger = logging.getLogger(__name__)

_HOUR_S: Final = 3600
_LARGEST_PART_BYTES: Final = 32 << 20
_TRIES: Final = 100
_JSONL, _JOURNAL, _PARQUET = ".jsonl", ".journal", ".parquet"
_OF_AN_HOUR: Final = re.compile(r"[^/]+(/[0-9]+){4}/[^/]+")
"""A file, as seen from the model's folder: VERSION/YYYY/MM/DD/HH/NAME."""
_JSON_COLUMNS: Final = ("inputs", "outputs")


class RecordFiles:
    """The files written by one process. Not thread-safe.

    Args:
        max_bytes: Limit of all files in the folder, including those of other writers.
    """

    def __init__(
        self, folder: Path, version: int, record_format: RecordFormat, *, max_bytes: int, writers: int
    ) -> None:
        self._folder = folder
        self._version = version
        self._parquet = record_format == "parquet"
        if self._parquet:
            # Imported now, not while requests wait: it takes a fifth of a second.
            from pyarrow import json, parquet  # noqa: F401
        # Each writer may fill one further file after room has been made.
        self._part_bytes = min(_LARGEST_PART_BYTES, max_bytes // (8 * writers))
        self._room_bytes = max_bytes - writers * self._part_bytes
        self._file: BinaryIO | None = None
        self._path = folder
        self._hour = 0
        self._written_bytes = 0

    def write(self, time_s: float, lines: Sequence[bytes]) -> None:
        """Append lines (with line ends) to the file of `time_s`'s hour; the kernel has them when this returns."""
        content = b"".join(lines)
        hour = int(time_s // _HOUR_S)
        if hour != self._hour or self._written_bytes + len(content) > self._part_bytes:
            self.close()
        file = self._file or self._open(time_s)
        try:
            write_all(file.fileno(), content)
        except OSError:
            # The last line may be incomplete: nothing may be appended.
            self._file = None
            file.close()
            raise
        self._written_bytes += len(content)

    def close_past(self, time_s: float) -> None:
        """Close a file whose hour is over."""
        if int(time_s // _HOUR_S) != self._hour:
            self.close()

    def close(self) -> None:
        """Close the file, and convert a journal to Parquet; if that fails, the journal stays."""
        file, self._file = self._file, None
        if file is None:
            return
        file.close()
        if self._parquet:
            try:
                _to_parquet(self._path)
            except OSError as error:
                logger.warning("collected records stay a journal: %s", error)

    def _open(self, time_s: float) -> BinaryIO:
        # Folders from the hour up to the version.
        make_room(_by_age(self._folder), self._room_bytes, folders=5)
        moment = datetime.fromtimestamp(time_s, UTC)
        folder = self._folder / str(self._version) / moment.strftime("%Y/%m/%d/%H")
        suffix = _JOURNAL if self._parquet else _JSONL
        self._path = folder / f"{moment:%M%S}-{uuid.uuid4().hex}{suffix}"
        self._file = new_file(self._path)
        self._hour, self._written_bytes = int(time_s // _HOUR_S), 0
        return self._file


def _by_age(folder: Path) -> list[Path]:
    """Return the files of all versions, the oldest first."""
    paths = (path for path in files_below(folder) if _OF_AN_HOUR.fullmatch(str(path.relative_to(folder))))
    return sorted(paths, key=lambda path: path.parts[-5:])


def _to_parquet(journal: Path) -> None:
    """Convert a journal to a Parquet file, and remove the journal.

    Arrow releases the interpreter lock, so requests are answered meanwhile.
    """
    import pyarrow as pa
    from pyarrow import json as pa_json
    from pyarrow import parquet

    columns = [
        ("time", pa.timestamp("ms", "UTC")),
        *((name, pa.string()) for name in ("request_id", "model")),
        ("version", pa.int64()),
        *((name, pa.int64()) for name in ("status", "input_bytes", "output_bytes")),
        *((name, pa.string()) for name in ("content_type", *_JSON_COLUMNS)),
        ("dropped_large", pa.list_(pa.string())),
    ]
    written = journal.with_suffix(".parquet-incomplete")
    try:
        table = pa_json.read_json(
            journal,
            pa_json.ReadOptions(use_threads=False, block_size=max(1 << 20, journal.stat().st_size)),
            pa_json.ParseOptions(explicit_schema=pa.schema(columns), unexpected_field_behavior="error"),
        )
        parquet.write_table(table, written, compression="zstd")
        written.rename(journal.with_suffix(_PARQUET))
        journal.unlink()
    except pa.ArrowException as error:
        raise OSError(f"{journal} cannot become Parquet: {error}") from error
    finally:
        written.unlink(missing_ok=True)


def new_file(path: Path) -> BinaryIO:
    """Create a new unbuffered file, readable only by the owner (mode 0600), and its folder."""
    for tries_left in reversed(range(_TRIES)):
        try:
            private_folder(path.parent)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            break
        except (FileNotFoundError, FileExistsError):
            # Another process has made room, and removed a folder while it was empty, before or after this look at it.
            if not tries_left:
                raise
    return os.fdopen(descriptor, "wb", buffering=0)


def make_room(oldest_first: Iterable[Path], room_bytes: int, folders: int) -> None:
    """Remove the oldest files until the others fit into a limit, with up to `folders` parents that become empty."""
    sizes: dict[Path, int] = {}
    for path in oldest_first:
        with contextlib.suppress(FileNotFoundError):  # another process may have removed it
            sizes[path] = path.stat().st_size
    total_bytes = sum(sizes.values())
    for path, size_bytes in sizes.items():
        if total_bytes <= room_bytes:
            return
        path.unlink(missing_ok=True)
        total_bytes -= size_bytes
        with contextlib.suppress(OSError):
            for parent in path.parents[:folders]:
                parent.rmdir()
