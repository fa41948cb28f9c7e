"""Models of Triton's Python backend, as NVIDIA's clients see them over HTTP and gRPC."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tests.live_server import PRIMARY, LiveServer, free_port, wait_until
from tests.triton_python_models import ADD_SUB, write_model, write_repository
from tritonclient.utils import InferenceServerException

KEY = {"authorization": f"Bearer {PRIMARY}"}
CALLERS = 24


@pytest.fixture(scope="module")
def grpc_port() -> int:
    """Where the server speaks gRPC."""
    return free_port()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, grpc_port: int) -> Iterator[LiveServer]:
    """A server of a repository of such models."""
    scratch = tmp_path_factory.mktemp("triton")
    write_repository(scratch / "models")
    env = {"STOKER_ADMIN_KEY": PRIMARY}
    with LiveServer(scratch, scratch / "models", "--grpc-port", str(grpc_port), env=env) as running:
        yield running


@pytest.fixture(params=["http", "grpc"])
def triton(request: pytest.FixtureRequest, server: LiveServer, grpc_port: int) -> tuple[Any, str]:
    """The module of a client, and the address for it."""
    if request.param == "http":
        return triton_http, f"127.0.0.1:{server.port}"
    return triton_grpc, f"127.0.0.1:{grpc_port}"


def infer(triton: tuple[Any, str], model: str, *, outputs: list[str] | None = None, **arrays: Any) -> Any:
    """Ask a model with arrays by the names of its inputs; what is no array is an option of the request."""
    module, address = triton
    inputs = []
    for name in [name for name, array in arrays.items() if isinstance(array, np.ndarray)]:
        array = arrays.pop(name)
        datatype = {"f": "FP32", "O": "BYTES"}[array.dtype.kind]
        inputs.append(module.InferInput(name, array.shape, datatype))
        inputs[-1].set_data_from_numpy(array)
    wanted = None if outputs is None else [module.InferRequestedOutput(name) for name in outputs]
    # Clients over HTTP are for the thread that has made them.
    with module.InferenceServerClient(address) as client:
        return client.infer(model, inputs, outputs=wanted, headers=dict(KEY), **arrays)


def rows(value: float, count: int = 1) -> np.ndarray:
    """Some rows of four equal numbers."""
    return np.full((count, 4), value, np.float32)


def test_a_triton_model_answers_its_declared_outputs(triton: tuple[Any, str]) -> None:
    """Inputs that may be left out, dtypes of outputs, and rows of any number."""
    answer = infer(triton, "add_sub", A=rows(5, 3), B=rows(2, 3))
    assert (answer.as_numpy("SUM") == rows(7, 3)).all()
    assert answer.as_numpy("DIFFERENCE").dtype == np.float16
    assert (answer.as_numpy("DIFFERENCE") == 3).all()
    assert (infer(triton, "add_sub", A=rows(5), outputs=["SUM"]).as_numpy("SUM") == 5).all()
    with pytest.raises(InferenceServerException, match="Missing: 'A'"):
        infer(triton, "add_sub", B=rows(5))


def test_requests_of_several_callers_share_a_call(triton: tuple[Any, str]) -> None:
    """Each is answered from its own tensors, and an error or exception reaches its caller alone."""
    values = [number if number % 6 else (666, 300, 150, 101)[number // 6] for number in range(CALLERS)]

    def ask(value: int) -> tuple[str, int]:
        try:
            answer = infer(triton, "add_sub", A=rows(value))
        except InferenceServerException as error:
            return str(error), 0
        assert (answer.as_numpy("SUM") == value).all()
        return "", int(answer.as_numpy("REQUESTS")[0, 0])

    shared = 0
    with ThreadPoolExecutor(CALLERS) as threads:
        while shared < 2:
            for value, (error, together) in zip(values, threads.map(ask, values), strict=True):
                assert (error != "") == (value > 100)
                assert "secret" not in error
                assert value in (0, 666) or value <= 100 or f"{value} is above 100" in error
                shared = max(shared, together)


def test_strings_and_request_ids_reach_a_triton_model(triton: tuple[Any, str]) -> None:
    """A model without config.pbtxt declares itself, and gets id, parameters and wanted outputs."""
    text = np.array([b"once upon a time"], object)
    answer = infer(triton, "words", TEXT=text, request_id="r1", parameters={"n": 3, "who": "me"})
    assert answer.as_numpy("WORDS").tolist() == [b"once", b"upon", b"a", b"time"]
    assert json.loads(answer.as_numpy("ABOUT")[0]) == ["r1", {"n": 3, "who": "me"}, ["WORDS", "ABOUT"]]
    assert infer(triton, "words", TEXT=text, outputs=["WORDS"]).as_numpy("ABOUT") is None


def test_a_model_calls_others(triton: tuple[Any, str]) -> None:
    """By the loopback with the server's key; errors come back with their texts, and it cannot wait for itself."""

    def model(name: bytes) -> np.ndarray:
        return np.array([[name]], object)

    assert (infer(triton, "calls", A=rows(5), MODEL=model(b"add_sub")).as_numpy("SUM") == 15).all()
    for name, reason in (
        (b"calls", "UNAVAILABLE: calls waits for this call itself"),
        (b"unknown", "NOT_FOUND: .*unknown"),
        (b"words", "INVALID_ARG: unexpected inference input 'A'"),
    ):
        with pytest.raises(InferenceServerException, match=reason):
            infer(triton, "calls", A=rows(5), MODEL=model(name))
    with pytest.raises(InferenceServerException, match="300 is above 100"):
        infer(triton, "calls", A=rows(300), MODEL=model(b"add_sub"))


def test_its_configuration(server: LiveServer) -> None:
    """Clients see sizes, batching, and which inputs may be left out."""
    with triton_http.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        config = client.get_model_config("add_sub", headers=dict(KEY))
    assert config["backend"] == "python"
    assert config["max_batch_size"] == 16
    assert "dynamic_batching" in config
    assert [one.get("optional", False) for one in config["input"]] == [False, True]


def test_killed_and_changed(server: LiveServer) -> None:
    """A killed process is replaced, and a changed model.py is loaded; the old one is finalized."""
    address = f"127.0.0.1:{server.port}"

    def answer() -> Any:
        try:
            return infer((triton_http, address), "add_sub", A=rows(1))
        except (InferenceServerException, OSError):
            return None

    os.kill(int(answer().as_numpy("REQUESTS")[0, 1]), signal.SIGKILL)
    wait_until(answer, "the model answers again")
    write_model(server.scratch / "models", "add_sub", ADD_SUB.replace("a += b", "a += b + 10"), "")
    with triton_http.InferenceServerClient(address, network_timeout=60) as client:
        client.load_model("add_sub", headers=dict(KEY))
    assert (answer().as_numpy("SUM") == 11).all()
    wait_until(lambda: "add_sub is finalized" in server.output(), "the old model is finalized")
