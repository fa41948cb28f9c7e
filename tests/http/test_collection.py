"""Collecting while a server runs: requests and answers are files in the workspace, and survive its end."""

from __future__ import annotations

import csv
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.collected_records import last_records
from tests.http.raw_http import rows_body, scoring
from tests.live_server import LiveServer, wait_until
from tests.tiny_models import BODY_SCRIPT, write_doubler, write_script


def collected(server: LiveServer, model: str) -> list[dict[str, Any]]:
    return last_records(server.workspace / "data" / model, 1_000_000)


def on_disk(server: LiveServer, model: str, records: int) -> Callable[[], bool]:
    return lambda: server.metric("stoker_collected_records_total", model=model) >= records


@pytest.fixture
def deployment(tmp_path: Path) -> Path:
    """Three models: one collected as the server's setting says, one in part, one not at all."""
    model = write_doubler(tmp_path / "doubler.onnx")
    script = write_script(tmp_path / "script", BODY_SCRIPT)
    file = tmp_path / "deployment.yaml"
    file.write_text(f"""
frontends: 1
collect: true
models:
  - {{path: {model}, name: all}}
  - {{path: {script}, name: answers, collect: {{collections: [outputs], max_mb: 16}}}}
  - {{path: {model}, name: none, collect: false}}
""")
    return file


def test_requests_and_answers_are_collected_and_kept(deployment: Path, tmp_path: Path) -> None:
    """Each request of a collected model has its record with the id that the caller saw; the drain loses none."""
    paths = {name: f"/api/v1/service/{name}/score" for name in ("all", "answers", "none")}
    with LiveServer(tmp_path, "--config", deployment) as server, server.connect() as connection:
        direct = connection.ask(scoring(paths["all"], server.key, rows_body([1, 2, 3, 4])))
        named = connection.ask(
            scoring(
                paths["all"],
                server.key,
                rows_body([5, 6, 7, 8]),
                [("x-request-id", "mine"), ("Content-Type", "application/json")],
            )
        )
        refused = connection.ask(scoring(paths["all"], server.key, b'{"data": 5}'))
        connection.ask(scoring(paths["none"], server.key, rows_body([1, 2, 3, 4])))
        wait_until(on_disk(server, "all", 3), "the records are written while the server runs")
        assert server.metric("stoker_collected_records_total", model="none") == 0
        script = connection.ask(scoring(paths["answers"], server.key, b'{"return": {"a": [1]}}'))
        assert script.status == 200
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        records = collected(server, "all")
        assert [record["request_id"] for record in records] == [
            direct.header("x-request-id"), "mine", refused.header("x-request-id"),
        ]  # fmt: skip
        assert [record["status"] for record in records] == [200, 200, 422]
        assert records[0]["inputs"] == {"data": [[1, 2, 3, 4]]}
        assert records[1]["outputs"] == named.json()
        assert records[2]["outputs"]["code"] == "invalid_input"
        (answered,) = collected(server, "answers")
        assert (answered["outputs"], "inputs" in answered) == ({"a": [1]}, False)
        assert not (server.workspace / "data" / "none").exists()
        output = server.output()
    assert "collect  inputs and outputs of 100 % of the requests, at most 1024 MiB, in " in output
    assert "collect  outputs of 100 % of the requests, at most 16 MiB, in " in output


def test_a_killed_frontend_leaves_its_written_files(tmp_path: Path) -> None:
    """SIGKILL costs no record that was written; the successor writes on, into a file of its own."""
    model = write_doubler(tmp_path / "doubler.onnx")
    with LiveServer(tmp_path, model, "--frontends", "1", "--collect") as server:
        assert server.score([1, 2, 3, 4]).status == 200
        wait_until(on_disk(server, "doubler", 1), "the record is written")
        (frontend,) = server.frontend_pids()
        os.kill(frontend, signal.SIGKILL)
        wait_until(
            lambda: server.frontend_pids() not in ([], [frontend]) and server.ready, "its successor serves"
        )
        assert server.score([5, 6, 7, 8]).status == 200
        wait_until(on_disk(server, "doubler", 2), "the second record is written")
        assert [record["outputs"] for record in collected(server, "doubler")] == [
            [[2.0, 4.0, 6.0, 8.0]], [[10.0, 12.0, 14.0, 16.0]],
        ]  # fmt: skip
        assert len(list((server.workspace / "data").rglob("*.jsonl"))) == 2
        server.kill()
        assert len(collected(server, "doubler")) == 2


COLLECTING_SCRIPT = """
import atexit
import json
import numpy as np
from azureml.monitoring import ModelDataCollector

def init():
    global inputs, predictions
    inputs = ModelDataCollector("best_model", designation="inputs", feature_names=["a", "b"])
    predictions = ModelDataCollector("best_model", designation="predictions", feature_names=["sum"])
    atexit.register(lambda: (predictions.collect(["the last"]), print("the script has ended")))

def run(raw_data):
    data = np.array(json.loads(raw_data)["data"])
    correlations = inputs.collect(data)
    predictions.collect(predictions.add_correlations(data.sum(1), correlations))
    return data.sum(1).tolist()
"""
"""As Microsoft's page on collecting data from models in production has it."""


def test_a_script_collects_by_itself(tmp_path: Path) -> None:
    """Rows that a script collects by azureml.monitoring are files with the request's id; its atexit runs."""
    script = write_script(tmp_path / "script", COLLECTING_SCRIPT)
    (script.parent / "sample_input.json").write_text('{"data": [[1, 2], [3, 5]]}')
    with LiveServer(tmp_path, script, "--frontends", "1", "--collect") as server:
        with server.connect() as connection:
            body = b'{"data": [[1, 2], [3, 4]]}'
            assert connection.ask(scoring("/score", server.key, body, [("x-request-id", "mine")])).json() == [
                3,
                7,
            ]
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        output = server.output()
        rows = {
            file.parents[3].name: list(csv.reader(file.read_text().splitlines()))
            for file in server.workspace.glob("modeldata/script/best_model/1/*/*/*/*/*.csv")
        }
    assert [row[1:2] + row[3:] for row in rows["inputs"]] == [
        ["$RequestId", "a", "b"], ["mine", "1", "2"], ["mine", "3", "4"],
    ]  # fmt: skip
    assert [row[3] for row in rows["predictions"]] == ["sum", "3", "7", "the last"]
    assert rows["predictions"][1][2] == rows["inputs"][1][2]
    assert "the script has ended" in output
