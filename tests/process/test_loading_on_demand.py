"""A server with a budget of memory: models are loaded when any protocol asks for them, and no request is lost."""

from __future__ import annotations

import json
import random
import threading
from pathlib import Path

import grpc
import pytest
from tests.http.raw_http import bearer, request
from tests.live_server import LiveServer, free_port
from tests.patience import PATIENCE_S, PROGRAM_S
from tests.process.conftest import Serve
from tests.tables import table_rows, write_table

from stoker.gateway.grpc.messages import SERVICE, message
from stoker.system.resources import private_memory

pytestmark = pytest.mark.long

MODELS = 8
MODEL_MB = 16
BUDGET_MB = 160
"""Room for two processes with a model each, or for five models in one process, and for a load."""
WAIT_S = PROGRAM_S


def _write_models(folder: Path) -> Path:
    for number in range(MODELS):
        write_table(folder / f"m{number}" / "1" / "model.onnx", MODEL_MB << 20, seed=number)
    return folder


def _right(seed: int, row: int, answer: list[float]) -> bool:
    return answer == pytest.approx(table_rows(seed, row + 1)[row].tolist(), rel=1e-6)


def _ask(server: LiveServer, path: str, content: object) -> object:
    with server.connect() as connection:
        message = request(
            "POST",
            path,
            [bearer(server.key), ("content-type", "application/json")],
            json.dumps(content).encode(),
        )
        connection.socket.settimeout(WAIT_S)
        answer = connection.ask(message)
    assert answer.status == 200, answer.body
    return answer.json()


def _by_grpc(port: int, key: str, name: str, row: int) -> list[float]:
    content = message("ModelInferRequest")(model_name=name)
    tensor = content.inputs.add(name="x", datatype="FP32", shape=[1, 1])
    tensor.contents.fp32_contents.append(row)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        infer = channel.unary_unary(
            f"/{SERVICE}/ModelInfer",
            request_serializer=lambda one: one.SerializeToString(),
            response_deserializer=message("ModelInferResponse").FromString,
        )
        answer = infer(content, metadata=[("authorization", f"Bearer {key}")], timeout=WAIT_S)
    return list(answer.outputs[0].contents.fp32_contents)


def _index(server: LiveServer) -> dict[str, str]:
    with server.connect() as connection:
        answer = connection.ask(request("POST", "/v2/repository/index", [bearer(server.key)], b"{}"))
    return {entry["name"]: entry["state"] for entry in answer.json()}


def test_eight_models_share_the_memory_of_a_few(serve: Serve, tmp_path: Path) -> None:
    """Every protocol loads a model; under load from all sides nothing is lost or wrong, and the memory holds."""
    models, grpc_port = _write_models(tmp_path / "models"), free_port()
    server = serve(
        models, "--memory-mb", str(BUDGET_MB), "--device", "cpu", "--frontends", "2",
        "--grpc-port", str(grpc_port), "--timeout-ms", str(int(1000 * WAIT_S)),
    )  # fmt: skip
    assert set(_index(server).values()) == {"UNAVAILABLE"}
    assert server.ready
    with server.connect() as connection:
        refused = connection.ask(request("POST", "/v2/models/m0/infer", [bearer("wrong")], b"{}"))
    assert (refused.status, set(_index(server).values())) == (401, {"UNAVAILABLE"}), "only a key loads models"

    score = _ask(server, "/api/v1/service/m0/score", {"data": [[3]]})
    assert _right(0, 3, score[0])
    infer = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [4]}]}
    (output,) = _ask(server, "/v2/models/m1/infer", infer)["outputs"]
    assert _right(1, 4, output["data"])
    assert _right(2, 5, _ask(server, "/v1/models/m2:predict", {"instances": [[5]]})["predictions"][0])
    assert _right(3, 6, _ask(server, "/predictions/m3", [[6]])[0])
    assert _right(4, 7, _by_grpc(grpc_port, server.key, "m4", 7))
    metadata = server.describe("/v2/models/m5").json()
    assert [one["name"] for one in metadata["inputs"]] == ["x"]

    stop, wrong, used_mb = threading.Event(), [], []

    def measure() -> None:
        while True:
            used_mb.append(sum(map(_private_memory, server.device_pids())) >> 20)
            if stop.wait(0.05):
                return

    def ask_many(seed: int) -> None:
        dice = random.Random(seed)
        for _ in range(12):
            number, row = dice.randrange(MODELS), dice.randrange(50)
            try:
                answer = _ask(server, f"/api/v1/service/m{number}/score", {"data": [[row]]})
                if not _right(number, row, answer[0]):
                    wrong.append((number, row, answer))
            except Exception as error:  # noqa: BLE001  # it is looked at below
                wrong.append((number, row, repr(error)))

    watching = threading.Thread(target=measure)
    asking = [threading.Thread(target=ask_many, args=(seed,)) for seed in range(3)]
    for thread in (watching, *asking):
        thread.start()
    for thread in asking:
        thread.join()
    stop.set()
    watching.join(PATIENCE_S)
    assert wrong == []
    assert server.metric("stoker_evictions_total", reason="room") >= 1
    assert max(used_mb) <= BUDGET_MB
    states = _index(server)
    assert {"READY", "UNAVAILABLE"} <= set(states.values())
    assert "to make room for" in server.output()


def _private_memory(pid: int) -> int:
    try:
        return private_memory(pid)
    except OSError:
        return 0
