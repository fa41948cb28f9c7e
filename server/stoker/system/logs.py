"""Logging of all processes: one line format, on standard error, that no caller and no exception can forge or flood.

A record of the server is one line, whatever its message holds: control characters are escaped, and what is very long
is cut. The lines of its traceback follow it, indented, so that none of them can be taken for a record. Records that
come faster than a disk should have to take are counted, not written. What an entry script logs and prints is its own.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final

__all__ = ["LimitedHandler", "LineFormatter", "LineLimit", "configure_logging"]

_FOREIGN: Final = "stoker.script.print"
_OURS: Final = ("stoker", "uvicorn", "asyncio", "grpc", "py")
# C0 but for the tab, DEL, C1, what ends or turns a line in Unicode, and halves of characters.
_UNPRINTABLE: Final = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_MESSAGE_CHARS: Final = 8000
_TRACE_LINE_CHARS: Final = 2000
_TRACE_LINES_FIRST: Final = 30
_TRACE_LINES_LAST: Final = 70
_INDENT: Final = "  "

_ExceptionInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


def configure_logging(process: str, level: str = "INFO") -> None:
    """Send this process's log to standard error as `TIME LEVEL [process] logger - message`, times in UTC."""
    handler = LimitedHandler(LineLimit())
    handler.setFormatter(LineFormatter(process))
    logging.basicConfig(level=level, handlers=[handler], force=True)


class LineFormatter(logging.Formatter):
    """Makes one line of a record of the server, and indented lines of a traceback."""

    def __init__(self, process: str) -> None:
        line = f"%(asctime)s.%(msecs)03dZ %(levelname)s [{process}] %(name)s - %(request)s%(message)s"
        # Processes of entry scripts name there the request that a line was written for.
        super().__init__(line, "%Y-%m-%dT%H:%M:%S", defaults={"request": ""})
        self.converter = time.gmtime

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # the name that logging calls
        """Return the line."""
        request = getattr(record, "request", "")
        if request:
            record.request = _line(request, _MESSAGE_CHARS)
        if _is_ours(record):
            record.message = _line(record.message.rstrip("\n"), _MESSAGE_CHARS)
        return super().formatMessage(record)

    def formatException(self, ei: _ExceptionInfo) -> str:  # noqa: N802  # the name that logging calls
        """Return the lines of a traceback: the first and the last ones of a very long one."""
        lines = super().formatException(ei).split("\n")
        if (left_out := len(lines) - _TRACE_LINES_FIRST - _TRACE_LINES_LAST) > 0:
            lines[_TRACE_LINES_FIRST:-_TRACE_LINES_LAST] = [f"… ({left_out} lines)"]
        return "\n".join(_INDENT + _line(line, _TRACE_LINE_CHARS) for line in lines)


class LineLimit:
    """How many lines may be written: some at once, and then so many a second."""

    _AT_ONCE: Final = 2000
    _A_SECOND: Final = 200

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._since_s = clock_s()
        self._room = float(self._AT_ONCE)

    def take(self, lines: int) -> bool:
        """Whether so many lines may be written now; then they count as written."""
        now_s = self._clock_s()
        self._room = min(self._AT_ONCE, self._room + (now_s - self._since_s) * self._A_SECOND)
        self._since_s = now_s
        if self._room < lines:
            return False
        self._room -= lines
        return True


class LimitedHandler(logging.StreamHandler):  # type: ignore[type-arg]  # not subscriptable at run time
    """Writes to standard error; of the server's own records no more than a limit, and then how many it was."""

    def __init__(self, limit: LineLimit) -> None:
        super().__init__(sys.stderr)
        self._limit = limit
        self._left_out = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, without its traceback where only its line has room, or count it."""
        try:
            text = self.format(record)
            if _is_ours(record):
                text = self._admitted(text)
            if text:
                self._tell_left_out()
                self._write(text)
        except OSError:
            # On a full disk. To say so on standard error, as logging does, would end here again where prints of a
            # script are made records, and again.
            self._left_out += 1
        except Exception:  # noqa: BLE001  # what logging does with all other errors of a handler
            self.handleError(record)

    def close(self) -> None:
        """Say what was left out last."""
        try:
            self._tell_left_out()
        except (OSError, ValueError):
            # Nobody reads the log any more.
            self._left_out = 0
        super().close()

    def _admitted(self, text: str) -> str:
        lines = text.count("\n") + 1
        if self._limit.take(lines):
            return text
        if lines > 1 and self._limit.take(1):
            return f"{text.partition(chr(10))[0]} ({lines - 1} lines about it are left out)"
        self._left_out += 1
        return ""

    def _tell_left_out(self) -> None:
        count = self._left_out
        if count:
            told = {"name": __name__, "levelno": logging.WARNING, "levelname": "WARNING"}
            message = f"{count} records are left out here: there were too many at once, or they could not be written"
            self._write(self.format(logging.makeLogRecord({**told, "msg": message})))
            self._left_out = 0

    def _write(self, text: str) -> None:
        self.stream.write(text + self.terminator)
        self.flush()


def _is_ours(record: logging.LogRecord) -> bool:
    """Whether the server writes it, or what it runs on, rather than a script."""
    return record.name.partition(".")[0] in _OURS and record.name != _FOREIGN


def _line(text: str, most_chars: int) -> str:
    """Return text as a part of one line, cut and with its control characters escaped."""
    if len(text) > most_chars:
        text = f"{text[:most_chars]}… ({len(text)} characters)"
    return _UNPRINTABLE.sub(lambda found: repr(found[0])[1:-1], text)
