"""A caller with tensors in memory of a GPU, as users of `tritonclient` have them, and what they find."""

from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton_http
from tests.contract.protocol_models import MATRIX
from tests.http.test_shared_memory import KEY, Served, output_in_region, request
from tritonclient.utils import InferenceServerException

__all__ = ["Memory", "check_inference", "check_refusals"]

ROWS = np.array([[1, 2, 3, 4], [0, 0, 0, 1]], np.float32)
SCORES = ROWS @ MATRIX


class Memory:
    """Memory of the first GPU, in a process of its own: CUDA opens none of its own process.

    Attributes:
        handle: In Base64, as `tritonclient` has it.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.handle = self._answer().encode()

    @property
    def name(self) -> str:
        """The name of the shared memory, which is a puppet's handle."""
        return base64.b64decode(self.handle).rstrip(b"\0").decode()

    @classmethod
    @contextmanager
    def of(cls, library: str, size_bytes: int, environment: Mapping[str, str]) -> Iterator[Memory]:
        """Take memory until the end of the block."""
        command = [sys.executable, str(Path(__file__).with_name("owner.py")), library, str(size_bytes)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, text=True, env=environment, **pipes) as process:  # type: ignore[call-overload]
            yield cls(process)

    def write(self, offset: int, content: np.ndarray) -> None:
        """Write numbers."""
        assert self._ask(f"write {offset} {content.tobytes().hex()}") == "written"

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Read bytes."""
        return bytes.fromhex(self._ask(f"read {offset} {size_bytes}"))

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def check_inference(served: Served, memory: Memory, triton: Any) -> None:
    """Inputs and outputs in a region, by connections of which each frontend has some; the rest of it stays."""
    around = np.full(64, 0x5A5A5A5A, np.uint32)
    memory.write(0, around)
    memory.write(16, ROWS)
    size = {"device_id": 0, "byte_size": 240}
    served.client(triton).register_cuda_shared_memory("digits", memory.handle, **size, headers=dict(KEY))
    inputs = [request(triton, "x", ROWS.shape, "digits", ROWS.nbytes, 16)]
    outputs = [output_in_region(triton, "y", "digits", 64, 128)]
    for _ in range(6):
        memory.write(128, around[:6])
        served.client(triton).infer("scores", inputs, outputs=outputs, headers=dict(KEY))
        assert np.array_equal(np.frombuffer(memory.read(128, 24), np.float32).reshape(2, 3), SCORES)
    expected = bytearray(around.tobytes())
    expected[16 : 16 + ROWS.nbytes] = ROWS.tobytes()
    expected[128 : 128 + SCORES.nbytes] = SCORES.astype(np.float32).tobytes()
    assert memory.read(0, 256) == bytes(expected)
    status = served.client(triton).get_cuda_shared_memory_status("digits", headers=dict(KEY))
    if triton is triton_http:
        assert status == [{"name": "digits", **size}]
    else:
        region = status.regions["digits"]
        assert (region.name, region.device_id, region.byte_size) == ("digits", 0, 240)
    served.client(triton).unregister_cuda_shared_memory("digits", headers=dict(KEY))
    with pytest.raises(InferenceServerException, match="Unable to find shared memory region"):
        served.client(triton).infer("scores", inputs, headers=dict(KEY))


def check_refusals(served: Served, memory: Memory, triton: Any) -> None:
    """A handle that is none, a GPU that is none, more than there is, a name twice; and a part that is outside."""
    client = served.client(triton)

    def register(handle: bytes, size_bytes: int, device_id: int = 0) -> None:
        client.register_cuda_shared_memory("r", handle, device_id, size_bytes, headers=dict(KEY))

    for handle, size_bytes, device_id, message in (
        (base64.b64encode(b"\x01" * 64), 64, 0, "cudaError"),
        (base64.b64encode(b"short"), 64, 0, "'raw_handle' of 64 bytes"),
        (memory.handle, 64, 4096, "cudaErrorInvalidDevice"),
        (memory.handle, 1 << 40, 0, "the allocation has"),
    ):
        with pytest.raises(InferenceServerException, match=message):
            register(handle, size_bytes, device_id)
    register(memory.handle, 64)
    with pytest.raises(InferenceServerException, match="already in manager"):
        register(memory.handle, 64)
    behind = [request(triton, "x", ROWS.shape, "r", ROWS.nbytes, 36)]
    with pytest.raises(InferenceServerException, match="Invalid offset"):
        served.client(triton).infer("scores", behind, headers=dict(KEY))
    client.unregister_cuda_shared_memory(headers=dict(KEY))
