"""Processes that are killed: losses, refusals, recovery."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.http.raw_http import Answer, Connection, request, rows_body, scoring
from tests.live_server import PRIMARY, LiveServer, wait_until
from tests.patience import PATIENCE_S
from tests.process.callers import Callers, scored
from tests.process.conftest import Serve
from tests.tiny_models import BATCHED_SCRIPT, DIE, HOLD, Gate, write_script

# A killed process starts again when its test lets it: otherwise it could be back before the test has looked.
WAITS_TO_BEGIN = """
find_folder = init

def init():
    find_folder()
    while folder.joinpath("later").exists():
        time.sleep(0.002)
"""


def _ready_everywhere(server: LiveServer, frontends: int) -> bool:
    """Whether every frontend is ready."""
    return len(server.frontend_pids()) == frontends and server.ready_on(8 * frontends)


@pytest.fixture(scope="module")
def two_frontends(tmp_path_factory: pytest.TempPathFactory, doubler: Path) -> Iterator[LiveServer]:
    """A server that comes back after each test's faults."""
    with LiveServer(tmp_path_factory.mktemp("two"), doubler, "--frontends", "2") as server:
        yield server


def test_connections_are_spread_evenly_over_frontends(two_frontends: LiveServer) -> None:
    """Of four connections each frontend has two, which the kernel's hash does in three of eight times."""
    server = two_frontends
    message = scoring("/score", PRIMARY, rows_body([1, 2, 3, 4]))
    with server.connect() as kept:

        def open_connections() -> str:
            text = kept.ask(request("GET", "/metrics")).body.decode()
            return re.findall(r'^stoker_open_connections{protocol="http"} (.+)$', text, re.MULTILINE)[0]

        for _ in range(6):
            wait_until(lambda: open_connections() == "1.0", "all others have ended")
            with ExitStack() as others:
                for _ in range(3):
                    answer = others.enter_context(server.connect()).ask(message)
                    assert answer.json() == [[2, 4, 6, 8]]
                assert open_connections() == "4.0"
                # They stay as they are: it is looked again for the sake of the table alone.
                wait_until(
                    lambda: [len(ports) for ports in server.connections()] == [2, 2],
                    "each has two of them",
                )


def test_a_device_process_that_is_killed_under_load_comes_back(two_frontends: LiveServer) -> None:
    """Only its requests are lost, as 503, and readiness is false; the same frontends are then ready and right."""
    server = two_frontends
    frontends = set(server.frontend_pids())
    (device,) = server.device_pids()
    with Callers(server.port, scored(server.key), kept_alive=32) as callers:
        wait_until(lambda: callers.answered(500), "the load runs")
        killed_s = time.monotonic()
        os.kill(device, signal.SIGKILL)
        wait_until(lambda: not server.ready, "readiness is off")
        wait_until(lambda: _ready_everywhere(server, 2), "all frontends are ready again")
        recovered_s = time.monotonic()
        wait_until(lambda: callers.answered(500, after_s=recovered_s), "the load runs again")
        outcomes = callers.stop()

    assert set(callers.tally()) <= {200, 503}, callers.tally()
    failed = [outcome for outcome in outcomes if outcome.status == 503]
    for outcome in failed:
        assert outcome.answer is not None
        assert outcome.answer.error_code() in ("device_lost", "not_ready")
        assert int(outcome.answer.header("retry-after") or 0) >= 1
        assert outcome.ended_s >= killed_s, "nothing fails before"
        assert outcome.sent_s <= recovered_s, "nothing fails afterwards"
    held = [outcome for outcome in failed if outcome.answer and outcome.answer.error_code() == "device_lost"]
    assert len(held) <= 32, "each caller had one request in flight"
    assert all(outcome.right for outcome in outcomes if outcome.status == 200)
    assert set(server.frontend_pids()) == frontends, "frontends are not restarted"
    assert server.device_pids() not in ([], [device])
    assert server.metric("stoker_process_restarts_total", process="device") == 1
    assert "was ended by SIGKILL; starting it again in" in server.output()


def test_a_script_that_ends_its_process_fails_only_its_own_requests(serve: Serve, tmp_path: Path) -> None:
    """The requests in flight get 503 with a Retry-After, one of another model none; later ones are right."""
    script = write_script(tmp_path / "batched", BATCHED_SCRIPT + WAITS_TO_BEGIN)
    other = write_script(tmp_path / "other", BATCHED_SCRIPT)
    deployment = tmp_path / "deployment.yaml"
    deployment.write_text(f"models:\n  - path: {script}\n  - path: {other}\nfrontends: 1\n")
    server = serve("--config", deployment)
    fatal, path = Gate(script.parent), "/api/v1/service/batched/score"
    untouched, other_path = Gate(other.parent), "/api/v1/service/other/score"
    hold = rows_body([HOLD, 0, 0, 0])
    with ExitStack() as connections:
        elsewhere, running, waiting, deadly = (connections.enter_context(server.connect()) for _ in range(4))
        elsewhere.send(scoring(other_path, PRIMARY, hold))
        running.send(scoring(path, PRIMARY, hold))
        wait_until(lambda: untouched.entered and fatal.entered, "both scripts hold a request")
        waiting.send(scoring(path, PRIMARY, rows_body([1, 2, 3, 4])))
        deadly.send(scoring(path, PRIMARY, rows_body([DIE, 0, 0, 0])))
        wait_until(
            lambda: server.metric("stoker_rows_in_flight", model="batched") == 3, "three are in flight"
        )
        script.with_name("later").touch()
        fatal.open()
        first = running.answer()
        lost = [connection.answer() for connection in (waiting, deadly)]
        wait_until(
            lambda: server.metric("stoker_rows_in_flight", model="batched") == 0, "no row is in flight"
        )
        assert not server.ready, "that is known before the device process is back"
        script.with_name("later").unlink()
        untouched.open()
        unharmed = elsewhere.answer()
        for connection in (running, waiting, deadly):
            connection.assert_open()

        wait_until(lambda: server.ready, "the server is ready again")
        later = waiting.ask(scoring(path, PRIMARY, rows_body([1, 2, 3, 4])))

    assert (first.status, first.json()) == (200, [[3 * HOLD, 0, 0, 0]])
    assert [(answer.status, answer.error_code()) for answer in lost] == [(503, "device_lost")] * 2
    assert all(int(answer.header("retry-after") or 0) >= 1 for answer in lost)
    assert (unharmed.status, unharmed.json()) == (200, [[3 * HOLD, 0, 0, 0]])
    assert (later.status, later.json()) == (200, [[3, 6, 9, 12]])
    assert "exited with code 7; starting it again in" in server.output()


def test_a_frontend_that_is_killed_under_load_is_replaced(two_frontends: LiveServer) -> None:
    """Only its own connections end; the other frontend answers all the time, and two answer again."""
    server = two_frontends
    devices = server.device_pids()
    before = server.frontend_pids()
    with ExitStack() as connections:
        probes = [connections.enter_context(server.connect()) for _ in range(24)]
        message = scoring("/score", PRIMARY, rows_body([1, 2, 3, 4]))
        for probe in probes:
            assert probe.ask(message).status == 200
        with Callers(server.port, scored(server.key), kept_alive=8, fresh=4) as callers:
            wait_until(lambda: callers.answered(300), "the load runs")
            killed_s = time.monotonic()
            os.kill(before[0], signal.SIGKILL)
            wait_until(
                lambda: before[0] not in server.frontend_pids() and _ready_everywhere(server, 2),
                "the frontend is replaced",
            )
            replaced_s = time.monotonic()
            wait_until(lambda: callers.answered(300, after_s=replaced_s), "the load runs again")
            outcomes = callers.stop()

        survivors = 0
        for probe in probes:
            try:
                survivors += probe.ask(message).json() == [[2, 4, 6, 8]]
            except (OSError, AssertionError):
                continue

    assert 0 < survivors < 24, "the connections of one frontend are still good, those of the other have ended"
    unanswered = [outcome for outcome in outcomes if outcome.answer is None]
    assert len(unanswered) <= 12, "each caller had one request in flight"
    assert all(killed_s < outcome.ended_s < replaced_s for outcome in unanswered)
    assert [outcome for outcome in outcomes if outcome.answer is not None and not outcome.right] == []
    assert server.device_pids() == devices, "the device process goes on"
    assert server.metric("stoker_process_restarts_total", process="frontend") == 1
    wait_until(lambda: server.metric("stoker_rows_in_flight", model="doubler") == 0, "all rows are free")


def test_a_frontend_that_may_open_nothing_more_keeps_its_connections(serve: Serve, doubler: Path) -> None:
    """A device process that comes back costs its replica then, until there is room; its own limit is as it was."""
    found = resource.getrlimit(resource.RLIMIT_NOFILE)
    server = serve(doubler, "--frontends", "1")
    (frontend,), (device,) = server.frontend_pids(), server.device_pids()
    assert resource.prlimit(frontend, resource.RLIMIT_NOFILE) == (found[1], found[1])
    assert resource.prlimit(device, resource.RLIMIT_NOFILE) == found
    message = scoring("/score", PRIMARY, rows_body([1, 2, 3, 4]))
    with server.connect() as kept:
        assert kept.ask(message).status == 200
        resource.prlimit(frontend, resource.RLIMIT_NOFILE, (3, found[1]))
        os.kill(device, signal.SIGKILL)
        wait_until(lambda: "a replica cannot be attached" in server.output(), "there is no room")
        refused = kept.ask(message)
        resource.prlimit(frontend, resource.RLIMIT_NOFILE, (found[1], found[1]))
        wait_until(lambda: kept.ask(message).status == 200, "it is attached")
    assert (refused.status, refused.error_code()) == (503, "not_ready")
    assert server.frontend_pids() == [frontend]


def test_connections_beyond_the_limit_of_descriptors_are_counted(serve: Serve, doubler: Path) -> None:
    """They are closed at once, each is counted and the log says why; those that are open go on."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    server = serve(doubler, "--frontends", "1")
    (frontend,) = server.frontend_pids()
    message = scoring("/score", PRIMARY, rows_body([1, 2, 3, 4]))

    def counted(connection: Connection) -> int:
        body = connection.ask(request("GET", "/metrics")).body.decode()
        return int(float(re.findall(r"^stoker_accept_failures_total (.+)$", body, re.MULTILINE)[0]))

    with ExitStack() as opened:
        kept = opened.enter_context(server.connect())
        assert counted(kept) == 0
        used = {int(path.name) for path in Path(f"/proc/{frontend}/fd").iterdir()}
        free = min(set(range(len(used) + 1)) - used)
        # An eighth is kept, so it has none for connections as soon as it looks at its limit.
        resource.prlimit(frontend, resource.RLIMIT_NOFILE, (free + free // 8, hard))

        def closed_at_once() -> bool:
            with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as sock:
                try:
                    sock.sendall(request("GET", "/v2/health/live"))
                    return sock.recv(1) == b""
                except ConnectionError:
                    return True

        wait_until(lambda: closed_at_once() and counted(kept), "there is no room")
        before = counted(kept)
        assert closed_at_once()
        assert counted(kept) == before + 1
        assert kept.ask(message).status == 200
        assert server.output().count("out of file descriptors") == 1
    resource.prlimit(frontend, resource.RLIMIT_NOFILE, (hard, hard))
    wait_until(lambda: not closed_at_once(), "there is room again")


def test_rows_of_a_killed_frontend_do_not_run(serve: Serve, tmp_path: Path) -> None:
    """The device forgets the rows of a frontend that has died; its successor's requests are right."""
    script = write_script(tmp_path / "batched", BATCHED_SCRIPT)
    gate = Gate(script.parent)
    server = serve(script, "--frontends", "1")
    (frontend,) = server.frontend_pids()
    with server.connect() as running, server.connect() as waiting:
        running.send(scoring("/score", PRIMARY, rows_body([HOLD, 0, 0, 0])))
        wait_until(lambda: gate.entered, "the script holds the first request")
        waiting.send(scoring("/score", PRIMARY, rows_body(*([5, 5, 5, 5] for _ in range(50)))))
        wait_until(lambda: server.metric("stoker_rows_in_flight", model="batched") == 51, "50 rows wait")
        os.kill(frontend, signal.SIGKILL)
        running.assert_ended()
    wait_until(lambda: server.frontend_pids() not in ([], [frontend]), "the frontend is replaced")
    wait_until(lambda: server.ready, "it is ready")
    with server.connect() as connection:
        connection.send(scoring("/score", PRIMARY, rows_body([1, 2, 3, 4])))
        gate.open()
        answer = connection.answer()

    assert (answer.status, answer.json()) == (200, [[3, 6, 9, 12]])
    wait_until(lambda: server.metric("stoker_batch_rows_sum", model="batched") >= 2, "two rows have run")
    assert server.metric("stoker_batch_rows_sum", model="batched") == 2
    assert server.metric("stoker_queue_rows", model="batched") == 0


def test_a_killed_supervisor_leaves_no_orphans(serve: Serve, tmp_path: Path) -> None:
    """Frontends and devices end by themselves, even while a script runs; each admitted request has an answer."""
    script = write_script(tmp_path / "batched", BATCHED_SCRIPT)
    server = serve(script, "--frontends", "2", "--timeout-ms", "600000")
    assert len(server.pids()) >= 4
    with server.connect() as connection:
        connection.send(scoring("/score", PRIMARY, rows_body([HOLD, 0, 0, 0])))
        wait_until(lambda: Gate(script.parent).entered, "the script holds a request")
        server.process.kill()
        server.process.wait()
        while (answer := _answer_of_a_newcomer(server)) is not None:
            assert answer.status == 200

        wait_until(lambda: not server.pids(), "every process has ended")


def _answer_of_a_newcomer(server: LiveServer) -> Answer | None:
    """Return the answer to a new connection; None if the server does not accept it."""
    try:
        connection = server.connect()
    except (ConnectionRefusedError, TimeoutError):
        return None
    with connection:
        return connection.ask(request("GET", "/v2/health/live"))


def test_a_device_that_keeps_dying_is_tried_again_ever_more_slowly(serve: Serve, tmp_path: Path) -> None:
    """The delay before a restart doubles; meanwhile requests get `not_ready`, and health answers."""
    script = write_script(
        tmp_path / "mortal",
        "import os, pathlib\n"
        "def init():\n"
        "    if pathlib.Path(__file__).with_name('die').exists():\n"
        "        os._exit(9)\n"
        "def run(raw_data):\n"
        "    return raw_data\n",
    )
    server = serve(script, "--frontends", "1")
    script.with_name("die").touch()
    (device,) = server.device_pids()
    os.kill(device, signal.SIGKILL)
    wait_until(
        lambda: server.metric("stoker_process_restarts_total", process="device") >= 3, "three restarts"
    )

    refused = server.score([1])
    assert (refused.status, refused.error_code()) == (503, "not_ready")
    ready = server.get("/v2/health/ready")
    assert (ready.status, ready.json()["ready"]) == (503, False)
    assert int(ready.header("retry-after") or 0) >= 1
    assert server.get("/v2/health/live").status == 200
    log = server.output()
    for delay in ("0.25", "0.5", "1"):
        assert f"starting it again in {delay} s" in log

    script.with_name("die").unlink()
    wait_until(lambda: server.ready, "the server is ready again")
    with server.connect() as connection:
        answer = connection.ask(scoring("/score", PRIMARY, b'"x"'))
        connection.ask(request("GET", "/"))
    assert answer.json() == '"x"'
