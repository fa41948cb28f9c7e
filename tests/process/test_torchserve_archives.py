"""Archives of TorchServe behind a real server: shared calls, a bad request, a lost process, a new version."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.http.raw_http import Answer, bearer, request
from tests.live_server import LiveServer, run_stoker, wait_until
from tests.torchserve_archives import ECHO_HANDLER, manifest_of, write_echo, write_mar

pytestmark = pytest.mark.long

COUNTING = """
def handle(data, context):
    return data and [{"rows": len(data), "got": int(row["body"]) and row["body"]} for row in data]
"""


def ask(server: LiveServer, name: str, body: str) -> Answer:
    headers = [bearer(server.key), ("Content-Type", "text/plain")]
    with server.connect() as connection:
        return connection.ask(request("POST", f"/predictions/{name}", headers, body.encode()))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A `model_store` with two models, one of which vouches for batches."""
    folder = tmp_path_factory.mktemp("store")
    write_echo(folder)
    write_mar(
        folder,
        manifest_of("counting", "counting.py", configFile="model-config.yaml"),
        {"counting.py": COUNTING, "model-config.yaml": "batchSize: 8\nmaxBatchDelay: 5000\n"},
    )
    return folder


@pytest.fixture(scope="module")
def server(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("server"), store) as running:
        yield running


def test_callers_share_calls_of_a_handler(server: LiveServer) -> None:
    """As `batchSize` says; a bad request fails alone."""
    found: dict[int, Answer] = {}

    def call(number: int) -> None:
        found[number] = ask(server, "counting", "bad" if number == 3 else str(number + 1))

    threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found.pop(3).status == 500
    assert [json.loads(answer.body)["got"] for _, answer in sorted(found.items())] == [
        "1",
        "2",
        "3",
        "5",
        "6",
        "7",
        "8",
    ]
    assert max(json.loads(answer.body)["rows"] for answer in found.values()) > 1


def test_a_lost_process_is_replaced(server: LiveServer) -> None:
    """The archive is loaded again from where it was unpacked."""
    before = ask(server, "echo", "hello").body
    pids = server.device_pids()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not {*server.device_pids()} & {*pids} and server.device_pids(), "other processes")
    answer = wait_until(
        lambda: (got := ask(server, "echo", "hello")).status == 200 and got, "it answers again"
    )
    assert answer.body == before


def test_a_registered_archive_is_served(tmp_path: Path) -> None:
    """With its settings, and unpacked from the copy; a new version with another handler takes its place."""
    workspace = tmp_path / "workspace"
    assert (
        run_stoker("models", "register", "mine", write_echo(tmp_path), "--workspace", workspace).returncode
        == 0
    )
    scratch = tmp_path / "server"
    scratch.mkdir()
    with LiveServer(scratch, workspace=workspace) as server:
        assert json.loads(ask(server, "mine", "a").body)["got"] == "a"
        other = {"echo_handler.py": ECHO_HANDLER.replace('"got": value', '"got": value * 2')}
        path = write_mar(tmp_path / "2", manifest_of("echo", "echo_handler.py"), other)
        assert run_stoker("models", "register", "mine", path, "--workspace", workspace).returncode == 0
        done = run_stoker(
            "models", "load", "mine", "--uri", f"http://127.0.0.1:{server.port}", "--workspace", workspace
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(ask(server, "mine", "a").body)["got"] == "aa"
