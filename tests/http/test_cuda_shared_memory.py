"""Tensors in memory of a GPU, on a server with two frontends whose CUDA is a puppet: its GPU is shared memory."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tests.contract.protocol_models import write_models
from tests.cuda_sharing.asking import Memory, check_inference, check_refusals
from tests.cuda_sharing.puppet import built_puppet
from tests.http.raw_http import bearer
from tests.http.test_shared_memory import DEPLOYMENT, KEY, Served, ask
from tests.live_server import PRIMARY, LiveServer, free_port, wait_until

BOTH = pytest.mark.parametrize("triton", [triton_http, triton_grpc], ids=["http", "grpc"])


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the puppet, which has the names of CUDA's libraries."""
    return built_puppet(tmp_path_factory.mktemp("cuda"))


@pytest.fixture(scope="module")
def served(libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Both protocols, with shared memory for whoever has a key."""
    scratch, grpc_port = tmp_path_factory.mktemp("regions"), free_port()
    write_models(scratch / "models")
    deployment = scratch / "deployment.yaml"
    deployment.write_text(DEPLOYMENT)
    found = {"LD_LIBRARY_PATH": str(libraries)}
    with LiveServer(
        scratch, "--config", deployment, "--grpc-port", str(grpc_port), "--device", "cpu", env=found
    ) as server:
        yield Served(server, grpc_port)


@pytest.fixture
def memory(libraries: Path) -> Iterator[Memory]:
    """4 KiB of the puppet."""
    with Memory.of(str(libraries / "libcudart.so.13"), 4096, os.environ) as memory:
        yield memory


@BOTH
def test_inputs_and_outputs_in_memory_of_a_gpu(served: Served, memory: Memory, triton: Any) -> None:
    """Read and written in place, and nothing around it, through whichever frontend a connection goes."""
    check_inference(served, memory, triton)


@BOTH
def test_refused_cuda_region_ends_no_frontend(served: Served, memory: Memory, triton: Any) -> None:
    """Refusals have CUDA's words, and no frontend restarts."""
    before = served.server.metric("stoker_process_restarts_total", process="frontend")
    check_refusals(served, memory, triton)
    assert served.server.metric("stoker_process_restarts_total", process="frontend") == before


def test_a_handle_in_lines(served: Served, memory: Memory) -> None:
    """As Triton's client in C++ writes it: a line has 72 characters."""
    encoded = memory.handle[:72] + b"\\n" + memory.handle[72:] + b"\\n"
    body = b'{"raw_handle": {"b64": "%s"}, "device_id": 0, "byte_size": 64}' % encoded
    path = "/v2/cudasharedmemory/region/lines/register"
    assert ask(served, path, [bearer(PRIMARY)], body).status == 200
    served.client(triton_http).unregister_cuda_shared_memory("lines", headers=dict(KEY))


def mappings(memory: Memory) -> int:
    """How many other processes have memory of a puppet mapped."""
    name = memory.name
    return sum(name in _maps_of(process) for process in Path("/proc").glob("[0-9]*")) - 1


def _maps_of(process: Path) -> str:
    try:
        return (process / "maps").read_text()
    except OSError:
        return ""


def test_unregistered_cuda_region_is_closed_in_every_frontend(served: Served, memory: Memory) -> None:
    """Every frontend closes the region within a second, so that its owner can free it."""
    client = served.client(triton_http)
    client.register_cuda_shared_memory("r", memory.handle, 0, 64, headers=dict(KEY))
    assert mappings(memory) > 0
    client.unregister_cuda_shared_memory("r", headers=dict(KEY))
    wait_until(lambda: mappings(memory) == 0, "all frontends have closed it")


def test_registration_needs_a_key_and_a_whole_body(served: Served, memory: Memory) -> None:
    """Pages of browsers and callers without a key are refused; incomplete bodies get 400."""
    path = "/v2/cudasharedmemory/region/r/register"
    body = b'{"raw_handle": {"b64": "%s"}, "device_id": 0, "byte_size": 64}' % memory.handle
    answers = [
        ask(served, path, headers, body) for headers in ([], [bearer(PRIMARY), ("Origin", "http://pages")])
    ]
    assert [answer.status for answer in answers] == [401, 403]
    for body in (
        b"{}",
        b'{"raw_handle": {"b64": "%s"}, "device_id": 0}' % memory.handle,
        b'{"raw_handle": "%s", "byte_size": 64}' % memory.handle,
        b'{"raw_handle": {"b64": "*"}, "byte_size": 64}',
        b'{"raw_handle": {"b64": "%s"}, "byte_size": 64, "device_id": -1}' % memory.handle,
    ):
        assert ask(served, path, [bearer(PRIMARY)], body).status == 400, body
    unknown = b'{"raw_handle": {"b64": "%s"}, "byte_size": 64}' % base64.b64encode(b"\1" * 64)
    answer = ask(served, path, [bearer(PRIMARY)], unknown)
    assert (answer.status, answer.header("x-stoker-error-code")) == (400, "invalid_input")
    client = served.client(triton_http)
    assert client.get_cuda_shared_memory_status(headers=dict(KEY)) == []
