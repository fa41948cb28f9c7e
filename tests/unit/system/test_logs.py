"""Log lines: one a record, whatever it says, and no more of them than a disk should have to take."""

from __future__ import annotations

import errno
import io
import logging
import sys

import pytest

from stoker.system.logs import LimitedHandler, LineFormatter, LineLimit

FORGED = "2026-01-01T00:00:00.000Z INFO [supervisor] stoker.keys - all is well"


class Log:
    """A log that is kept, with a clock that stands still until a test moves it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stream = io.StringIO()
        monkeypatch.setattr(sys, "stderr", self.stream)
        self.now_s = 0.0
        self.handler = LimitedHandler(LineLimit(lambda: self.now_s))
        self.handler.setFormatter(LineFormatter("frontend"))

    def write(self, message: str, name: str = "stoker.test", **more: object) -> None:
        told = {"name": name, "levelname": "ERROR", "levelno": logging.ERROR, "msg": message}
        self.handler.handle(logging.makeLogRecord({**told, **more}))

    def fail(self, error: Exception, message: str = "it failed") -> None:
        """Write an exception with its traceback."""
        try:
            _raise(error)
        except ValueError as raised:
            self.write(message, exc_info=(type(raised), raised, raised.__traceback__))

    def lines(self) -> list[str]:
        """All lines without their time and level."""
        return [line.partition(" [frontend] ")[2] or line for line in self.stream.getvalue().split("\n")[:-1]]


def _raise(error: Exception) -> None:
    raise error


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    return Log(monkeypatch)


def test_a_record_is_one_line_whatever_it_says(log: Log) -> None:
    """Line ends of all kinds, escape sequences, C1 controls and what turns text round are escaped; words are not."""
    log.write(f"bad\n{FORGED}\r\x1b[2J\x9b2J\u2028\u202e\x00\ud800 größe\tµ\n")
    assert log.lines() == [
        f"stoker.test - bad\\n{FORGED}\\r\\x1b[2J\\x9b2J\\u2028\\u202e\\x00\\ud800 größe\tµ",
    ]


def test_the_lines_of_a_traceback_cannot_be_taken_for_records(log: Log) -> None:
    """They keep their lines, but each begins with a space, and is escaped as a record is."""
    log.fail(ValueError(f"boom\n{FORGED}\n\x1b[2J"))
    first, *trace = log.lines()
    assert first == "stoker.test - it failed"
    assert trace[0] == "  Traceback (most recent call last):"
    assert trace[-3:] == ["  ValueError: boom", f"  {FORGED}", "  \\x1b[2J"]
    assert all(line.startswith("  ") for line in trace)


def test_what_is_very_long_is_cut(log: Log) -> None:
    """A message, a line of an exception's text, and how many of these there are."""
    log.write("m" * 3_000_000)
    log.fail(ValueError("e" * 3_000_000))
    log.fail(ValueError("\n".join(map(str, range(10_000)))))
    assert len(log.stream.getvalue()) < 20_000
    assert len(log.lines()) < 120
    assert log.lines()[0].endswith("m… (3000000 characters)")
    assert log.lines()[-1] == "  9999"
    assert any(line.startswith("  … (") and line.endswith(" lines)") for line in log.lines())


def test_the_id_of_a_request_is_escaped_where_a_script_logs(log: Log) -> None:
    """Callers choose it; what the script says is its own, as are the lines that it takes."""
    log.write("a\nb", "of.the.script", request="request \x9b2J: ")
    log.write("\x1b[1mbold", "stoker.script.print")
    assert log.lines() == [
        "of.the.script - request \\x9b2J: a",
        "b",
        "stoker.script.print - \x1b[1mbold",
    ]


def test_too_many_records_are_counted_and_not_written(log: Log) -> None:
    """So many at once, then so many a second; the next one that is written says how many were not."""
    for number in range(5000):
        log.write(f"{number}")
    written = len(log.lines())
    assert 100 <= written < 5000
    log.now_s += 1.0
    log.write("later")
    assert log.lines()[written:] == [
        f"stoker.system.logs - {5000 - written} records are left out here: "
        "there were too many at once, or they could not be written",
        "stoker.test - later",
    ]
    before = len(log.lines())
    for _ in range(5000):
        log.write("again")
    assert before < len(log.lines()) < before + 300, "a second gives room for a second's lines"
    told = len(log.lines())
    log.handler.close()
    assert "records are left out here" in log.lines()[told]


def test_a_traceback_goes_before_its_line_does(log: Log) -> None:
    """Where only one line has room, the record is there without what follows it."""
    for _ in range(600):
        log.fail(ValueError("boom"))
    assert log.lines()[-1] == "stoker.test - it failed (6 lines about it are left out)"


def test_what_scripts_log_is_not_limited(log: Log) -> None:
    """It is the operator's own, and may be all that the server is run for."""
    for _ in range(5000):
        log.write("scored", "of.the.script")
    assert len(log.lines()) == 5000


def test_a_log_that_cannot_be_written_costs_records_and_nothing_else(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is raised where standard error itself makes records, as in processes of scripts; they are counted."""

    def full(text: str) -> int:
        raise OSError(errno.EFBIG, "File too large")

    class Prints(io.StringIO):
        def write(self, text: str) -> int:
            log.write(text)
            return len(text)

    write = log.stream.write
    monkeypatch.setattr(log.stream, "write", full)
    monkeypatch.setattr(sys, "stderr", Prints())
    log.fail(ValueError("wrong"))
    log.write("second")
    monkeypatch.setattr(log.stream, "write", write)
    log.write("third")
    told, third = log.lines()
    assert told.startswith("stoker.system.logs - 2 records are left out here")
    assert third == "stoker.test - third"
