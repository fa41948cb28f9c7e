"""Servers of models that keep state: a script whose process is killed, and a model with control inputs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_triton
import tritonclient.http as triton
from tests.http.raw_http import Answer, bearer, request
from tests.live_server import LiveServer, free_port, wait_until
from tests.tiny_models import write_script, write_sequence_controls
from tritonclient.utils import InferenceServerException

SCRIPT = """
import os
import threading

def init(): ...

def run(raw_data, state):
    state["heard"] = state.get("heard", "") + raw_data
    if raw_data == "!":
        with open("writing", "w") as file:
            file.write(str(os.getpid()))
        os.rename("writing", "waits")
        threading.Event().wait()
    return state["heard"]
"""
CONFIG = """
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: 1 }
output { name: "y" data_type: TYPE_FP64 dims: 5 }
sequence_batching {
  control_input [
    { name: "START" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } },
    { name: "END" control { kind: CONTROL_SEQUENCE_END fp32_false_true: [ 0, 1 ] } },
    { name: "READY" control { kind: CONTROL_SEQUENCE_READY fp32_false_true: [ 0, 1 ] } },
    { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_INT64 } }
  ]
}
"""
DEPLOYMENT = """
auth: false
frontends: 2
models:
  - path: models/hears/score.py
    name: hears
    device: cpu
    instances: 2
    sequence: {}
  - path: models/controls
    device: cpu
"""
GRPC_PORT = free_port()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A script that remembers its inputs, and a model of Triton's that answers with its control inputs."""
    scratch = tmp_path_factory.mktemp("sequences")
    write_script(scratch / "models" / "hears", SCRIPT)
    write_sequence_controls(scratch / "models" / "controls" / "1" / "model.onnx")
    (scratch / "models" / "controls" / "config.pbtxt").write_text(CONFIG)
    deployment = scratch / "deployment.yaml"
    deployment.write_text(DEPLOYMENT)
    with LiveServer(scratch, "--config", deployment, "--grpc-port", str(GRPC_PORT)) as running:
        yield running


def say(server: LiveServer, text: str, sequence: str) -> Answer:
    """One request to the script, on a connection of its own, which either frontend takes."""
    headers = [bearer(server.key), ("Stoker-Sequence", sequence)]
    with server.connect() as connection:
        return connection.ask(request("POST", "/api/v1/service/hears/score", headers, text.encode()))


def test_a_script_that_is_killed_has_lost_its_sequences(server: LiveServer) -> None:
    """Its request fails, later steps find no sequence, and a sequence that is started again is empty."""
    assert [say(server, *step).json() for step in (("a", "1; start"), ("b", "1"))] == ["a", "ab"]
    waits = server.scratch / "models" / "hears" / "waits"
    with ThreadPoolExecutor(1) as pool:
        lost = pool.submit(say, server, "!", "1")
        wait_until(waits.exists, "run is under way")
        # The other instance serves other sequences meanwhile.
        assert say(server, "c", "2; start; end").json() == "c"
        os.kill(int(waits.read_text()), signal.SIGKILL)
        answer = lost.result(30)
    assert (answer.status, answer.json()["code"]) == (503, "device_lost")

    # Each frontend hears in its own time that the process is back.
    def say_once_back(text: str, sequence: str) -> Answer:
        def look() -> Answer | None:
            answer = say(server, text, sequence)
            return None if answer.status == 503 else answer

        again = wait_until(look, "its process is back")
        assert again is not None
        return again

    again = say_once_back("d", "1")
    assert (again.status, again.json()["code"]) == (400, "unknown_sequence")
    assert say_once_back("e", "1; start").json() == "e"


def test_a_model_with_sequence_batching_gets_control_inputs(server: LiveServer) -> None:
    """By what its configuration says, which both protocols show; callers see its other input alone."""
    x = np.full((1, 1), 5, np.float32)
    flags = {"sequence_start": True}, {}, {"sequence_end": True}
    with (
        triton.InferenceServerClient(f"127.0.0.1:{server.port}") as http,
        grpc_triton.InferenceServerClient(f"127.0.0.1:{GRPC_PORT}") as grpc,
    ):
        by_http = triton.InferInput("x", [1, 1], "FP32").set_data_from_numpy(x)
        by_grpc = grpc_triton.InferInput("x", [1, 1], "FP32").set_data_from_numpy(x)
        seen: list[Any] = []
        for step in flags:
            seen.append(http.infer("controls", [by_http], sequence_id=7, **step))
            seen.append(grpc.infer("controls", [by_grpc], sequence_id=8, **step))
        assert [answer.as_numpy("y")[0].tolist() for answer in seen] == [
            [5, start, end, 1, name] for start, end in ((1, 0), (0, 0), (0, 1)) for name in (7, 8)
        ]
        with pytest.raises(InferenceServerException, match="a number from 1 to 9223372036854775807"):
            http.infer("controls", [by_http], sequence_id="seven", sequence_start=True)
        assert [given["name"] for given in http.get_model_metadata("controls")["inputs"]] == ["x"]
        config = http.get_model_config("controls")
        assert [given["name"] for given in config["input"]] == ["x"]
        controls = config["sequence_batching"]["control_input"]
        assert [given["name"] for given in controls] == ["START", "END", "READY", "CORRID"]
        assert controls[3]["control"] == [{"kind": "CONTROL_SEQUENCE_CORRID", "data_type": "TYPE_INT64"}]
        by_proto = grpc.get_model_config("controls", as_json=True)["config"]["sequence_batching"]
        assert by_proto["control_input"][1] == {
            "name": "END",
            "control": [{"kind": "CONTROL_SEQUENCE_END", "fp32_false_true": [0.0, 1.0]}],
        }
