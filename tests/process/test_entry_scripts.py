"""An entry script in its process: its log lines, its files, and what becomes of a `run` that does not return."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.http.raw_http import Answer, scoring
from tests.live_server import PRIMARY, LiveServer, wait_until
from tests.process.conftest import Serve
from tests.tiny_models import write_script

from stoker_run.processes import descendants

TIMEOUT_MS = 3000

SCRIPT = """
import logging
import multiprocessing
import os
import sys
import time

from words import GREETING

def init():
    print("initialised")
    os.fork()

def length(word):
    return len(word)

def run(raw_data):
    if raw_data == '"fork"' and os.fork() == 0:
        sys.exit(0)
    if raw_data == '"pool"':
        with multiprocessing.Pool(1) as pool:
            return pool.map(length, ["a", "bc"])
    if raw_data == '"spin"':
        while True:
            pass
    if raw_data == '"sleep"':
        time.sleep(600)
    print(GREETING, "from print")
    print("from stderr", file=sys.stderr)
    logging.getLogger("mine").warning("from logging")
    return open("labels.txt").read()
"""

HOLDS_THE_LOCK = """
import re

def init():
    pass

def run(raw_data):
    if "hold" in raw_data:
        re.match("(a+)+$", "a" * 60 + "b")
    return raw_data
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """One server of a script with a helper module and a file beside it."""
    script = write_script(tmp_path_factory.mktemp("code"), SCRIPT)
    script.with_name("words.py").write_text("GREETING = 'hello'\n")
    script.with_name("labels.txt").write_text("cat dog")
    options = ["--frontends", "1", "--timeout-ms", str(TIMEOUT_MS), "--device", "cpu"]
    with LiveServer(tmp_path_factory.mktemp("server"), script, *options) as running:
        yield running


def ask(server: LiveServer, body: bytes, request_id: str = "id-of-the-test") -> Answer:
    """Score one body."""
    with server.connect() as connection:
        return connection.ask(scoring("/score", PRIMARY, body, [("x-request-id", request_id)]))


def test_a_script_imports_modules_from_its_folder(server: LiveServer) -> None:
    """Helper modules and files by relative paths, wherever the server was started."""
    answer = ask(server, b"[]")
    assert (answer.status, answer.json()) == (200, "cat dog")


def test_output_of_a_script_is_logged_with_the_request_id(server: LiveServer) -> None:
    """Prints and records of `run` have the request's id; those of `init` have none."""
    ask(server, b"[]", "id-for-the-log")
    wanted = {
        "INFO [device code0] stoker.script.print - initialised",
        "INFO [device code0] stoker.script.print - request id-for-the-log: hello from print",
        "INFO [device code0] stoker.script.print - request id-for-the-log: from stderr",
        "WARNING [device code0] mine - request id-for-the-log: from logging",
    }

    def lines() -> set[str]:
        return {line.partition(" ")[2] for line in server.output().splitlines()}

    wait_until(lambda: wanted <= lines(), "the lines of the script")


def test_children_of_a_script_answer_no_requests(server: LiveServer) -> None:
    """Those that come back from `init` and `run` have ended; a pool of processes works as elsewhere."""
    assert ask(server, b'"pool"').json() == [1, 2]
    assert ask(server, b'"fork"').json() == "cat dog"
    ended = re.compile(
        r"process \d+, which the script has forked, came back from its call: it ends with code 0"
    )
    wait_until(lambda: len(ended.findall(server.output())) >= 2, "both have ended")
    (pid,) = server.device_pids()
    wait_until(lambda: not descendants(pid), "nobody is left of them")


@pytest.mark.interrupts
def test_a_run_that_takes_too_long_is_interrupted(server: LiveServer) -> None:
    """Its caller is answered at the deadline; the process lives on and serves the next one."""
    (pid,) = server.device_pids()
    assert ask(server, b'"spin"').status >= 500
    wait_until(lambda: "it is interrupted" in server.output(), "the log says so")
    assert ask(server, b"[]").status == 200
    assert server.device_pids() == [pid]


@pytest.mark.interrupts
def test_a_run_that_cannot_be_interrupted_costs_its_process(server: LiveServer) -> None:
    """The log says so, the supervisor starts another, and the server goes on."""
    (pid,) = server.device_pids()
    assert ask(server, b'"sleep"').status >= 500
    wait_until(lambda: server.device_pids() not in ([pid], []), "another process has begun")
    wait_until(lambda: server.ready, "it is ready")
    assert ask(server, b"[]").status == 200
    assert "has ignored the interruption for" in server.output()


@pytest.mark.long
def test_a_run_that_keeps_the_interpreter_lock_costs_its_process(serve: Serve, tmp_path: Path) -> None:
    """No thread of Python runs in the process any more, so a timer of C ends it; the next process answers."""
    script = write_script(tmp_path / "code", HOLDS_THE_LOCK)
    server = serve(script, "--frontends", "1", "--timeout-ms", "1300", "--device", "cpu")
    (pid,) = server.device_pids()
    assert ask(server, b'"hold"').status >= 500
    wait_until(lambda: server.device_pids() not in ([pid], []), "another process has begun")
    wait_until(lambda: server.ready and ask(server, b"[]").status == 200, "it answers")
    log = server.output()
    assert "Timeout (0:00:08.3" in log
    assert "in match" in log
    assert "exited with code 1; starting it again" in log


LOGGED_SCRIPT = """
def init():
    print("initialised")

def run(raw_data, request_headers):
    print("forged\\x1b[2J\\x85", request_headers["Traceparent"])
    return 1
"""


def test_a_server_logs_json_with_a_line_for_each_request(tmp_path: Path, serve: Serve) -> None:
    """Each line of standard error is an object, the script's and the access log's with the ids of the request."""
    traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    script = write_script(tmp_path / "code", LOGGED_SCRIPT)
    options = ["--frontends", "1", "--device", "cpu", "--log-format", "json", "--access-log-sample", "1"]
    server = serve(script, *options)
    headers = [("x-request-id", "mi\x85ne"), ("traceparent", traceparent)]
    with server.connect() as connection:
        assert connection.ask(scoring("/score", PRIMARY, b"[]", headers)).status == 200
        assert connection.ask(scoring("/score", "wrong", b"[]", headers)).status == 401

    def lines() -> list[dict[str, object]]:
        return [json.loads(line) for line in server.output().splitlines() if line.startswith("{")]

    def of(logger: str, count: int) -> list[dict[str, object]] | None:
        found = [line for line in lines() if line["logger"] == logger]
        return found if len(found) >= count else None

    _, printed = wait_until(lambda: of("stoker.script.print", 2), "the lines of the script")
    scored, refused = wait_until(lambda: of("stoker.access", 2), "the access log")
    assert (printed["message"], printed["request_id"]) == (f"forged\\x1b[2J\\x85 {traceparent}", "mi\\x85ne")
    assert (scored["status"], scored["trace_id"]) == (200, traceparent.split("-")[1])
    assert (refused["status"], refused["code"]) == (401, "unauthorized")
    assert {line["request_id"] for line in (scored, refused)} == {"mi\\x85ne"}
    assert {line["model"] for line in (printed, scored, refused)} == {"code"}
    assert " INFO [" not in server.output(), "a line of text"
    assert PRIMARY not in server.output()
