"""Weights that several sessions share."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.cuda_puppets import PuppetCudart
from tests.flattening import WIDE, CpuSessions, flattening

from stoker.runtimes.cuda import CudaRuntime
from stoker.runtimes.onnx.sessions import FixedSize
from stoker.runtimes.onnx.shared_weights import SharedWeights, read_weights

CPU_DEVICE = 1


def share(path: Path, cudart: PuppetCudart, device_type: int = CPU_DEVICE) -> SharedWeights:
    """Share the weights of a model in the puppet's memory, which ONNX Runtime takes for the CPU's."""
    return SharedWeights(CudaRuntime(cudart), list(read_weights(path, path.parent)), device_type)


@pytest.mark.parametrize("external", [False, True])
def test_sessions_use_shared_weights_in_place(tmp_path: Path, external: bool) -> None:
    """A later change of the weights changes the answers of all sessions."""
    path = tmp_path / "flattening.onnx"
    onnx.save(
        flattening("rows"), path, save_as_external_data=external, location="weights", size_threshold=1000
    )
    cudart = PuppetCudart()
    weights = share(path, cudart)
    assert list(weights.values) == ["w"]
    assert weights.size_bytes == WIDE * WIDE * 4
    opened = [
        CpuSessions(path).open_with_graphs(1, FixedSize({"rows": rows}, weights.values)) for rows in (1, 4)
    ]
    x = np.ones((4, WIDE), np.float32)
    assert [
        session.run(None, {"x": x[:size]})[0][0, 0] for session, size in zip(opened, (1, 4), strict=True)
    ] == [257, 257]
    (memory,) = cudart.device.values()
    memory[: 4 * WIDE * WIDE] = np.full(WIDE * WIDE, 3, np.float32).tobytes()
    assert [
        session.run(None, {"x": x[:size]})[0][0, 0] for session, size in zip(opened, (1, 4), strict=True)
    ] == [385, 385]
    del opened, weights
    gc.collect()
    assert cudart.device == {}


def test_values_have_the_device_and_address_of_the_weights(tmp_path: Path) -> None:
    """The device is CUDA's."""
    path = tmp_path / "flattening.onnx"
    onnx.save(flattening("rows"), path)
    cudart = PuppetCudart()
    weights = share(path, cudart, 2)
    (value,) = weights.values.values()
    assert (value.device_name(), value.shape(), value.data_type()) == ("cuda", [WIDE, WIDE], "tensor(float)")
    assert value.data_ptr() in cudart.device


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE])
def test_weights_of_all_kinds_are_read(dtype: int) -> None:
    """Small weights, and those whose layout ONNX Runtime changes, are left out."""
    model = flattening("rows", dtype)
    large = np.ones((WIDE, WIDE, 3, 3), np.float32)
    model.graph.initializer.append(numpy_helper.from_array(large, "kernel"))
    model.graph.node.append(helper.make_node("Conv", ["picture", "kernel"], ["unused"]))
    numbers = np.full((WIDE, WIDE), 2, helper.tensor_dtype_to_np_dtype(dtype))
    found = list(read_weights(model.SerializeToString(), Path()))
    expected = [] if numbers.nbytes < 1 << 16 else [("w", (WIDE, WIDE), numbers.tobytes())]
    assert [(weight.name, weight.shape, weight.content) for weight in found] == expected
