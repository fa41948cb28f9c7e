"""ONNX Runtime's executions on a real GPU; skipped where there is none."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from tests.exported_attention import ROWS_TIME, WIDTH, Form, write_attention
from tests.tiny_models import write_mlp, write_pictures

from stoker.deployment import Deployment, Device
from stoker.errors import LoadFailed
from stoker.gpu.nvml import GpuReader
from stoker.gpu.probes import probe
from stoker.runtimes.base import BufferedRuntime, ChosenRuntime, ForkingRuntime, Runtime, powers_of_two
from stoker.runtimes.onnx.executions import BoundExecution, CopiedExecution
from stoker.runtimes.onnx.loading import load_onnx
from stoker.runtimes.pipeline import PipelinedExecution
from stoker.settings.choices import Acceleration, Precision

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("first_gpu")]

GPU = Device("cuda", 0, "the first GPU")
ROWS = 64


@pytest.fixture(scope="module")
def mlp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A perceptron of 784 inputs and 10 outputs."""
    return write_mlp(tmp_path_factory.mktemp("gpu") / "mlp.onnx")


def load(path: Path, **settings: Any) -> Any:
    """Load a model on the GPU, for batches of the powers of two."""
    deployment = Deployment(
        "model",
        1,
        "onnx",
        path,
        path.parent,
        ROWS,
        1 << 20,
        batch_buckets=powers_of_two(ROWS),
        acceleration=Acceleration(**settings),
    )
    return load_onnx(deployment, GPU, 2)


def rows_of(count: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).random((count, 784), np.float32)


def on_cpu(path: Path, rows: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    output: np.ndarray = session.run(None, {"x": rows})[0]
    return output


def answers(runtime: Runtime, rows: np.ndarray) -> np.ndarray:
    """Return a copy of the answers, which the next batch overwrites."""
    outputs: Sequence[Any] = runtime.run([rows])
    return np.array(outputs[0])


def chosen(runtime: Runtime) -> str:
    """Return the choice for the log."""
    assert isinstance(runtime, ChosenRuntime)
    return runtime.choice


@pytest.mark.parametrize(
    ("execution", "kind"),
    [("copied", CopiedExecution), ("bound", BoundExecution), ("graph", PipelinedExecution)],
)
def test_executions_agree_with_the_cpu(mlp: Path, execution: str, kind: type) -> None:
    """Batches have every size and one between, in any order, twice with other rows."""
    runtime = load(mlp, execution=execution, precision="fp32")
    assert isinstance(runtime, kind)
    for seed in (1, 2):
        for count in (64, 1, 2, 3, 32, 64):
            rows = rows_of(count, seed)
            np.testing.assert_allclose(answers(runtime, rows), on_cpu(mlp, rows), rtol=1e-3, atol=1e-4)


def test_capturable_model_runs_as_a_graph(mlp: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A model that can be captured runs as a graph in one session; nothing else is timed."""
    caplog.set_level("DEBUG")
    runtime = load(mlp)
    assert chosen(runtime).startswith(
        "execution graph, one session for all sizes, 2 batches in flight; graph as it is; precision tf32, outputs"
    )
    assert "execution bound" not in caplog.text
    rows = rows_of(5)
    np.testing.assert_allclose(answers(runtime, rows), on_cpu(mlp, rows), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("execution", ["copied", "bound"])
def test_two_instances_run_at_the_same_time(mlp: Path, execution: str) -> None:
    """Each has its own thread, and answers its own rows."""
    first = load(mlp, execution=execution, precision="fp32")
    assert isinstance(first, ForkingRuntime)
    rows = [rows_of(32, seed) for seed in (1, 2)]
    expected = [on_cpu(mlp, batch) for batch in rows]
    wrong: list[str] = []
    ready = threading.Barrier(2)

    def work(number: int, runtime: Runtime) -> None:
        ready.wait(60)
        wrong.extend(
            f"instance {number}, batch {turn}"
            for turn in range(200)
            if not np.allclose(answers(runtime, rows[number]), expected[number], rtol=1e-3, atol=1e-4)
        )

    def further() -> None:
        work(1, first.fork())

    thread = threading.Thread(target=further)
    thread.start()
    work(0, first)
    thread.join(60)
    assert not thread.is_alive()
    assert wrong == []


def test_buffers_are_pinned(mlp: Path, caplog: pytest.LogCaptureFixture) -> None:
    """CUDA grants the pages; rows that are gathered there are scored from there."""
    runtime = load(mlp, execution="bound", precision="fp32")
    assert "not pinned" not in caplog.text
    assert isinstance(runtime, BufferedRuntime)
    (buffer,) = runtime.buffers()
    assert buffer.shape == (ROWS, 784)
    rows = rows_of(16, 4)
    buffer[:16] = rows
    np.testing.assert_allclose(answers(runtime, buffer[:16]), on_cpu(mlp, rows), rtol=1e-3, atol=1e-4)


def used_bytes() -> int:
    """Return the used memory of the first GPU, by all processes."""
    used = GpuReader().read()[0].memory_used_bytes
    assert used is not None
    return used


@pytest.mark.parametrize("execution", ["copied", "bound", "graph"])
def test_memory_stays_flat_over_random_sizes(mlp: Path, execution: str) -> None:
    """After the first batch of each size, two thousand batches take no more memory."""
    runtime = load(mlp, execution=execution)
    sizes = [1, 2, 4, 8, 16, 32, 64]
    for count in sizes:
        runtime.run([rows_of(count)])
    batches = {count: rows_of(count) for count in sizes}
    before = used_bytes()
    random = np.random.default_rng(8)
    for count in random.choice(sizes, 2000).tolist():
        runtime.run([batches[count]])
    after = used_bytes()
    # Other processes may allocate memory of the GPU meanwhile.
    assert after - before < 64 << 20


def test_float16_is_near_and_another_number(tmp_path: Path, mlp: Path) -> None:
    """Inputs and outputs stay float32; the log has the largest difference."""
    runtime = load(mlp, precision="fp16")
    rows = rows_of(9)
    given, exact = answers(runtime, rows), on_cpu(mlp, rows)
    assert given.dtype == np.float32
    assert 0 < np.abs(given - exact).max() < 0.05 * np.abs(exact).max()
    assert "; precision fp16, outputs differ from float32 on the CPU by " in chosen(runtime)

    pictures = write_pictures(tmp_path / "pictures.onnx")
    images = np.random.default_rng(2).random((4, 3, 8, 8), np.float32)
    session = onnxruntime.InferenceSession(str(pictures), providers=["CPUExecutionProvider"])
    exact = session.run(None, {"x": images})[0]
    given = answers(load(pictures, precision="fp16"), images)
    assert np.abs(given - exact).max() < 0.05 * np.abs(exact).max()


@pytest.mark.parametrize(("precision", "within"), [("tf32", 1e-2), ("fp16", 5e-2), ("bf16", 0.1)])
def test_fused_attention_is_near_in_every_precision(
    tmp_path: Path, precision: Precision, within: float
) -> None:
    """Whichever graph is faster here, it is said which, and the answers are those of the CPU."""
    path = write_attention(tmp_path / "attention.onnx", Form(gelu=True))
    runtime = load(path, precision=precision)
    rows = np.random.default_rng(4).standard_normal((5, ROWS_TIME, WIDTH)).astype(np.float32)
    given, exact = answers(runtime, rows), on_cpu(path, rows)
    assert np.abs(given - exact).max() < within * np.abs(exact).max()
    assert "; graph fused; " in chosen(runtime) or "; graph as it is; " in chosen(runtime)


def test_bfloat16_comes_and_goes_by_every_execution(tmp_path: Path) -> None:
    """Inputs and outputs are arrays of bfloat16."""
    values = [helper.make_tensor_value_info(name, TensorProto.BFLOAT16, ["n", 3]) for name in "xy"]
    nodes = [
        helper.make_node("Cast", ["x"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["wide", "wide"], ["sum"]),
        helper.make_node("Cast", ["sum"], ["y"], to=TensorProto.BFLOAT16),
    ]
    graph = helper.make_graph(nodes, "doubler", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "doubler.onnx").write_bytes(model.SerializeToString())
    for execution in ("copied", "bound", "graph"):
        rows = np.arange(12).reshape(4, 3).astype(ml_dtypes.bfloat16)
        given = answers(load(tmp_path / "doubler.onnx", execution=execution), rows)
        assert given.dtype == rows.dtype
        assert given.tolist() == (2 * np.arange(12).reshape(4, 3)).tolist()


def test_too_small_memory_limit_is_an_error(mlp: Path) -> None:
    """The weights alone take more than 1 MiB."""
    runtime = load(mlp, memory_mb=256)
    assert answers(runtime, rows_of(2)).shape == (2, 10)
    with pytest.raises(Exception, match="memory"):
        load(mlp, memory_mb=1)


def test_tensorrt_keeps_its_engines(mlp: Path, tmp_path: Path) -> None:
    """The second load reads the engines of the first."""
    problem = probe("tensorrt")
    if problem is not None:
        pytest.skip(reason=f"no TensorRT to test: {problem}")
    settings = Acceleration(provider="tensorrt", precision="fp16")
    deployment = Deployment(
        "model",
        1,
        "onnx",
        mlp,
        mlp.parent,
        ROWS,
        1 << 20,
        batch_buckets=powers_of_two(ROWS),
        acceleration=settings,
        engine_cache=tmp_path / "engines",
    )
    rows = rows_of(7)
    built = []
    for _ in range(2):
        given = answers(load_onnx(deployment, GPU, 2), rows)
        exact = on_cpu(mlp, rows)
        assert np.abs(given - exact).max() < 0.05 * np.abs(exact).max()
        built.append(sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*.engine")))
    assert built[0]
    assert built[0] == built[1]


def test_uncapturable_onnx_model_runs_without_a_graph(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A determinant has no GPU kernel, so the model runs without a graph, and a forced graph is an error."""
    caplog.set_level("INFO")
    taken = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 3])
    given = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])
    graph = helper.make_graph(
        [helper.make_node("Det", ["x"], ["y"], name="find_det")], "tiny", [taken], [given]
    )
    path = tmp_path / "det.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7), path)
    with pytest.raises(LoadFailed, match=r"execution: graph: .*still run on the CPU: Det 'find_det'"):
        load(path, execution="graph")
    rows = np.broadcast_to(2 * np.eye(3, dtype=np.float32), (5, 3, 3)).copy()
    assert answers(load(path), rows).tolist() == [8] * 5
    assert "it cannot be captured as a CUDA graph: with batches of one size" in caplog.text
