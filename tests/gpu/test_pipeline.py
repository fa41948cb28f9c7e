"""Batches in flight on a real GPU: order, copies, sizes, shared weights, quiet loads; skipped where there is none."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.gpu.in_flight import CAPACITY, SIZES, check_batches_in_flight, filled_arena
from tests.tiny_models import write_mlp, write_pictures

from stoker.arena import Arena
from stoker.deployment import Deployment, Device
from stoker.runtimes.base import PipelinedRuntime, SizedRuntime
from stoker.runtimes.cuda import CudaRuntime, load_cuda
from stoker.runtimes.onnx.capture import GraphSessions, SessionGraphs
from stoker.runtimes.onnx.cuda import SharedSession
from stoker.runtimes.onnx.fixed_sessions import FixedSessions
from stoker.runtimes.onnx.loading import load_onnx
from stoker.runtimes.onnx.sessions import OnnxSessions
from stoker.runtimes.pipeline import PipelinedExecution
from stoker.settings.choices import Acceleration
from stoker.tensors import Signature, TensorSpec

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("first_gpu")]

GPU = Device("cuda", 0, "the first GPU")
WIDE = 2048
LAYERS = 6
_WORKSPACE_BYTES = 68 << 20
"""The memory of a session beside weights and rows on an H200."""


def load(path: Path, sizes: tuple[int, ...] = SIZES, **settings: Any) -> PipelinedExecution:
    """Load a model on the GPU, captured."""
    acceleration = Acceleration(execution="graph", **settings)
    runtime = load_onnx(
        Deployment(
            "model",
            1,
            "onnx",
            path,
            path.parent,
            sizes[-1],
            1 << 20,
            batch_buckets=sizes,
            acceleration=acceleration,
        ),
        GPU,
        2,
    )
    assert isinstance(runtime, PipelinedExecution)
    assert isinstance(runtime, PipelinedRuntime)
    assert isinstance(runtime, SizedRuntime)
    return runtime


def answers_on_cpu(path: Path, arena: Arena) -> np.ndarray:
    """Return the answers of the CPU for each row of an arena."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    output: np.ndarray = session.run(None, dict(zip(names, arena.inputs, strict=True)))[0]
    return output


@pytest.fixture(params=["mlp", "pictures"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Short rows and longer ones."""
    return (
        write_mlp(tmp_path / "mlp.onnx")
        if request.param == "mlp"
        else write_pictures(tmp_path / "pictures.onnx")
    )


@pytest.mark.parametrize("seed", range(3))
def test_batches_in_flight_agree_with_the_cpu(model: Path, seed: int) -> None:
    """Rows of two frontends come in all sizes and random order; each batch has the answers of its own rows."""
    check_batches_in_flight(load(model, precision="fp32"), partial(answers_on_cpu, model), seed)


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    """Write large products, and a shape that is computed from the size of the batch, as exporters do."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["rows"]),
        helper.make_node("Unsqueeze", ["rows", "first"], ["rows1"]),
        helper.make_node("Concat", ["rows1", "width"], ["flat"], axis=0),
        helper.make_node("Reshape", ["x", "flat"], ["h0"]),
    ]
    random = np.random.default_rng(3)
    constants = {
        "zero": np.array(0, np.int64),
        "first": np.array([0], np.int64),
        "width": np.array([WIDE], np.int64),
    }
    for layer in range(LAYERS):
        constants[f"w{layer}"] = (random.standard_normal((WIDE, WIDE)) / WIDE**0.5).astype(np.float32)
        nodes.append(helper.make_node("MatMul", [f"h{layer}", f"w{layer}"], [f"h{layer + 1}"]))
    graph = helper.make_graph(
        [*nodes, helper.make_node("Identity", [f"h{LAYERS}"], ["y"])],
        "wide",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", WIDE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", WIDE])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    path = tmp_path / "wide.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def cuda() -> CudaRuntime:
    return load_cuda(str(onnxruntime.cuda_version).partition(".")[0])


def captured(path: Path, sizes: tuple[int, ...], way: str) -> PipelinedExecution:
    """In `one` session for all sizes, or one for each, with `shared` weights or `own` ones."""
    deployment = Deployment("wide", 1, "onnx", path, path.parent, sizes[-1], 1 << 20)
    signature = Signature((TensorSpec("x", "float32", (WIDE,)),), (TensorSpec("y", "float32", (WIDE,)),))
    opened = OnnxSessions(deployment, GPU, 2, path)
    sessions: GraphSessions
    if way == "one":
        sessions = SharedSession(opened)
    else:
        sessions = FixedSessions(opened, {"x": "rows"}, sizes, cuda() if way == "shared" else None)
    return PipelinedExecution("wide", signature, cuda(), SessionGraphs(sessions), sizes, sizes[-1], 2)


@pytest.mark.parametrize("way", ["one", "shared"])
def test_eight_sizes_take_little_more_memory_than_one(
    wide: Path, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One session serves all sizes, or sessions share their weights."""
    caplog.set_level("INFO")
    # The first session allocates memory of the process.
    captured(wide, (1,), "own")
    before = cuda().free_bytes()
    single = captured(wide, (64,), "own")
    one_bytes = before - cuda().free_bytes()
    del single
    before = cuda().free_bytes()
    runtime = captured(wide, SIZES, way)
    eight_bytes = before - cuda().free_bytes()
    assert "does not use shared weights" not in caplog.text
    x = np.random.default_rng(5).random((64, WIDE), np.float32)
    session = onnxruntime.InferenceSession(str(wide), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": x})
    for size in SIZES:
        np.testing.assert_allclose(runtime.run([x[:size]])[0], expected[:size], rtol=1e-2, atol=1e-2)
    print(f"{way}: one size {one_bytes >> 20} MiB, eight sizes {eight_bytes >> 20} MiB")
    # A session of its own has a workspace of cuBLAS of its own.
    sessions = 1 if way == "one" else len(SIZES)
    assert eight_bytes <= 1.3 * one_bytes + (sessions - 1) * _WORKSPACE_BYTES


def test_a_batch_begins_without_waiting_for_the_device(wide: Path) -> None:
    """All batches in flight begin before the last is done, which takes the device more than a millisecond."""
    rows = 8 * CAPACITY
    runtime = captured(wide, (rows,), "shared")
    arena = filled_arena(runtime.signature, 1)
    runtime.attach(arena)
    blocks = [(arena, np.resize(np.arange(CAPACITY, dtype=np.int32), rows))]
    batches = [runtime.begin(blocks, rows, rows) for _ in range(runtime.depth)]
    assert not batches[-1].is_done()
    for batch in batches:
        batch.result()
        assert batch.is_done()
        batch.release()
    runtime.detach(arena)


def test_sizes_are_added_removed_and_prepared_again(model: Path) -> None:
    """Answers are right after each step."""
    runtime = load(model, (1, 8), precision="fp32")
    for size in (2, 4, 8):
        if size not in runtime.sizes:
            assert runtime.add_size(size) > 0
    runtime.remove_size(2)
    runtime.prepare_again()
    assert tuple(runtime.sizes) == (1, 4, 8)
    arena = filled_arena(runtime.signature, 7)
    expected = answers_on_cpu(model, arena)
    for size in runtime.sizes:
        rows = [array[:size] for array in arena.inputs]
        np.testing.assert_allclose(runtime.run(rows)[0], expected[:size], rtol=1e-3, atol=1e-3)


def test_a_load_prints_nothing_of_onnx_runtimes_own(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It prints no warnings, also if a graph cannot be captured; the load takes seconds."""
    begun_s = time.monotonic()
    load(model)
    took_s = time.monotonic() - begun_s
    printed = "".join(capfd.readouterr())
    assert "onnxruntime" not in printed
    assert "\x1b[" not in printed
    assert took_s < 10


@pytest.fixture
def large_rows(tmp_path: Path) -> Iterator[tuple[PipelinedExecution, Arena]]:
    """A model whose rows are 602,112 bytes, and an arena."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 150528])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows"])
    node = helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)
    graph = helper.make_graph([node], "sum", [x], [y], [numpy_helper.from_array(np.array([1]), "axes")])
    path = tmp_path / "sum.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    runtime = load(path, (1, 16), precision="fp32")
    arena = filled_arena(runtime.signature, 4)
    runtime.attach(arena)
    yield runtime, arena
    runtime.detach(arena)


def test_large_rows_are_copied_straight_from_the_arena(
    large_rows: tuple[PipelinedExecution, Arena], caplog: pytest.LogCaptureFixture
) -> None:
    """Scattered and adjacent ones; what was measured says how long that takes."""
    runtime, arena = large_rows
    for numbers in ([3, 99, 98, 200], [10, 11, 12, 13], list(range(400, 416))):
        size = 16
        batch = runtime.begin([(arena, np.array(numbers, np.int32))], len(numbers), size)
        expected = arena.inputs[0][numbers].sum(1)
        np.testing.assert_allclose(batch.result()[0][: len(numbers)], expected, rtol=1e-4)
        batch.release()
    assert 0 < runtime.copy_ns(1) < runtime.copy_ns(16)
