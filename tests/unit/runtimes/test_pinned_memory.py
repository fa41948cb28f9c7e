"""Pinned memory, its copies on the GPU and the stream between them; the CUDA runtime is a puppet."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest
from tests.cuda_puppets import DOUBLES, PuppetCudart, address_of

from stoker.runtimes import cuda
from stoker.runtimes.base import OutOfMemory
from stoker.runtimes.cuda import CudaError, CudaRuntime, load_cuda
from stoker.runtimes.pinned_memory import StagedMemory


def staged(cudart: PuppetCudart, rows: int = 4) -> StagedMemory:
    """Return memory for batches of a puppet."""
    return StagedMemory(CudaRuntime(cudart), DOUBLES.inputs, DOUBLES.outputs, rows)


def test_batch_is_sent_and_received_at_constant_addresses() -> None:
    """The copies are done when `send` and `receive` return."""
    cudart = PuppetCudart()
    memory = staged(cudart)
    (x,), (y,) = memory.inputs, memory.outputs
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert not any(cudart.device[x.device_address].raw)
    cudart.calls.clear()

    memory.send([rows])
    assert bytes(cudart.device[x.device_address])[:24] == rows.tobytes()
    cudart.device[y.device_address][:24] = (rows * 2).tobytes()
    (received,) = memory.receive(2)

    assert received.tolist() == (rows * 2).tolist()
    assert address_of(received) == y.host_address
    copies = [call for call in cudart.calls if call[0] != "host_alloc"]
    assert copies == [
        ("to_device", x.device_address, x.host_address, 24),
        ("synchronize",),
        ("to_host", y.host_address, y.device_address, 24),
        ("synchronize",),
    ]


def test_rows_that_lie_in_the_buffers_are_not_copied_again() -> None:
    """A batch at the start of the pinned arrays is sent from there; other batches are copied there first."""
    cudart = PuppetCudart()
    memory = staged(cudart)
    (buffer,) = memory.host_inputs()
    assert buffer.shape == (4, 3)
    assert not buffer.any()
    buffer[:2] = 7
    memory.send([buffer[:2]])
    assert buffer[2:].tolist() == [[0] * 3] * 2

    memory.send([buffer[2:4]])
    assert buffer[:2].tolist() == [[0] * 3] * 2


def test_pages_that_cannot_be_pinned_are_plain_ones(caplog: pytest.LogCaptureFixture) -> None:
    """Batches run, and the log has the reason why they are slower; CUDA's error does not stay for the next call."""
    cudart = PuppetCudart()
    cudart.failing["cudaHostAlloc"] = 2
    memory = staged(cudart)
    memory.send([np.ones((1, 3), np.float32)])
    assert bytes(cudart.device[memory.inputs[0].device_address])[:12] == np.ones(3, np.float32).tobytes()
    assert "48 bytes of host memory are not pinned" in caplog.text
    assert "cudaHostAlloc: CUDA error 2, out of memory" in caplog.text
    assert cudart.cleared == 2


def test_gpu_without_memory_raises_out_of_memory() -> None:
    """Memory that was allocated before is freed."""
    cudart = PuppetCudart(limit_bytes=60)
    with pytest.raises(OutOfMemory, match="cudaMalloc: CUDA error 2, out of memory"):
        staged(cudart)
    gc.collect()
    assert (cudart.device, cudart.host, cudart.streams) == ({}, {}, 0)


def test_other_errors_of_cuda_have_their_number() -> None:
    """A failed copy is an error of the device, not of its memory."""
    cudart = PuppetCudart()
    memory = staged(cudart)
    cudart.failing["cudaMemcpyAsync"] = 801
    with pytest.raises(CudaError, match="cudaMemcpyAsync: CUDA error 801, operation not supported"):
        memory.send([np.ones((1, 3), np.float32)])


def test_memory_is_freed_with_its_last_user() -> None:
    """Arrays in use keep their pages."""
    cudart = PuppetCudart()
    memory = staged(cudart)
    (kept,) = memory.receive(1)
    del memory
    gc.collect()
    assert (len(cudart.host), cudart.device, cudart.streams) == (1, {}, 0)
    assert kept.shape == (1, 3)
    del kept
    gc.collect()
    assert cudart.host == {}


def test_the_runtime_of_the_process_is_found_in_its_maps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several the version that is asked for; without any, the error says so."""
    maps = tmp_path / "maps"
    monkeypatch.setattr(cuda, "_MAPS", maps)
    opened: list[str] = []
    monkeypatch.setattr(cuda.ctypes, "CDLL", lambda path: opened.append(path) or PuppetCudart())
    line = "7f00-7f01 r-xp 0000 08:01 42    "
    maps.write_text(f"{line}/lib/libcudart.so.12.4\n{line}/lib/libcudart.so.13.0\n{line}/lib/libc.so.6\n")
    load_cuda("13")
    load_cuda("12")
    load_cuda("")
    assert opened == ["/lib/libcudart.so.13.0", "/lib/libcudart.so.12.4", "/lib/libcudart.so.12.4"]

    maps.write_text(f"{line}/lib/libc.so.6\n")
    with pytest.raises(CudaError, match="no libcudart"):
        load_cuda("13")
