"""Faults of a server with a real GPU: a killed process, and memory that runs out; skipped without a GPU."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.live_server import LiveServer, free_port, wait_until
from tests.process.callers import Callers, scored
from tests.tiny_models import write_doubler

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("first_gpu")]

SIDE = 1024
"""The hungry model makes a matrix of SIDE by SIDE float32 of each row: 4 MiB."""
MEMORY_MB = 256


def write_hungry(path: Path) -> Path:
    """Write a model of 4 numbers whose intermediate result has SIDE² numbers a row; its answer is twice the row."""
    nodes = [
        helper.make_node("Unsqueeze", ["x", "last"], ["column"]),
        helper.make_node("Expand", ["column", "shape"], ["large"]),
        # Not the same twice, so that it cannot be left out.
        helper.make_node("Mul", ["large", "ramp"], ["scaled"]),
        helper.make_node("ReduceSum", ["scaled", "last"], ["y"], keepdims=0),
    ]
    wide = SIDE * SIDE // 4
    ramp = np.full(wide, 2 / wide, np.float32)
    constants = [
        helper.make_tensor("last", TensorProto.INT64, [1], [2]),
        helper.make_tensor("shape", TensorProto.INT64, [3], [1, 4, wide]),
        helper.make_tensor("ramp", TensorProto.FLOAT, [wide], ramp),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "hungry",
        [value("x", TensorProto.FLOAT, ["rows", 4])],
        [value("y", TensorProto.FLOAT, ["rows", 4])],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)
    return path


def test_a_killed_device_process_comes_back(tmp_path: Path) -> None:
    """Only its requests are lost, as 503; the successor gets the memory of the GPU, and answers."""
    model = write_doubler(tmp_path / "doubler.onnx")
    with LiveServer(tmp_path, model, "--device", "cuda:0", "--frontends", "2") as server:
        (device,) = server.device_pids()
        with Callers(server.port, scored(server.key), kept_alive=32) as callers:
            wait_until(lambda: callers.answered(500), "the load runs")
            killed_s = time.monotonic()
            os.kill(device, signal.SIGKILL)
            wait_until(lambda: not server.ready, "readiness is off")
            wait_until(lambda: server.ready, "it is ready again", timeout_s=120)
            recovered_s = time.monotonic()
            wait_until(lambda: callers.answered(500, after_s=recovered_s), "the load runs again")
            outcomes = callers.stop()
        lost = [outcome for outcome in outcomes if outcome.answer and outcome.status == 503]
        held = [o for o in lost if o.answer is not None and o.answer.error_code() == "device_lost"]
        print(f"recovered in {recovered_s - killed_s:.2f} s; {len(held)} requests lost, {len(lost)} refused")
        assert set(callers.tally()) <= {200, 503}
        assert len(held) <= 32
        assert all(outcome.right for outcome in outcomes if outcome.status == 200)
        assert server.metric("stoker_process_restarts_total", process="device") == 1


def test_batches_shrink_to_the_memory(tmp_path: Path) -> None:
    """The limit is far below the need of the largest batch: the cap falls, and every request is answered."""
    write_hungry(tmp_path / "hungry.onnx")
    deployment = tmp_path / "deployment.yaml"
    deployment.write_text(
        f"device: cuda:0\nmodels:\n  - path: {tmp_path / 'hungry.onnx'}\n    max_batch_rows: 256\n"
        f"    gpu_memory_mb: {MEMORY_MB}\n    execution: copied\n"
    )
    with LiveServer(tmp_path, "--config", deployment, ready_within_s=180) as server:
        # 256 rows need 1 GiB for each of two intermediate results.
        assert server.metric("stoker_batch_cap_rows", model="hungry") < 256
        (device,) = server.device_pids()
        rows = [[float(number), 1, 2, 3] for number in range(400)]
        with Callers(server.port, scored(server.key), kept_alive=64) as callers:
            answer = server.score(*rows)
            wait_until(lambda: callers.answered(500), "the load runs", timeout_s=120)
            outcomes = callers.stop()
        assert answer.status == 200
        np.testing.assert_allclose(answer.json(), 2 * np.array(rows), rtol=1e-3)
        assert {outcome.status for outcome in outcomes} == {200}
        assert server.device_pids() == [device]
        cap = server.metric("stoker_batch_cap_rows", model="hungry")
        print(
            f"batches have at most {cap:.0f} rows; the log: {server.output().count('no memory')} times short"
        )
        assert 1 <= cap < 256


def test_a_row_that_does_not_fit_is_refused_at_the_start(tmp_path: Path) -> None:
    """If not even one row fits, the load fails, and the message names the memory."""
    model = write_hungry(tmp_path / "hungry.onnx")
    deployment = tmp_path / "deployment.yaml"
    deployment.write_text(f"device: cuda:0\nmodels:\n  - path: {model}\n    gpu_memory_mb: 1\n")
    with LiveServer(tmp_path, "--config", deployment, port=free_port(), ready_within_s=None) as server:
        assert server.wait(180) == 3
        assert "memory" in server.output()
