"""Log lines of scripts carry the id of their request, and prints become log lines."""

from __future__ import annotations

import contextlib
import contextvars
import io
import json
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Iterator

from tests.patience import PATIENCE_S

from stoker.system.logs import LogFormat, configure_logging, open_request_log, requests_in_log

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


def test_what_scripts_print_and_log_has_the_id_of_the_request() -> None:
    """Standard output, standard error and `logging`, within the request and outside."""
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


def test_requests_on_different_threads_are_told_apart() -> None:
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
    """One id, or those of all requests that are run together; what the script says by `extra` adds nothing."""
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
