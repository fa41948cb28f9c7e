"""Tensors in memory of a real NVIDIA GPU that another process owns; skipped where there is none."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tests.contract.protocol_models import write_models
from tests.cuda_sharing.asking import Memory, check_inference, check_refusals
from tests.http.test_shared_memory import DEPLOYMENT, KEY, Served
from tests.live_server import LiveServer, free_port

from stoker.deployment import Device
from stoker.gpu.cuda_ipc import load_cuda_ipc

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def served(first_gpu: Device, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Both protocols, with shared memory for whoever has a key."""
    scratch, grpc_port = tmp_path_factory.mktemp("regions"), free_port()
    write_models(scratch / "models")
    deployment = scratch / "deployment.yaml"
    deployment.write_text(DEPLOYMENT)
    with LiveServer(
        scratch, "--config", deployment, "--grpc-port", str(grpc_port), "--device", "cuda:0"
    ) as server:
        yield Served(server, grpc_port)


@pytest.fixture
def memory(first_gpu: Device) -> Iterator[Memory]:
    """4 KiB of the first GPU."""
    # The library that servers here take.
    library = load_cuda_ipc(sys.path)._runtime._name
    environment = {**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    environment["LD_LIBRARY_PATH"] = f"{Path(library).parent}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    with Memory.of(library, 4096, environment) as memory:
        yield memory


@pytest.mark.parametrize("triton", [triton_http, triton_grpc], ids=["http", "grpc"])
def test_inputs_and_outputs_in_memory_of_a_gpu(served: Served, memory: Memory, triton: Any) -> None:
    """Read and written in place, and nothing around it; the extension is among those that are spoken."""
    check_inference(served, memory, triton)
    assert (
        "cuda_shared_memory"
        in served.client(triton_http).get_server_metadata(headers=dict(KEY))["extensions"]
    )


@pytest.mark.parametrize("triton", [triton_http, triton_grpc], ids=["http", "grpc"])
def test_refused_cuda_region_leaves_the_next_ones_working(
    served: Served, memory: Memory, triton: Any
) -> None:
    """Refusals have CUDA's words, and later registrations work."""
    check_refusals(served, memory, triton)
    check_inference(served, memory, triton)
