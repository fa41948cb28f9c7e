"""The log of one process: what it prints, with the redrawing of progress bars thinned out."""

import errno
import os
from collections import deque
from pathlib import Path
from typing import Deque, List, Optional

_REDRAWN_EVERY_S = 1.0
_RETRIED_EVERY_S = 1.0
_HELD_BYTES = 8 << 20
_TAIL_BYTES = 64 << 10
_HEAD = b"Traceback (most recent call last):"
_CHAINED = (b"The above exception was the direct cause", b"During handling of the above exception")


class Log:
    """Writes what a process prints to a file.

    Bytes pass through as they come, but for lines that are redrawn by a carriage return: of those one a second is
    kept, and the last.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(str(path), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._redrawn = b""
        self._shown_at = -_REDRAWN_EVERY_S
        self._held: Deque[bytes] = deque()
        self._held_bytes = 0
        self._missing_bytes = 0
        self._tried_at = -_RETRIED_EVERY_S
        self._tail = b""
        self.problem: Optional[str] = None

    def feed(self, data: bytes, now: float) -> None:
        """Add output of the process; `now` is in seconds."""
        keep: List[bytes] = []
        data = self._redrawn + data
        self._redrawn = b""
        while data:
            line, newline, data = data.partition(b"\n")
            self._line(line, newline, now, keep)
        kept = b"".join(keep)
        if kept:
            self._tail = (self._tail + kept)[-_TAIL_BYTES:]
            self._write(kept, now)

    def tick(self, now: float) -> None:
        """Write the current state of a progress bar, and retry failed writes."""
        if self._redrawn and now - self._shown_at >= _REDRAWN_EVERY_S:
            self._show(now)
        if self._held and now - self._tried_at >= _RETRIED_EVERY_S:
            self._retry(now)

    def close(self, now: float) -> None:
        """Write the rest."""
        self._show(now)
        if self._held:
            self._retry(now)
        os.close(self._file)

    @property
    def tail(self) -> bytes:
        """The last 64 KiB."""
        return self._tail

    def _line(self, line: bytes, newline: bytes, now: float, keep: List[bytes]) -> None:
        """One line, or the beginning of one. A return at its end belongs to the newline."""
        body = line[:-1] if newline and line.endswith(b"\r") else line
        last = body.rfind(b"\r")
        if last < 0:
            keep.append(line + newline)
            return
        first = body.find(b"\r")
        keep.append(body[:first])
        if newline:
            # The final content of the line.
            keep.append(line[last:] + newline)
            return
        # A bar is drawn: either `\rtext` or `text\r`, so what is shown is the latest that has text.
        pieces = [piece for piece in body[first:].split(b"\r") if piece]
        self._redrawn = (b"\r" + pieces[-1] if pieces else b"") + (b"\r" if body.endswith(b"\r") else b"")
        if now - self._shown_at >= _REDRAWN_EVERY_S and pieces:
            keep.append(self._redrawn.rstrip(b"\r"))
            self._redrawn = b"\r" if body.endswith(b"\r") else b""
            self._shown_at = now

    def _show(self, now: float) -> None:
        shown = self._redrawn.rstrip(b"\r")
        self._redrawn = b"\r" if self._redrawn.endswith(b"\r") else b""
        self._shown_at = now
        if shown:
            self._tail = (self._tail + shown)[-_TAIL_BYTES:]
            self._write(shown, now)

    def _write(self, data: bytes, now: float) -> None:
        if self._held_bytes + len(data) > _HELD_BYTES:
            self._missing_bytes += len(data)
            return
        was_held = bool(self._held)
        self._held.append(data)
        self._held_bytes += len(data)
        if not was_held:
            self._retry(now)

    def _retry(self, now: float) -> None:
        self._tried_at = now
        try:
            while self._held:
                written = os.write(self._file, self._held[0])
                self._held_bytes -= written
                rest = self._held[0][written:]
                if rest:
                    self._held[0] = rest
                    self.problem = f"the log cannot be written: {os.strerror(errno.ENOSPC)}"
                    return
                self._held.popleft()
            if self._missing_bytes:
                text = f"\n[{self._missing_bytes} bytes are missing here: the disk was full]\n"
                self._missing_bytes = 0
                os.write(self._file, text.encode("ascii"))
        except OSError as error:
            self.problem = f"the log cannot be written: {error.strerror}"
        else:
            self.problem = None


def last_lines(tail: bytes, count: int = 20) -> List[str]:
    """The last lines of a log, each as it stood in the end."""
    shown = [line.rstrip(b"\r").rpartition(b"\r")[2] for line in tail.rstrip().split(b"\n")[-count:]]
    return [line.decode("utf-8", "replace") for line in shown if line.strip()]


def traceback_in(tail: bytes) -> Optional[str]:
    """The last traceback in a log, with those that it was caused by; None if there is none."""
    at = tail.rfind(_HEAD)
    if at < 0:
        return _syntax_error_in(tail)
    start = at
    while True:
        before = tail.rfind(_HEAD, 0, start)
        between = tail[before:start]
        if before < 0 or not any(words in between for words in _CHAINED):
            break
        start = before
    lines = tail[start:].split(b"\n")
    end = tail[start:at].count(b"\n") + 1
    while end < len(lines) and (lines[end].startswith(b" ") or not lines[end].strip()):
        end += 1
    # The exception itself, whose text may have several lines.
    found = lines[: end + 1]
    for line in lines[end + 1 : end + 20]:
        if not line.strip():
            break
        found.append(line)
    return b"\n".join(found).decode("utf-8", "replace").rstrip()


def _syntax_error_in(tail: bytes) -> Optional[str]:
    """Return the error of a script that cannot be compiled, whose traceback has no head; None if there is none."""
    at = tail.rfind(b'  File "')
    text = tail[at:].decode("utf-8", "replace").rstrip() if at >= 0 else ""
    words = ("SyntaxError:", "IndentationError:", "TabError:")
    return text if any(line.startswith(words) for line in text.split("\n")) else None
