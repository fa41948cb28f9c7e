"""Log lines of scripts carry the id of the request that they were written for, and so does what scripts print."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from types import MappingProxyType
from typing import BinaryIO, Final, TextIO

from stoker.system.logs import escaped, is_ours

__all__ = [
    "SELF_CHECK",
    "PrintedLines",
    "RequestMarks",
    "current_request_ids",
    "open_request_log",
    "requests_in_log",
]

SELF_CHECK: Final = b"self-check"
"""Stands for the id of a request where a script is called to see how it can be served."""

_SHOWN_IDS: Final = 3

_request_ids: ContextVar[tuple[bytes, ...]] = ContextVar("stoker_request_ids", default=())


@contextlib.contextmanager
def requests_in_log(*request_ids: bytes) -> Iterator[None]:
    """Mark what is logged and printed in this context with the ids of these requests.

    A thread started meanwhile is marked too if it runs in a copy of the context
    (`contextvars.copy_context().run`). What was printed without a line end comes out at the end.
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
    """The ids of the requests that this context works for; none outside of `requests_in_log`."""
    return _request_ids.get()


class RequestMarks:
    """Says in each record of this process whose it is.

    Args:
        facts: What JSON has of all of them.
    """

    def __init__(self, facts: Mapping[str, str] = MappingProxyType({})) -> None:
        self._facts = facts

    def filter(self, record: logging.LogRecord) -> bool:
        """Mark a record; what a script says by `extra` is not ours, and has no place among the facts."""
        ids = [request_id.decode("latin-1") for request_id in _request_ids.get()]
        said = getattr(record, "facts", {}) if is_ours(record) else {}
        record.facts = {**self._facts, **_id_facts(ids), **said}
        # A script could set this too.
        record.request = ""
        if ids:
            more = f" and {len(ids) - _SHOWN_IDS} more" if len(ids) > _SHOWN_IDS else ""
            record.request = f"request {', '.join(ids[:_SHOWN_IDS])}{more}: "
        return True


def _id_facts(ids: Sequence[str]) -> dict[str, str | list[str]]:
    """One id as itself; of several requests that are run together, all."""
    shown = [escaped(request_id) for request_id in ids]
    if len(shown) > 1:
        return {"request_ids": shown}
    return {"request_id": shown[0]} if shown else {}


class PrintedLines(io.TextIOBase):
    """A text stream whose lines become log records; each thread has its own unfinished line.

    What needs a real stream (a file descriptor, bytes) gets the original one's.
    """

    def __init__(self, original: TextIO, logger: logging.Logger) -> None:
        self._original = original
        self._logger = logger
        self._unfinished = threading.local()

    encoding = "utf-8"
    errors = "replace"

    @property
    def buffer(self) -> BinaryIO:
        """Where bytes go."""
        return self._original.buffer

    def writable(self) -> bool:
        """Yes."""
        return True

    def fileno(self) -> int:
        """The original's."""
        return self._original.fileno()

    def write(self, text: str) -> int:
        """Log the lines that are complete."""
        *lines, rest = (getattr(self._unfinished, "text", "") + text).split("\n")
        self._unfinished.text = rest
        for line in lines:
            self._log(line)
        return len(text)

    def end_line(self) -> None:
        """Log what this thread has written without a line end."""
        rest, self._unfinished.text = getattr(self._unfinished, "text", ""), ""
        if rest:
            self._log(rest)

    def _log(self, line: str) -> None:
        # A progress bar returns to the start of its line: what it showed last counts.
        shown = line.rstrip("\r").rpartition("\r")[2].rstrip()
        if shown:
            self._logger.info("%s", shown)


def open_request_log(facts: Mapping[str, str] = MappingProxyType({})) -> None:
    """Let log lines of this process carry the ids of requests, and make log lines of all that it prints.

    What is printed goes to the logger `stoker.script.print`. Its handlers are those of the root logger at this
    moment: a script that configures logging anew, to write to `sys.stderr`, must not make a line of each line
    for ever.

    Args:
        facts: What lines of JSON have beside that.
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
