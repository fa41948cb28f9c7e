"""Files that are read while they are written: lines that are only ever appended, and JSON that is replaced whole."""

import contextlib
import json
import os
import sys
from collections import deque
from pathlib import Path
from typing import Any, Deque, Dict, Iterator, Optional

_HELD_LINES = 100000
_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def compact(value: Any) -> str:
    """JSON without spaces; raises ValueError for NaN and infinities."""
    return _compact(value)


class Appender:
    """Appends lines to a file: one `write` a line, so several processes and threads may append to the same one.

    While nothing can be written (a full disk) the latest 100,000 lines are held, and written before the next one: a
    training script does not fail for want of its metrics.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = -1
        self._held: Deque[bytes] = deque(maxlen=_HELD_LINES)
        self._torn = False

    def append(self, line: bytes) -> None:
        """Write a line, which ends in a newline."""
        was_held = bool(self._held)
        self._held.append(line)
        error = self.flush()
        if error is not None and not was_held:
            sys.stderr.write(f"stoker_run: {self.path} cannot be written ({error}); it is tried again\n")

    def flush(self) -> Optional[OSError]:
        """Try to write held lines; return why that failed, or None."""
        try:
            if self._held and self._file < 0:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
                self._file = os.open(str(self.path), flags, 0o644)
            while self._held:
                # A line that was cut short is written again as a whole: its rest alone would not be JSON.
                line = b"\n" + self._held[0] if self._torn else self._held[0]
                self._torn = os.write(self._file, line) != len(line)
                if self._torn:
                    return OSError("the disk is full")
                self._held.popleft()
        except OSError as error:
            return error
        return None

    def close(self) -> None:
        """Write held lines if possible, and close the file."""
        self.flush()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def append_json(path: Path, value: Dict[str, Any]) -> None:
    """Append one line of JSON."""
    appender = Appender(path)
    appender.append(compact(value).encode("utf-8", "surrogateescape") + b"\n")
    appender.close()


def replace_json(path: Path, value: Any, mode: int = 0o644) -> None:
    """Write a file of JSON beside its place and rename it there.

    Raises:
        OSError: It cannot be written; the file is as it was.
    """
    replace_bytes(
        path, json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n", mode
    )


def replace_bytes(path: Path, data: bytes, mode: int) -> None:
    """Write a file beside its place and rename it there.

    Raises:
        OSError: It cannot be written; the file is as it was.
    """
    beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        # No link is followed: a script in a container writes into this folder too.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(str(beside), flags, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def read_json(path: Path) -> Optional[Any]:
    """Return the content of a file; None if it is missing or no JSON."""
    try:
        return json.loads(path.read_bytes().decode("utf-8"))
    except (OSError, ValueError):
        return None


def read_json_lines(path: Path, offset: int = 0) -> Iterator[Dict[str, Any]]:
    """The objects in the lines of a file from an offset on.

    What follows the last newline is not a line yet; lines that are no JSON object are skipped.
    """
    try:
        file = path.open("rb")
    except OSError:
        return
    with file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                return
            try:
                value = json.loads(line.decode("utf-8"))
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict):
                yield value
