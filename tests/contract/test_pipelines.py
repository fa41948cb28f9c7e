"""Pipelines as callers see them: one more model, by every protocol."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.contract.in_process import DOORS, InProcessServer, script
from tests.http.raw_http import Answer
from tests.puppets import PuppetRuntime

from stoker.deployment import Deployment
from stoker.row_isolation import RowIsolation
from stoker.runtimes.packed import PackedRuntime
from stoker.settings.pipelines import Pipeline, Step
from stoker.tensors import ModelTensors, TensorInfo

CHAIN = Pipeline(
    "chain",
    (
        Step("double", "double", inputs={"x": "sent"}, outputs={"y": "doubled"}),
        Step("negate", "negate", inputs={"x": "doubled"}, outputs={"y": "answer"}),
    ),
)
WORDS = Pipeline(
    "words",
    (
        Step("double", "double", inputs={"x": "pair"}, outputs={"y": "doubled"}),
        Step("ramp", "ramp", inputs={"y": "doubled"}, outputs={"ramp": "ramp"}),
        Step("pair", "double", inputs={"x": "ramp"}, outputs={"y": "answer"}),
    ),
)
SCRIPTED = Pipeline("scripted", (Step("body", "body"),))


def _ramp(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """As many columns as the first number says."""
    pairs = inputs["y"]
    return {"ramp": np.tile(np.arange(int(pairs[0, 0]), dtype=np.float32), (len(pairs), 1))}


@pytest.fixture(scope="module")
def server() -> Iterator[InProcessServer]:
    """A server with two models of rows, one of free sizes, an entry script, and pipelines of them."""
    ramp = PackedRuntime(
        _ramp,
        ModelTensors(
            (TensorInfo("y", "float32", (-1, 2)),), (TensorInfo("ramp", "float32", (-1, -1)),), True
        ),
        Deployment("ramp", 1, "onnx", Path("ramp.onnx"), Path(), 16, 1 << 16),
        RowIsolation(True, "said", "so"),
    )
    negate = PuppetRuntime(answer=lambda inputs: [-inputs[0]])
    negate.fails_for.add(26.0)
    runtimes = {
        "double": PuppetRuntime(),
        "negate": negate,
        "ramp": ramp,
        "body": script(lambda raw_data: raw_data),
    }
    with InProcessServer(runtimes, pipelines=[CHAIN, WORDS, SCRIPTED]) as running:
        yield running


def infer(server: InProcessServer, name: str, tensor: str, rows: Any, **more: Any) -> Answer:
    """An infer request of the Open Inference Protocol with one input."""
    array = np.array(rows, np.float32)
    request = {
        "inputs": [{"name": tensor, "datatype": "FP32", "shape": array.shape, "data": array.ravel().tolist()}]
    } | more
    return server.ask("POST", f"/v2/models/{name}/infer", body=json.dumps(request).encode())


def test_every_protocol_scores_with_a_pipeline(server: InProcessServer) -> None:
    """Azure's JSON through both paths, the Open Inference Protocol and TensorFlow Serving's have the same numbers."""
    for headers in DOORS.values():
        scored = server.ask("POST", "/api/v1/service/chain/score", headers, b'{"data": [[1, 2], [3, 4]]}')
        assert (scored.status, scored.json()) == (200, [[-2, -4], [-6, -8]])
    inferred = infer(server, "chain", "sent", [[1, 2]])
    assert inferred.json() == {
        "model_name": "chain",
        "model_version": "1",
        "outputs": [{"name": "answer", "shape": [1, 2], "datatype": "FP32", "data": [-2.0, -4.0]}],
    }
    torchserve = server.ask("POST", "/predictions/chain", body=b"[[1, 2]]")
    assert (
        torchserve.body == server.ask("POST", "/api/v1/service/chain/score", body=b'{"data": [[1, 2]]}').body
    )
    predicted = server.ask("POST", "/v1/models/chain:predict", body=b'{"instances": [[1, 2]]}')
    assert predicted.json() == {"predictions": [[-2.0, -4.0]]}


def test_a_pipeline_is_described_as_an_ensemble(server: InProcessServer) -> None:
    """Its metadata and its configuration have Triton's words, and its tensors are those at both ends."""
    described = server.ask("GET", "/v2/models/chain").json()
    assert (described["platform"], described["versions"]) == ("ensemble", ["1"])
    assert described["inputs"] == [{"name": "sent", "datatype": "FP32", "shape": [-1, 2]}]
    assert described["outputs"] == [{"name": "answer", "datatype": "FP32", "shape": [-1, 2]}]
    config = server.ask("GET", "/v2/models/chain/config").json()
    assert "dynamic_batching" not in config
    assert config["ensemble_scheduling"]["step"][1] == {
        "model_name": "negate",
        "model_version": "-1",
        "input_map": {"x": "doubled"},
        "output_map": {"y": "answer"},
    }
    assert server.ask("GET", "/v2/models/chain/ready").status == 200
    assert server.ask("GET", "/api/v1/service/chain/swagger.json").status == 200


def test_sizes_that_models_leave_free_flow_through(server: InProcessServer) -> None:
    """A model of free sizes takes rows, and a model of rows takes its outputs where they fit."""
    assert infer(server, "words", "pair", [[1, 0], [5, 0]]).json()["outputs"][0]["data"] == [0, 2, 0, 2]
    wrong = infer(server, "words", "pair", [[2, 0]])
    assert wrong.status == 400
    assert wrong.json()["error"] == "Step pair: the input takes x float32[?,2], and is given the shape [1, 4]"


def test_the_error_of_a_step_names_it(server: InProcessServer) -> None:
    """With the status and code of the step; who asked beside it is scored."""
    failed = server.ask("POST", "/api/v1/service/chain/score", body=b'{"data": [[13, 0]]}')
    assert (failed.status, failed.error_code()) == (500, "model_failed")
    assert failed.json()["message"].startswith("Step negate: ")


def test_a_pipeline_that_does_not_fit_says_why(server: InProcessServer) -> None:
    """The others are served, and the server is ready: no request would make it fit."""
    refused = server.ask("POST", "/api/v1/service/scripted/score", body=b"{}")
    assert (refused.status, refused.error_code()) == (503, "not_ready")
    assert (
        "body is an entry script that takes whole requests, not tensors; decorate"
        in refused.json()["message"]
    )
    assert server.ask("GET", "/v2/health/ready").status == 200
