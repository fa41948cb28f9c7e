"""Logging of all processes: text or JSON on standard error, which no caller and no exception can forge or flood.

A record of the server is one line: control characters are escaped, and very long messages are cut. In text, the lines
of its traceback follow, indented so that none looks like a record; in JSON they are a member. Records that come too
fast for a disk are counted, not written. What an entry script logs and prints is escaped too, but neither cut nor
counted, and carries the ids of the requests that it belongs to. Commands print others' texts (descriptions, tags,
file names, errors) through the same `escaped`.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import dropwhile, takewhile
from pathlib import Path
from types import FrameType, MappingProxyType, TracebackType
from typing import Any, BinaryIO, Final, Literal, TextIO

from stoker.system.wording import format_count

LOG_FORMAT_VARIABLE: Final = "STOKER_LOG_FORMAT"
"""The environment variable with the log format of the server."""

_FOREIGN: Final = "stoker.script.print"
_OURS: Final = ("stoker", "uvicorn", "asyncio", "grpc", "py")
# C0 except the tab, DEL, C1, Unicode line ends and direction marks, and lone surrogates.
_UNPRINTABLE: Final = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_MESSAGE_CHARS: Final = 8000
_TRACE_LINE_CHARS: Final = 2000
_TRACE_LINES_FIRST: Final = 30
_TRACE_LINES_LAST: Final = 70
_INDENT: Final = "  "

_ExceptionInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


def configure_logging(process: str, form: LogFormat | None = None) -> None:
    """Send this process's log to standard error, with times in UTC.

    Args:
        form: `text`, which is `TIME LEVEL [process] logger - message`, or `json`; None for the format in the
            environment, and text if there is none.
    """
    chosen = form or os.environ.get(LOG_FORMAT_VARIABLE, "").strip().lower()
    kind = JsonFormatter if chosen == "json" else LineFormatter
    handler = LimitedHandler(LineLimit(), kind(process))
    logging.basicConfig(level="INFO", handlers=[handler], force=True)


def log_settings() -> LogSettings:
    """Return the current settings of this process's log."""
    handlers = (handler for handler in logging.getLogger().handlers if isinstance(handler, LimitedHandler))
    return next((handler.settings for handler in handlers), LogSettings())


def log_format() -> LogFormat:
    """Return the format of this process's log."""
    return log_settings().form


def change_log_settings(settings: LogSettings) -> None:
    """Change the settings of this process's log."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, LimitedHandler):
            handler.change(settings)
    # Not the root logger: below INFO libraries log request heads, which contain keys.
    logging.getLogger("stoker").setLevel(logging.DEBUG if settings.verbose_level else logging.NOTSET)


def with_facts(**facts: Any) -> dict[str, dict[str, Any]]:
    """Return `extra` for a record of the server: members in JSON, without those that are None or empty."""
    return {"facts": {name: value for name, value in facts.items() if value not in (None, "", b"")}}


def text_line(time_s: float, level: str, process: str, logger: str, message: str) -> str:
    """Return a record as text; all but the message must be printable."""
    return f"{_moment(time_s)} {level} [{process}] {logger} - {message}"


def json_line(
    time_s: float, level: str, process: str, logger: str, message: str, facts: Mapping[str, Any]
) -> str:
    """Return a record as a line of JSON in ASCII; values of the facts must be printable."""
    common = {
        "time": _moment(time_s), "level": level, "process": process, "logger": logger, "message": message,
    }  # fmt: skip
    return json.dumps({**common, **facts})


class LineFormatter(logging.Formatter):
    """Formats a record of the server as one line, followed by indented lines of a traceback."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self.process = process

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # the name that logging calls
        """Return the line; further lines of a script's message are indented like those of a traceback."""
        # In processes of entry scripts: the requests that the line belongs to.
        request = escaped(getattr(record, "request", ""), _MESSAGE_CHARS)
        trace_id = _facts_of(record).get("trace_id")
        message = request + _message(record, "\n" + _INDENT) + (f" (trace {trace_id})" if trace_id else "")
        return text_line(record.created, record.levelname, self.process, escaped(record.name), message)

    def formatException(self, ei: _ExceptionInfo) -> str:  # noqa: N802  # the name that logging calls
        """Return the lines of a traceback; of a very long one only the first and the last."""
        return "\n".join(_INDENT + line for line in _shown(super().formatException(ei)))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802  # the name that logging calls
        """Return the lines of a stack."""
        return "\n".join(_INDENT + line for line in _shown(stack_info))

    def lines(self, text: str) -> int:
        """Return how many lines a formatted record has."""
        return text.count("\n") + 1

    def shortened(self, text: str) -> str:
        """Return the first line of a formatted record, and how many lines are left out."""
        return (
            f"{text.partition(chr(10))[0]} ({format_count(self.lines(text) - 1, 'line')} about it left out)"
        )


class JsonFormatter(LineFormatter):
    """Formats a record as one line of JSON in ASCII, with a traceback as a member.

    Values are escaped as in text, so that a reader that decodes them cannot garble a terminal; tracebacks and the
    messages of scripts keep their line ends.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        record.message = record.getMessage()
        facts = {n: escaped(v) if isinstance(v, str) else v for n, v in _facts_of(record).items()}
        traces = (
            [] if not record.exc_info else _shown(logging.Formatter.formatException(self, record.exc_info))
        )
        traces += _shown(record.stack_info) if record.stack_info else []
        if traces:
            facts["traceback"] = "\n".join(traces)
        message, name = _message(record, "\n"), escaped(record.name)
        return json_line(record.created, record.levelname, self.process, name, message, facts)

    def lines(self, text: str) -> int:
        """Return how many lines the record would have as text."""
        return text.count("\\n") + 1

    def shortened(self, text: str) -> str:
        """Return a formatted record without its traceback."""
        facts = json.loads(text)
        left_out = facts.pop("traceback", "").count("\n") + 1
        facts["message"] += f" ({format_count(left_out, 'line')} about it left out)"
        return json.dumps(facts)


class LineLimit:
    """A limit on written lines: a burst, and then a rate per second."""

    _AT_ONCE: Final = 2000
    _A_SECOND: Final = 200

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._since_s = clock_s()
        self._room = float(self._AT_ONCE)

    def acquire(self, lines: int) -> bool:
        """Return whether so many lines may be written now; if so, count them."""
        now_s = self._clock_s()
        self._room = min(self._AT_ONCE, self._room + (now_s - self._since_s) * self._A_SECOND)
        self._since_s = now_s
        if self._room < lines:
            return False
        self._room -= lines
        return True


class LimitedHandler(logging.StreamHandler):  # type: ignore[type-arg]  # not subscriptable at run time
    """Writes to standard error; limits the server's own records, and reports how many were left out."""

    stream: TextIO

    def __init__(self, limit: LineLimit, formatter: LineFormatter) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(formatter)
        self._limit, self._lines = limit, formatter
        self._left_out = 0
        self.settings = LogSettings(form="json" if isinstance(formatter, JsonFormatter) else "text")

    def change(self, settings: LogSettings) -> None:
        """Apply other settings from now on."""
        self.settings = settings
        kind = JsonFormatter if settings.form == "json" else LineFormatter
        self._lines = kind(self._lines.process)
        self.setFormatter(self._lines)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, without its traceback if only its line fits the limit, or count it."""
        if not self.settings.shows(record.levelno):
            return
        try:
            text = self.format(record)
            if is_ours(record):
                text = self._admitted(text)
            if text:
                self._report_left_out()
                self._write(text)
        except OSError:
            # A full disk. Reporting it on standard error, as logging does, would come back here as a record.
            self._left_out += 1
        except Exception:  # noqa: BLE001  # as logging handles errors of handlers
            self.handleError(record)

    def close(self) -> None:
        """Report the records that were left out last."""
        try:
            self._report_left_out()
        except (OSError, ValueError):
            # The log has no reader any more.
            self._left_out = 0
        super().close()

    def _admitted(self, text: str) -> str:
        lines = self._lines.lines(text)
        if self._limit.acquire(lines):
            return text
        if lines > 1 and self._limit.acquire(1):
            return self._lines.shortened(text)
        self._left_out += 1
        return ""

    def _report_left_out(self) -> None:
        count = self._left_out
        if count:
            fields = {"name": __name__, "levelno": logging.WARNING, "levelname": "WARNING"}
            left_out = format_count(count, "record")
            message = f"{left_out} left out here: there were too many at once, or they could not be written"
            self._write(self.format(logging.makeLogRecord({**fields, "msg": message})))
            self._left_out = 0

    def _write(self, text: str) -> None:
        self.stream.write(text + self.terminator)
        self.flush()


def is_ours(record: logging.LogRecord) -> bool:
    """Return whether a record is from the server or its libraries rather than from a script."""
    return record.name.partition(".")[0] in _OURS and record.name != _FOREIGN


def escaped(text: str, most_chars: int | None = None) -> str:
    """Return text as part of one line, cut and with its control characters escaped."""
    if most_chars is not None and len(text) > most_chars:
        text = f"{text[:most_chars]}… ({len(text)} characters)"
    return _UNPRINTABLE.sub(lambda found: repr(found[0])[1:-1], text)


def escaped_lines(text: str) -> str:
    """Return text for the output of a command: its lines are kept, other control characters are escaped."""
    return "\n".join(map(escaped, text.split("\n")))


def escaped_json(text: str) -> str:
    """Return a line of JSON that is not ASCII with control characters as JSON escapes."""
    return _UNPRINTABLE.sub(lambda found: json.dumps(found[0])[1:-1], text)


def _message(record: logging.LogRecord, line_end: str) -> str:
    """Return the message of a record; the lines of a script's message are kept, joined by `line_end`."""
    text = record.message.rstrip("\n")
    if is_ours(record):
        return escaped(text, _MESSAGE_CHARS)
    return line_end.join(map(escaped, text.split("\n")))


def _facts_of(record: logging.LogRecord) -> Mapping[str, Any]:
    facts: Mapping[str, Any] = getattr(record, "facts", {})
    return facts


def _shown(trace: str) -> list[str]:
    """Return the escaped lines of a traceback, without the middle of a very long one."""
    lines = trace.split("\n")
    if (left_out := len(lines) - _TRACE_LINES_FIRST - _TRACE_LINES_LAST) > 0:
        lines[_TRACE_LINES_FIRST:-_TRACE_LINES_LAST] = [f"… ({format_count(left_out, 'line')})"]
    return [escaped(line, _TRACE_LINE_CHARS) for line in lines]


def _moment(time_s: float) -> str:
    whole, fraction = divmod(time_s, 1.0)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{int(fraction * 1000):03d}Z"


LogFormat = Literal["text", "json"]


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The written records and their format; sent as a message to a process, they apply from then on.

    Attributes:
        info, warning, error: Whether records of these levels are written; more severe ones always are.
        verbose_level: Above 0, the server's records below INFO are written too, and those of entry scripts.
    """

    info: bool = True
    warning: bool = True
    error: bool = True
    verbose_level: int = 0
    form: LogFormat = "text"

    def shows(self, level: int) -> bool:
        """Return whether a record of a level is written; below INFO its logger decides."""
        if level >= logging.CRITICAL:
            return True
        if level >= logging.ERROR:
            return self.error
        if level >= logging.WARNING:
            return self.warning
        return self.info or level < logging.INFO


SELF_CHECK: Final = b"self-check"
"""The request id of calls that check how a script can be served."""

_SHOWN_IDS: Final = 3

_request_ids: ContextVar[tuple[bytes, ...]] = ContextVar("stoker_request_ids", default=())


@contextlib.contextmanager
def requests_in_log(*request_ids: bytes) -> Iterator[None]:
    """Mark all lines logged and printed in this context with the ids of these requests.

    A thread started meanwhile is marked too if it runs in a copy of the context (`contextvars.copy_context().run`).
    Output without a line end is logged at the end.
    """
    token = _request_ids.set(request_ids)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, PrintedLines):
                stream.end_line()
        _request_ids.reset(token)


def current_request_ids() -> tuple[bytes, ...]:
    """Return the ids of the requests that this context works for; none outside `requests_in_log`."""
    return _request_ids.get()


class RequestMarks:
    """Adds the current request ids, and the `facts` of all records, to each record of this process."""

    def __init__(self, facts: Mapping[str, str] = MappingProxyType({})) -> None:
        self._facts = facts

    def filter(self, record: logging.LogRecord) -> bool:
        """Mark a record; `extra` of a script does not count as facts."""
        ids = [request_id.decode("latin-1") for request_id in _request_ids.get()]
        own_facts = getattr(record, "facts", {}) if is_ours(record) else {}
        record.facts = {**self._facts, **_id_facts(ids), **own_facts}
        # Overwritten, because a script could set it.
        record.request = ""
        if ids:
            more = f" and {len(ids) - _SHOWN_IDS} more" if len(ids) > _SHOWN_IDS else ""
            record.request = f"request {', '.join(ids[:_SHOWN_IDS])}{more}: "
        return True


def _id_facts(ids: Sequence[str]) -> dict[str, str | list[str]]:
    """Return a single id as itself, the ids of several requests that run together as a list."""
    shown = [escaped(request_id) for request_id in ids]
    if len(shown) > 1:
        return {"request_ids": shown}
    return {"request_id": shown[0]} if shown else {}


class PrintedLines(io.TextIOBase):
    """A text stream whose lines become log records; each thread has its own unfinished line.

    Code that needs a real stream (a file descriptor, bytes) gets the original one's.
    """

    def __init__(self, original: TextIO, logger: logging.Logger) -> None:
        self._original = original
        self._logger = logger
        self._unfinished = threading.local()

    encoding = "utf-8"
    errors = "replace"

    @property
    def buffer(self) -> BinaryIO:
        """The original's buffer."""
        return self._original.buffer

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the original's descriptor."""
        return self._original.fileno()

    def write(self, text: str) -> int:
        """Log the complete lines."""
        *lines, rest = (getattr(self._unfinished, "text", "") + text).split("\n")
        self._unfinished.text = rest
        for line in lines:
            self._log(line)
        return len(text)

    def end_line(self) -> None:
        """Log the unfinished line of this thread."""
        rest, self._unfinished.text = getattr(self._unfinished, "text", ""), ""
        if rest:
            self._log(rest)

    def _log(self, line: str) -> None:
        # A progress bar returns to the start of its line: its last state counts.
        shown = line.rstrip("\r").rpartition("\r")[2].rstrip()
        if shown:
            self._logger.info("%s", shown)


def open_request_log(facts: Mapping[str, str] = MappingProxyType({})) -> None:
    """Add request ids to the log lines of this process, and turn its printed lines into log lines.

    Printed lines go to the logger `stoker.script.print`. Its handlers are the root logger's at this moment: if a
    script configures logging to write to `sys.stderr`, its lines must not become lines again and again. `facts` are
    added to all lines of JSON.
    """
    handlers = logging.getLogger().handlers
    marks = RequestMarks(facts)
    for handler in handlers:
        handler.addFilter(marks)
    logger = logging.getLogger("stoker.script.print")
    logger.handlers = list(handlers)
    logger.propagate = False
    logger.setLevel(logging.INFO)
    sys.stdout = PrintedLines(sys.stdout, logger)
    sys.stderr = PrintedLines(sys.stderr, logger)


_CALLERS: Final = (f"{Path(__file__).parents[1]}{os.sep}", "<frozen ")
"""Prefixes of the files whose code runs scripts; `importlib` and `runpy` are frozen."""
_PACKAGES: Final = frozenset({"stoker_azure", "stoker_cluster", "stoker_runs", "stoker_torchserve"})
"""Other packages that run scripts."""


def frames_of_script(error: BaseException) -> TracebackType | None:
    """Return the traceback of an exception from the script's first frame on; None if it has none."""
    frames = error.__traceback__
    while frames is not None and _runs_scripts(frames.tb_frame):
        frames = frames.tb_next
    return frames


def format_for_script(error: BaseException) -> str:
    """Return an exception as Python prints it, with only the frames of the script before its call of Stoker."""
    described = traceback.TracebackException.from_exception(error)
    from_script = dropwhile(lambda entry: _runs_scripts(entry[0]), traceback.walk_tb(error.__traceback__))
    of_script = takewhile(lambda entry: not _runs_scripts(entry[0]), from_script)
    described.stack = traceback.StackSummary.extract(of_script)
    return "".join(described.format())


def _runs_scripts(frame: FrameType) -> bool:
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return package in _PACKAGES or frame.f_code.co_filename.startswith(_CALLERS)
