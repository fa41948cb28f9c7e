"""Tensors in shared memory of the caller, as users of `tritonclient` have them, on a server with two frontends."""

from __future__ import annotations

import base64
import os
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
import tritonclient.utils.shared_memory as shm
from tests.contract.protocol_models import MATRIX, write_models
from tests.http.raw_http import Answer, Headers, bearer
from tests.http.raw_http import request as raw_request
from tests.live_server import PRIMARY, LiveServer, free_port, wait_until
from tritonclient.utils import InferenceServerException

ROWS = np.array([[1, 2, 3, 4], [0, 0, 0, 1]], np.float32)
SCORES = ROWS @ MATRIX
KEY = {"authorization": f"Bearer {PRIMARY}"}

DEPLOYMENT = """
frontends: 2
shared_memory: on
models:
  - {path: models/scores.onnx, max_batch_rows: 64}
  - {path: models/pair.onnx}
  - {path: models/texts.onnx}
"""


class Served:
    """The server, and clients that each have a connection of their own."""

    def __init__(self, server: LiveServer, grpc_port: int) -> None:
        self.server = server
        self.addresses = {triton_http: f"127.0.0.1:{server.port}", triton_grpc: f"127.0.0.1:{grpc_port}"}

    def client(self, triton: Any) -> Any:
        return triton.InferenceServerClient(self.addresses[triton])

    def statuses(self) -> int:
        return len(self.client(triton_http).get_system_shared_memory_status(headers=dict(KEY)))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Both protocols, with shared memory for callers with a key."""
    scratch, grpc_port = tmp_path_factory.mktemp("regions"), free_port()
    write_models(scratch / "models")
    deployment = scratch / "deployment.yaml"
    deployment.write_text(DEPLOYMENT)
    with LiveServer(scratch, "--config", deployment, "--grpc-port", str(grpc_port)) as server:
        yield Served(server, grpc_port)


class Memory:
    """Shared memory as tritonclient makes it; its name, its key, and its handle."""

    def __init__(self, size_bytes: int) -> None:
        self.name = f"stoker-tests-{uuid.uuid4().hex}"
        self.key = "/" + self.name
        self.file = Path("/dev/shm", self.name)
        self.handle = shm.create_shared_memory_region(self.name, self.key, size_bytes)

    def destroy(self) -> None:
        shm.destroy_shared_memory_region(self.handle)


@pytest.fixture
def memories() -> Iterator[Any]:
    """Makes shared memory, which is gone after the test."""
    with ExitStack() as made:

        def make(size_bytes: int) -> Memory:
            memory = Memory(size_bytes)
            made.callback(lambda: memory.destroy() if memory.file.exists() else None)
            return memory

        yield make


def request(triton: Any, name: str, shape: tuple[int, ...], region: str, size: int, offset: int = 0) -> Any:
    """An input in a region."""
    given = triton.InferInput(name, list(shape), "FP32")
    given.set_shared_memory(region, size, offset)
    return given


def output_in_region(triton: Any, name: str, region: str, size: int, offset: int = 0) -> Any:
    """An output in a region."""
    output = triton.InferRequestedOutput(name)
    output.set_shared_memory(region, size, offset)
    return output


@pytest.mark.parametrize("triton", [triton_http, triton_grpc], ids=["http", "grpc"])
def test_inputs_and_outputs_in_regions(served: Served, memories: Any, triton: Any) -> None:
    """Read and written in place behind an offset, through whichever frontend a connection goes."""
    memory = memories(256)
    shm.set_shared_memory_region(memory.handle, [ROWS], offset=32)
    served.client(triton).register_system_shared_memory(
        memory.name, memory.key, 240, offset=16, headers=dict(KEY)
    )
    inputs = [request(triton, "x", ROWS.shape, memory.name, ROWS.nbytes, 16)]
    outputs = [output_in_region(triton, "y", memory.name, 64, 128)]
    for _ in range(6):
        shm.set_shared_memory_region(memory.handle, [np.zeros(16, np.float32)], offset=144)
        result = served.client(triton).infer("scores", inputs, outputs=outputs, headers=dict(KEY))
        assert np.array_equal(shm.get_contents_as_numpy(memory.handle, np.float32, [2, 3], 144), SCORES)
        found = result.get_output("y")
        assert (found["shape"] if triton is triton_http else list(found.shape)) == [2, 3]
    # The bytes behind the output are unchanged.
    assert not shm.get_contents_as_numpy(memory.handle, np.float32, [10], 144 + SCORES.nbytes).any()
    served.client(triton).unregister_system_shared_memory(memory.name, headers=dict(KEY))
    with pytest.raises(InferenceServerException, match="Unable to find shared memory region"):
        served.client(triton).infer("scores", inputs, headers=dict(KEY))


@pytest.mark.parametrize("triton", [triton_http, triton_grpc], ids=["http", "grpc"])
def test_regions_beside_other_data(served: Served, memories: Any, triton: Any) -> None:
    """One input in a region and one in the message; one output in a region, and the other in the answer."""
    memory = memories(64)
    a, b = np.array([[0.5, 0.25]], np.float32), np.array([[1, 2, 3]], np.int64)
    second = triton.InferInput("b", [1, 3], "INT64")
    second.set_data_from_numpy(b)
    shm.set_shared_memory_region(memory.handle, [a])
    client = served.client(triton)
    client.register_system_shared_memory(memory.name, memory.key, 64, headers=dict(KEY))
    outputs = [output_in_region(triton, "twice", memory.name, 24, 32), triton.InferRequestedOutput("sums")]
    # Twice, for what requests say is remembered.
    for number in (a, a + 1):
        shm.set_shared_memory_region(memory.handle, [number])
        inputs = [request(triton, "a", (1, 2), memory.name, a.nbytes), second]
        result = client.infer("pair", inputs, outputs=outputs, headers=dict(KEY))
        assert result.as_numpy("sums").tolist() == number.sum(1).tolist()
        assert shm.get_contents_as_numpy(memory.handle, np.int64, [3], 32).tolist() == [2, 4, 6]
    client.unregister_system_shared_memory(memory.name, headers=dict(KEY))


@pytest.mark.parametrize("triton", [triton_http, triton_grpc], ids=["http", "grpc"])
def test_registered_region_is_listed_until_unregistered(served: Served, memories: Any, triton: Any) -> None:
    """Status lists a region, its name is taken once, and all regions can be unregistered at once."""
    client, memory = served.client(triton), memories(64)
    client.unregister_system_shared_memory(headers=dict(KEY))
    client.register_system_shared_memory(memory.name, memory.key, 48, offset=16, headers=dict(KEY))
    with pytest.raises(InferenceServerException, match="already in manager"):
        served.client(triton).register_system_shared_memory(memory.name, memory.key, 64, headers=dict(KEY))
    status = client.get_system_shared_memory_status(memory.name, headers=dict(KEY))
    if triton is triton_http:
        assert status == [{"name": memory.name, "key": memory.key, "offset": 16, "byte_size": 48}]
    else:
        found = status.regions[memory.name]
        assert (found.name, found.key, found.offset, found.byte_size) == (memory.name, memory.key, 16, 48)
    with pytest.raises(InferenceServerException, match="Unable to find"):
        client.get_system_shared_memory_status("other", headers=dict(KEY))
    client.unregister_system_shared_memory(headers=dict(KEY))
    assert served.statuses() == 0
    metadata = client.get_server_metadata(headers=dict(KEY))
    spoken = metadata["extensions"] if triton is triton_http else metadata.extensions
    assert "system_shared_memory" in spoken


@pytest.mark.parametrize("triton", [triton_http, triton_grpc], ids=["http", "grpc"])
def test_a_region_that_was_cut_short(served: Served, memories: Any, triton: Any) -> None:
    """Its requests are refused, and the frontend lives; the same holds for a part behind the region's end."""
    memory, client = memories(1 << 16), served.client(triton)
    client.register_system_shared_memory(memory.name, memory.key, 1 << 15, headers=dict(KEY))
    there = [request(triton, "x", ROWS.shape, memory.name, ROWS.nbytes, 1 << 14)]
    client.infer("scores", there, headers=dict(KEY))
    behind = [request(triton, "x", ROWS.shape, memory.name, ROWS.nbytes, (1 << 15) - 4)]
    with pytest.raises(InferenceServerException, match="Invalid offset"):
        client.infer("scores", behind, headers=dict(KEY))
    os.truncate(memory.file, 4096)
    with pytest.raises(InferenceServerException, match="shorter"):
        client.infer("scores", there, headers=dict(KEY))
    start = [request(triton, "x", ROWS.shape, memory.name, ROWS.nbytes)]
    into = [output_in_region(triton, "y", memory.name, 24, 1 << 14)]
    with pytest.raises(InferenceServerException, match="shorter"):
        client.infer("scores", start, outputs=into, headers=dict(KEY))
    assert memory.file.stat().st_size == 4096
    small = [output_in_region(triton, "y", memory.name, 20)]
    with pytest.raises(InferenceServerException, match="at least 24 bytes"):
        client.infer("scores", start, outputs=small, headers=dict(KEY))
    assert len(client.infer("scores", start, headers=dict(KEY)).as_numpy("y")) == 2
    client.unregister_system_shared_memory(memory.name, headers=dict(KEY))


def test_a_region_that_its_owner_removed_is_released(served: Served, memories: Any) -> None:
    """Nobody has to unregister it, and its name is free again."""
    memory, client = memories(64), served.client(triton_http)
    client.register_system_shared_memory(memory.name, memory.key, 64, headers=dict(KEY))
    client.infer("scores", [request(triton_http, "x", (2, 4), memory.name, 32)], headers=dict(KEY))
    memory.destroy()
    with pytest.raises(InferenceServerException, match="Unable to find"):
        client.infer("scores", [request(triton_http, "x", (2, 4), memory.name, 32)], headers=dict(KEY))
    wait_until(lambda: served.statuses() == 0, "the region is let go")


def ask(served: Served, path: str, headers: Headers, body: bytes) -> Answer:
    """POST a body."""
    with served.server.connect() as connection:
        connection.send(raw_request("POST", path, headers, body))
        return connection.answer()


def test_registration_needs_a_key_and_shared_memory(served: Served, memories: Any) -> None:
    """Pages of browsers, callers without a key and files outside shared memory are refused."""
    memory = memories(64)
    path = f"/v2/systemsharedmemory/region/{memory.name}/register"
    body = b'{"key": "%s", "byte_size": 64}' % memory.key.encode()
    answers = [
        ask(served, path, headers, body) for headers in ([], [bearer(PRIMARY), ("Origin", "http://pages")])
    ]
    assert [answer.status for answer in answers] == [401, 403]
    for key in (b"/../etc/passwd", b"sem.a", b"", b"/a/b"):
        body = b'{"key": "%s", "byte_size": 1}' % key
        assert ask(served, path, [bearer(PRIMARY)], body).status in (400, 422), key
    assert served.statuses() == 0


@pytest.mark.parametrize("triton", [triton_http, triton_grpc], ids=["http", "grpc"])
def test_memory_of_a_gpu_without_one(served: Served, triton: Any) -> None:
    """Unregistering all succeeds; the refusal of others names the missing part and the remedy."""
    client = served.client(triton)
    client.unregister_cuda_shared_memory(headers=dict(KEY))
    status = client.get_cuda_shared_memory_status(headers=dict(KEY))
    assert (status if triton is triton_http else list(status.regions)) == []
    metadata = client.get_server_metadata(headers=dict(KEY))
    spoken = metadata["extensions"] if triton is triton_http else metadata.extensions
    if "cuda_shared_memory" in spoken:
        pytest.skip(reason="there is a GPU: tests/gpu has it")
    handle = base64.b64encode(bytes(64))
    with pytest.raises(
        InferenceServerException, match=r"cannot be used here: .*put the tensors into system shared memory"
    ):
        client.register_cuda_shared_memory("a", handle, 0, 64, headers=dict(KEY))
