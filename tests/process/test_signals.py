"""SIGTERM and SIGINT: a drain that loses no request, and a clean end."""

from __future__ import annotations

import errno
import os
import signal
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.http.raw_http import bearer, request, rows_body, scoring
from tests.live_server import PRIMARY, LiveServer, free_port, run_stoker, wait_until
from tests.process.callers import Callers, scored
from tests.process.conftest import Serve
from tests.tiny_models import BATCHED_SCRIPT, HOLD, Gate, write_script

BODY = rows_body([1, 2, 3, 4])


def _draining(server: LiveServer, connections: int = 1) -> bool:
    """Whether all of so many connections say so that are open at once, and so are spread over the frontends."""
    with ExitStack() as opened:
        used = [opened.enter_context(server.connect()) for _ in range(connections)]
        return all(one.ask(request("GET", "/v2/health/ready")).status == 503 for one in used)


def test_sigterm_under_load_loses_no_request(serve: Serve, doubler: Path) -> None:
    """Of 16 kept-alive connections and 8 callers that always open new ones, every request is answered rightly.

    Connections on which nothing happens are good during the grace, and do not delay the end.
    """
    server = serve(doubler, "--frontends", "2", "--drain-grace-s", "5")
    with ExitStack() as connections:
        idle = [connections.enter_context(server.connect()) for _ in range(16)]
        for connection in idle:
            assert connection.ask(scoring("/score", PRIMARY, BODY)).status == 200
        with Callers(server.port, scored(server.key), kept_alive=16, fresh=8) as callers:
            wait_until(lambda: callers.answered(500), "the load runs")
            stopped_s = time.monotonic()
            server.signal(signal.SIGTERM)
            wait_until(lambda: _draining(server, connections=8), "both frontends know it")
            ready_off_s = time.monotonic()
            last = idle[0].ask(scoring("/score", PRIMARY, BODY))
            wait_until(
                lambda: callers.answered(50, after_s=ready_off_s), "requests are still answered after that"
            )
            outcomes = callers.join()
            exit_code = server.wait()
        for connection in idle[1:]:
            connection.assert_ended()

    assert (last.status, last.closes, last.json()) == (200, True, [[2, 4, 6, 8]])
    lost = [outcome for outcome in outcomes if not outcome.right]
    assert lost == [], f"{len(lost)} of {len(outcomes)} were lost: {lost[0]}"
    late = [outcome for outcome in outcomes if outcome.sent_s > ready_off_s]
    assert late, "requests came during the drain"
    assert all(outcome.answer is not None and outcome.answer.closes for outcome in late)
    early = [outcome for outcome in outcomes if outcome.ended_s < stopped_s]
    assert not any(outcome.answer is not None and outcome.answer.closes for outcome in early)
    assert exit_code == 0
    assert server.pids() == []
    assert "Traceback" not in server.output()
    assert "cut off" not in server.output()


def test_sigterm_waits_for_running_and_for_waiting_requests(serve: Serve, tmp_path: Path) -> None:
    """Requests that the device holds, or that have only half arrived, are answered before the end."""
    script = write_script(tmp_path / "batched", BATCHED_SCRIPT)
    gate = Gate(script.parent)
    server = serve(script, "--frontends", "1", "--drain-grace-s", "0.2")
    message = scoring("/score", PRIMARY, BODY)
    with ExitStack() as connections:
        running, waiting, arriving, idle = (connections.enter_context(server.connect()) for _ in range(4))
        idle.assert_open()
        running.send(scoring("/score", PRIMARY, rows_body([HOLD, 0, 0, 0])))
        wait_until(lambda: gate.entered, "the script holds the first request")
        waiting.send(message)
        arriving.send(message[:-5])
        wait_until(lambda: server.metric("stoker_rows_in_flight", model="batched") == 2, "all have been read")
        server.signal(signal.SIGTERM)
        wait_until(lambda: _port_is_closed(server), "the port is closed")
        # The idle connection ends, the others live on.
        idle.assert_ended()
        arriving.send(message[-5:])
        gate.open()
        answers = [connection.answer() for connection in (running, waiting, arriving)]
        for connection in (running, waiting, arriving):
            connection.assert_ended()

    assert [answer.status for answer in answers] == [200] * 3
    assert [answer.closes for answer in answers] == [True] * 3
    assert answers[0].json() == [[3 * HOLD, 0, 0, 0]]
    assert server.wait() == 0
    assert server.pids() == []


def _port_is_closed(server: LiveServer) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", server.port)) == errno.ECONNREFUSED


def test_readiness_during_the_drain_says_why(serve: Serve, doubler: Path) -> None:
    """While the server drains, liveness stays, readiness is 503 with the reason, on every route."""
    server = serve(doubler, "--frontends", "1", "--drain-grace-s", "30")
    server.signal(signal.SIGTERM)
    wait_until(lambda: _draining(server), "readiness is off")

    ready = server.get("/v2/health/ready")
    assert ready.json()["ready"] is False
    assert "shutting down" in ready.json()["message"]
    for path in ("/", "/v2/health/live", "/metrics", "/swagger.json"):
        answer = server.describe(path)
        assert (answer.status, answer.closes) == (200, True), path
    with server.connect() as connection:
        answer = connection.ask(request("GET", "/nothing"))
        assert (answer.status, answer.closes) == (404, True)
        connection.assert_ended()


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once(serve: Serve, tmp_path: Path, first: signal.Signals) -> None:
    """The server does not wait for running requests then."""
    script = write_script(tmp_path / "batched", BATCHED_SCRIPT)
    server = serve(script, "--frontends", "2", "--drain-grace-s", "600", "--timeout-ms", "600000")
    with server.connect() as connection:
        connection.send(scoring("/score", PRIMARY, rows_body([HOLD, 0, 0, 0])))
        wait_until(lambda: Gate(script.parent).entered, "the script holds a request for ever")
        server.signal(first)
        wait_until(lambda: _port_is_closed(server) or _draining(server), "the first signal has arrived")
        # One that comes at once counts as the same: timeout(1) signals the process and then its group.
        wait_until(lambda: _ends_by(server, signal.SIGTERM), "the server has ended", every_s=0.3)

    assert server.wait() == 1
    wait_until(lambda: not server.pids(), "no process is left")
    assert "Traceback" not in server.output()


def _ends_by(server: LiveServer, number: signal.Signals) -> bool:
    server.signal(number)
    return server.process.poll() is not None


def test_ctrl_c_is_clean(serve: Serve, doubler: Path) -> None:
    """Ctrl-C in a terminal reaches the whole process group: one quiet end, no traceback, nothing left."""
    server = serve(doubler, "--frontends", "2")
    with Callers(server.port, scored(server.key), kept_alive=8) as callers:
        wait_until(lambda: callers.answered(100), "the load runs")
        os.killpg(server.process.pid, signal.SIGINT)
        outcomes = callers.join()
        exit_code = server.wait()

    assert exit_code == 0
    assert [outcome for outcome in outcomes if not outcome.right] == []
    assert server.pids() == []
    assert "Traceback" not in server.output()
    assert server.output().rstrip().endswith("Stoker has stopped.")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_model_loads_ends_at_once(
    serve: Serve, tmp_path: Path, number: signal.Signals
) -> None:
    """A server that is not ready says so, scores nothing, and has nothing to drain."""
    text = "import pathlib, time\ndef init():\n    pathlib.Path(__file__).with_name('loading').touch()\n"
    script = write_script(
        tmp_path / "slow", text + "    time.sleep(600)\ndef run(raw_data):\n    return raw_data\n"
    )
    server = serve(
        script, "--frontends", "1", "--drain-grace-s", "600", port=free_port(), ready_within_s=None
    )
    wait_until(script.with_name("loading").exists, "init() runs")
    wait_until(lambda: not _port_is_closed(server), "the frontend listens")
    ready, scored_early = server.get("/v2/health/ready"), server.score([1])
    live = server.get("/v2/health/live")
    server.signal(number)
    exit_code = server.wait()

    assert (live.status, ready.status) == (200, 503)
    assert "WARNING" not in server.output(), "that a loading process is killed is no news"
    assert ready.json()["message"] == "Not ready yet: slow."
    assert (scored_early.status, scored_early.error_code()) == (503, "not_ready")
    assert int(scored_early.header("retry-after") or 0) >= 1
    assert exit_code == 0
    assert server.pids() == []
    assert "Traceback" not in server.output()


def test_a_signal_while_a_further_model_loads_waits_for_no_load(serve: Serve, tmp_path: Path) -> None:
    """Its caller gets the error that the server shuts down; served requests end as usual."""
    workspace, loading = tmp_path / "workspace", tmp_path / "loading"
    served = write_script(tmp_path / "served", "def init(): pass\ndef run(raw_data): return raw_data\n")
    slow = write_script(
        tmp_path / "slow",
        "import pathlib, time\n"
        f"def init():\n    pathlib.Path({str(loading)!r}).touch()\n    time.sleep(600)\n"
        "def run(raw_data): return raw_data\n",
    )
    assert run_stoker("models", "register", "slow", slow, "--workspace", workspace).returncode == 0
    admin_key = "admin-key-of-the-tests-0001"
    server = serve(
        served,
        "--frontends",
        "1",
        "--drain-grace-s",
        "0",
        workspace=workspace,
        env={"STOKER_ADMIN_KEY": admin_key},
    )
    with server.connect() as loader:
        loader.send(request("POST", "/v2/repository/models/slow/load", [bearer(admin_key)], b""))
        wait_until(loading.exists, "init() runs")
        server.signal(signal.SIGTERM)
        answer = loader.answer()
        assert server.wait() == 0
    assert (answer.status, answer.json()) == (503, {"error": "The server is shutting down."})
    assert server.pids() == []
    assert not {"Traceback", "WARNING"}.intersection(server.output().split())
