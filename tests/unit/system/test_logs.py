"""Log lines: one a record, with any text, and a bounded number of them."""

from __future__ import annotations

import contextlib
import contextvars
import errno
import io
import json
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Iterator

import pytest
from tests.patience import PATIENCE_S

from stoker.system.logs import (
    JsonFormatter,
    LimitedHandler,
    LineFormatter,
    LineLimit,
    LogFormat,
    LogSettings,
    change_log_settings,
    configure_logging,
    escaped_json,
    escaped_lines,
    log_format,
    log_settings,
    open_request_log,
    requests_in_log,
    with_facts,
)

FORGED = "2026-01-01T00:00:00.000Z INFO [supervisor] stoker.keys - all is well"


class Log:
    """A log that is kept, with a clock that stands still until a test moves it."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, formatter: type[LineFormatter] = LineFormatter
    ) -> None:
        self.stream = io.StringIO()
        monkeypatch.setattr(sys, "stderr", self.stream)
        self.now_s = 0.0
        self.handler = LimitedHandler(LineLimit(lambda: self.now_s), formatter("frontend"))

    def write(self, message: str, name: str = "stoker.test", **more: object) -> None:
        record = {"name": name, "levelname": "ERROR", "levelno": logging.ERROR, "msg": message}
        self.handler.handle(logging.makeLogRecord({**record, **more}))

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


def test_record_of_any_text_is_one_line(log: Log) -> None:
    """Line ends of all kinds, escape sequences, C1 controls and what turns text round are escaped; words are not."""
    log.write(f"bad\n{FORGED}\r\x1b[2J\x9b2J\u2028\u202e\x00\ud800 größe\tµ\n")
    assert log.lines() == [
        f"stoker.test - bad\\n{FORGED}\\r\\x1b[2J\\x9b2J\\u2028\\u202e\\x00\\ud800 größe\tµ",
    ]


def test_escaped_output_keeps_its_lines_and_meaning() -> None:
    """Errors keep their lines, and JSON outside ASCII keeps its values."""
    assert escaped_lines("größe\n\x1b[2J\r\n") == "größe\n\\x1b[2J\\r\n"
    data = {"ü\x9b": "\u202e\ud800\n"}
    line = escaped_json(json.dumps(data, ensure_ascii=False))
    assert line.isprintable()
    assert "ü" in line
    assert json.loads(line) == data


def test_the_lines_of_a_traceback_cannot_be_taken_for_records(log: Log) -> None:
    """They keep their lines, but each begins with a space, and is escaped as a record is."""
    log.fail(ValueError(f"boom\n{FORGED}\n\x1b[2J"))
    first, *trace = log.lines()
    assert first == "stoker.test - it failed"
    assert trace[0] == "  Traceback (most recent call last):"
    assert trace[-3:] == ["  ValueError: boom", f"  {FORGED}", "  \\x1b[2J"]
    assert all(line.startswith("  ") for line in trace)


def test_long_log_records_are_cut(log: Log) -> None:
    """Messages, lines of an exception and their number are bounded."""
    log.write("m" * 3_000_000)
    log.fail(ValueError("e" * 3_000_000))
    log.fail(ValueError("\n".join(map(str, range(10_000)))))
    assert len(log.stream.getvalue()) < 20_000
    assert len(log.lines()) < 120
    assert log.lines()[0].endswith("m… (3000000 characters)")
    assert log.lines()[-1] == "  9999"
    assert any(line.startswith("  … (") and line.endswith(" lines)") for line in log.lines())


def test_message_of_a_script_is_escaped_as_its_request_id(log: Log) -> None:
    """Further lines of a script's message are indented, so that no caller can forge a log line."""
    log.write(f"a\n{FORGED}", "of.the\n.script", request="request \x9b2J\n: ")
    log.write("\x1b[1mbold\x85", "stoker.script.print")
    assert log.lines() == [
        "of.the\\n.script - request \\x9b2J\\n: a",
        f"  {FORGED}",
        "stoker.script.print - \\x1b[1mbold\\x85",
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
        f"stoker.system.logs - {5000 - written} records left out here: "
        "there were too many at once, or they could not be written",
        "stoker.test - later",
    ]
    before = len(log.lines())
    for _ in range(5000):
        log.write("again")
    assert before < len(log.lines()) < before + 300, "a second gives room for a second's lines"
    line_count = len(log.lines())
    log.handler.close()
    assert "records left out here" in log.lines()[line_count]


def test_a_traceback_goes_before_its_line_does(log: Log) -> None:
    """Where only one line has room, the record is there without what follows it."""
    for _ in range(600):
        log.fail(ValueError("boom"))
    assert log.lines()[-1] == "stoker.test - it failed (6 lines about it left out)"


def test_messages_of_scripts_are_not_limited(log: Log) -> None:
    """A script's messages are all logged: the server may be run for them."""
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
    second, third = log.lines()
    assert second.startswith("stoker.system.logs - 2 records left out here")
    assert third == "stoker.test - third"


@pytest.fixture
def json_log(monkeypatch: pytest.MonkeyPatch) -> Log:
    return Log(monkeypatch, JsonFormatter)


def test_a_record_in_json_has_its_facts_as_members(json_log: Log) -> None:
    """Those that are known, in one line of ASCII; a second look at the value finds nothing that moves a terminal."""
    facts = with_facts(request_id="id", trace_id="", model="größe", version="3", status=503)
    json_log.write("bad\n\x1b[2J\x9b\u2028\ud800 größe", created=1.5, **facts)
    text = json_log.stream.getvalue()
    assert text.isascii()
    assert text.count("\n") == 1
    assert json.loads(text) == {
        "time": "1970-01-01T00:00:01.500Z",
        "level": "ERROR",
        "process": "frontend",
        "logger": "stoker.test",
        "message": "bad\\n\\x1b[2J\\x9b\\u2028\\ud800 größe",
        "request_id": "id",
        "model": "größe",
        "version": "3",
        "status": 503,
    }


def test_a_traceback_in_json_is_a_member_and_goes_before_its_record(json_log: Log) -> None:
    """Its lines are escaped and keep their ends; where only one line has room, the record is there without it."""
    json_log.fail(ValueError("boom\x9b"))
    trace = json.loads(json_log.stream.getvalue())["traceback"]
    assert trace.splitlines()[0] == "Traceback (most recent call last):"
    assert trace.splitlines()[-1] == "ValueError: boom\\x9b"
    for _ in range(600):
        json_log.fail(ValueError("boom"))
    last = json.loads(json_log.stream.getvalue().splitlines()[-1])
    assert last["message"].startswith("it failed (")
    assert last["message"].endswith("lines about it left out)")
    assert "traceback" not in last


def test_the_trace_of_a_request_is_in_its_lines_as_text(log: Log) -> None:
    """It stands behind the message."""
    log.write("it failed", **with_facts(trace_id="ab" * 16))
    assert log.lines() == [f"stoker.test - it failed (trace {'ab' * 16})"]


@pytest.mark.parametrize(
    ("message", "formatter"), [("JSON", JsonFormatter), ("xml", LineFormatter), ("", LineFormatter)]
)
def test_a_process_logs_as_its_server_does(
    message: str, formatter: type[LineFormatter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment sets the form, and other output becomes text."""
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setenv("STOKER_LOG_FORMAT", message)
    level = root.level
    try:
        configure_logging("device")
    finally:
        root.setLevel(level)
    assert type(root.handlers[0].formatter) is formatter
    assert log_format() == ("json" if formatter is JsonFormatter else "text"), (
        "what it tells its own children"
    )


def test_log_settings_can_be_changed(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each level is switched by itself, but critical lines stay; the form holds for all later lines."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [log.handler])
    change_log_settings(LogSettings(info=False, error=False))
    for name in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"):
        log.write(name, levelno=logging.getLevelNamesMapping()[name])
    assert [line.rpartition(" ")[2] for line in log.lines()] == ["DEBUG", "WARNING", "CRITICAL"]
    settings = LogSettings(form="json")
    change_log_settings(settings)
    log.write("all is well")
    assert json.loads(log.lines()[-1])["process"] == "frontend"
    assert log_settings() == settings


def test_a_verbose_log_has_no_more_of_libraries() -> None:
    """Below INFO only the server's own records are written: those of libraries have heads of requests, with keys."""
    try:
        change_log_settings(LogSettings(verbose_level=1))
        assert logging.getLogger("stoker.gateway").isEnabledFor(logging.DEBUG)
        assert not logging.getLogger("hpack").isEnabledFor(logging.DEBUG)
    finally:
        change_log_settings(LogSettings())
    assert logging.getLogger("stoker").level == logging.NOTSET


Lines = Callable[[], list[str]]


@contextlib.contextmanager
def script_process(form: LogFormat = "text") -> Iterator[Lines]:
    """Log as the process of a script does, and read the lines, each without its time; then all is as it was.

    No fixture: pytest takes the streams back between a fixture and its test.
    """
    root, printed = logging.getLogger(), logging.getLogger("stoker.script.print")
    level, before = root.level, (root.handlers, sys.stdout, sys.stderr)
    stream = io.StringIO()
    root.handlers = []
    sys.stdout, sys.stderr = io.StringIO(), stream
    try:
        configure_logging("device", form=form)
        open_request_log({"model": "churn", "version": "2"})
        cut = " " if form == "text" else "{"
        yield lambda: [line.partition(cut)[2] for line in stream.getvalue().splitlines()]
    finally:
        root.handlers, sys.stdout, sys.stderr = before
        root.setLevel(level)
        printed.handlers, printed.propagate = [], True


def messages(lines: Lines) -> list[str]:
    """The lines without time, level and logger."""
    return [line.partition(" - ")[2] for line in lines()]


def test_prints_and_logs_of_scripts_have_the_request_id() -> None:
    """Standard output, standard error and `logging` have the id during a request."""
    with script_process() as lines:
        print("starting")
        with requests_in_log(b"id-1"):
            print("hello", 3)
            print("worse", file=sys.stderr)
            logging.getLogger("of the script").warning("value %d", 7)
        logging.getLogger("of the script").info("idle")
        assert lines() == [
            "INFO [device] stoker.script.print - starting",
            "INFO [device] stoker.script.print - request id-1: hello 3",
            "INFO [device] stoker.script.print - request id-1: worse",
            "WARNING [device] of the script - request id-1: value 7",
            "INFO [device] of the script - idle",
        ]


def test_a_line_is_logged_when_it_ends() -> None:
    """Pieces are put together, several lines taken apart, empty ones left out; the request's end ends a line."""
    with script_process() as lines:
        with requests_in_log(b"a"):
            print("one", end=" ")
            print("line\nand another\n\n")
            print("no end", end="")
            assert len(lines()) == 2
        assert messages(lines) == [
            "request a: one line",
            "request a: and another",
            "request a: no end",
        ]


def test_a_progress_bar_is_one_line() -> None:
    """Of a line that is written over, the last state is logged."""
    with script_process() as lines:
        print("10 %\r50 %\r100 %\r")
        assert lines() == ["INFO [device] stoker.script.print - 100 %"]


def test_merged_requests_are_named_up_to_three() -> None:
    """A line of a merged call belongs to all of them."""
    with script_process() as lines:
        with requests_in_log(b"a", b"b"):
            print("two")
        with requests_in_log(*(b"%d" % number for number in range(5))):
            print("five")
        assert messages(lines) == [
            "request a, b: two",
            "request 0, 1, 2 and 2 more: five",
        ]


def test_threads_in_a_copy_of_the_context_are_named_too() -> None:
    """Each thread has an unfinished line of its own."""
    with script_process() as lines:
        with requests_in_log(b"main"):
            print("main be", end="")
            context = contextvars.copy_context()
            thread = threading.Thread(target=context.run, args=(print, "from a thread"))
            thread.start()
            thread.join()
            print("gins")
        assert messages(lines) == [
            "request main: from a thread",
            "request main: main begins",
        ]


def test_requests_on_different_threads_have_their_own_ids() -> None:
    """An id is that of the thread's own request."""
    with script_process() as lines:
        both = threading.Barrier(2)

        def serve(request_id: bytes) -> None:
            with requests_in_log(request_id):
                both.wait(PATIENCE_S)
                print(f"serving {request_id.decode()}")
                both.wait(PATIENCE_S)

        threads = [threading.Thread(target=serve, args=(request_id,)) for request_id in (b"x", b"y")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(messages(lines)) == [
            "request x: serving x",
            "request y: serving y",
        ]


def test_a_script_that_configures_logging_anew_makes_no_loop() -> None:
    """Its handler writes to `sys.stderr`, which is a log: the lines come out once, in its format."""
    with script_process() as lines:
        logging.basicConfig(force=True, format="MINE %(message)s")
        logging.getLogger("of the script").warning("text")
        assert lines() == ["INFO [device] stoker.script.print - MINE text"]


def test_a_traceback_is_logged_line_by_line() -> None:
    """As Python prints it."""
    with script_process() as lines:
        with requests_in_log(b"t"):
            traceback.print_exception(ValueError("first\nsecond"))
        assert messages(lines) == ["request t: ValueError: first", "request t: second"]


def test_the_streams_can_be_used_as_files() -> None:
    """Libraries ask them for this and that."""
    with script_process() as lines:
        assert sys.stdout.writable()
        assert not sys.stdout.isatty()
        assert sys.stdout.encoding == "utf-8"
        assert sys.stdout.write("abc\n") == 4
        sys.stdout.writelines(["d\n"])
        sys.stdout.flush()
        assert len(lines()) == 2


def test_in_json_lines_of_a_script_say_model_version_and_requests() -> None:
    """They have one id, or those of all requests that run together; the script's `extra` adds nothing."""
    logger = logging.getLogger("of the script")
    with script_process("json") as lines:
        with requests_in_log(b"id\x9b"):
            print("hello\x1b[1m")
        with requests_in_log(b"a", b"b"):
            logger.warning("two\nlines", extra={"facts": {"status": object()}, "request": "forged"})
        logger.info("idle")
        shown = [json.loads("{" + line) for line in lines()]
    for line in shown:
        assert (line.pop("model"), line.pop("version"), line.pop("process")) == ("churn", "2", "device")
        del line["time"]
    assert shown == [
        {
            "level": "INFO",
            "logger": "stoker.script.print",
            "message": "hello\\x1b[1m",
            "request_id": "id\\x9b",
        },
        {"level": "WARNING", "logger": "of the script", "message": "two\nlines", "request_ids": ["a", "b"]},
        {"level": "INFO", "logger": "of the script", "message": "idle"},
    ]
