"""Sequences of a model with state on two replicas, by Triton's tools, and their loss with a replica."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from tests.live_server import LiveServer, free_port, metric_total, wait_until
from tests.tiny_models import write_running_sum
from tests.triton.conftest import needs_perf_analyzer
from tests.triton.test_perf_analyzer import analyzed
from tritonclient.utils import InferenceServerException

DEPLOYMENT = """
auth: false
frontends: 2
shared_memory: true
models:
  - path: {model}
    name: sums
    replicas: 2
    device: cpu
    sequence:
      state: [{{input_name: sum, output_name: next_sum}}]
      dims: {{x: [2]}}
      constants: {{times: 1}}
"""
GRPC_PORT = free_port()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server of a model that adds up."""
    scratch = tmp_path_factory.mktemp("sequences")
    model = write_running_sum(scratch / "sums.onnx")
    (scratch / "deployment.yaml").write_text(DEPLOYMENT.format(model=model))
    with LiveServer(
        scratch, "--config", scratch / "deployment.yaml", "--grpc-port", str(GRPC_PORT)
    ) as running:
        yield running


def add(server: LiveServer, name: int, number: float, **flags: bool) -> float:
    """One request on a connection of its own, which either frontend takes."""
    given = triton.InferInput("x", [1, 2], "FP32").set_data_from_numpy(np.full((1, 2), number, np.float32))
    with triton.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        result: Any = client.infer("sums", [given], sequence_id=name, **flags)
    return float(result.as_numpy("y")[0, 0])


def sequences_started(server: LiveServer) -> float:
    """As the replicas have counted them, which is after the answer, in a metric that is not shown before."""
    return metric_total(server.get("/metrics").body.decode(), "stoker_sequences_started_total")


def add_or_refusal(server: LiveServer, name: int) -> float | str:
    """The answer plus a hundred, or the error that says not to retry."""

    def ask() -> float | str | None:
        try:
            return add(server, name, 100)
        except InferenceServerException as error:
            # A frontend may hear of the end of its replica while it asks it.
            away = ("is being started again", "The device process ended")
            return None if any(text in str(error) for text in away) else str(error)

    answer = wait_until(ask, "its replica is back")
    assert answer is not None
    return answer


@needs_perf_analyzer
@pytest.mark.parametrize(
    ("protocol", "load"),
    [
        ("http", ("--concurrency-range", "4")),
        ("grpc", ("--concurrency-range", "4")),
        ("http", ("--concurrency-range", "4", "--shared-memory", "system")),
    ],
    ids=["http", "grpc", "shared-memory"],
)
def test_perf_analyzer_sends_sequences(server: LiveServer, protocol: str, load: tuple[str, ...]) -> None:
    """It reads from the configuration that the model has sequences, and begins and ends the set number."""
    address = f"127.0.0.1:{server.port if protocol == 'http' else GRPC_PORT}"
    before = sequences_started(server)
    printed = analyzed("-i", protocol, "-u", address, *load, model="sums")
    assert "Sequence count" in printed
    assert "error" not in printed.lower(), printed
    wait_until(lambda: sequences_started(server) > before, "they are counted")


def test_sequences_end_with_their_replica_and_no_other(server: LiveServer) -> None:
    """Of twenty, those of the replica that is killed have to begin anew; the others go on through both frontends."""
    names = range(1, 21)
    assert [add(server, name, name, sequence_start=True) for name in names] == list(names)
    killed, _ = server.device_pids()
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: killed not in server.device_pids(), "the replica is dead")
    sums = {name: add_or_refusal(server, name) for name in names}
    lost = [name for name in names if sums[name] != name + 100]
    refusals = {str(sums[name]).partition(":")[0] for name in lost}
    assert refusals == {"[400] There is no such sequence"}
    assert 0 < len(lost) < len(names)
    assert [add(server, name, 1, sequence_start=True) for name in lost] == [1] * len(lost)
