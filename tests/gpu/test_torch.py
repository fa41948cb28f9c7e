"""Models of PyTorch on a real GPU: captured or eager, in all precisions, in flight; skipped without either."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.gpu.in_flight import SIZES, check_batches_in_flight
from tests.http.raw_http import bearer, request
from tests.live_server import LiveServer, wait_until

from stoker.deployment import Deployment, Device
from stoker.errors import LoadFailed
from stoker.gpu.probes import probe
from stoker.runtimes.base import PipelinedRuntime, Runtime, SizedRuntime
from stoker.runtimes.cuda import load_cuda
from stoker.runtimes.pipeline import PipelinedExecution
from stoker.runtimes.rows_runtime import RowsRuntime
from stoker.runtimes.torch.loading import load_torch
from stoker.settings.choices import Acceleration, Precision

torch = pytest.importorskip("torch", reason="PyTorch is not installed: `make test-torch` brings it")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(probe("torch") is not None, reason=f"no GPU to test on: {probe('torch')}"),
]

GPU = Device("cuda", 0, "the first GPU")
nn = torch.nn
Save = Callable[..., Path]


class Perceptron(nn.Module):
    """Wide enough that 16 bits and TF32 differ from float32."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.layers = nn.Sequential(nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 10))

    def forward(self, x: Any) -> Any:
        return self.layers(x)


class Pictures(nn.Module):
    """Convolutions and a normalisation."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.layers = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU()
        )
        self.classes = nn.Linear(32, 10)

    def forward(self, x: Any) -> Any:
        return self.classes(self.layers(x).mean((2, 3)))


class Attention(nn.Module):
    """Token ids, embeddings, and attention as PyTorch has it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.words = nn.Embedding(100, 64)
        self.parts = nn.Linear(64, 192)
        self.classes = nn.Linear(64, 4)

    def forward(self, ids: Any) -> Any:
        hidden = self.words(ids)
        query, keys, values = self.parts(hidden).view(-1, 16, 3, 4, 16).permute(2, 0, 3, 1, 4).unbind(0)
        attended = nn.functional.scaled_dot_product_attention(query, keys, values)
        return self.classes(attended.transpose(1, 2).reshape(-1, 16, 64)[:, 0])


class Doubler(nn.Module):
    """bfloat16 in and out."""

    def forward(self, x: Any) -> Any:
        return x + x


class Reading(nn.Module):
    """It reads a number to decide, which CUDA cannot capture; its rows are independent."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x == x).any()):
            return x * 2
        return x + x


def example(module: nn.Module, rows: int = 2) -> Any:
    if isinstance(module, Attention):
        return torch.randint(0, 100, (rows, 16))
    if isinstance(module, Pictures):
        return torch.rand(rows, 3, 32, 32)
    return torch.rand(rows, 784)


@pytest.fixture
def export(tmp_path: Path) -> Save:
    def save(module: Any, given: Any = None) -> Path:
        path = tmp_path / "model.pt2"
        inputs = example(module) if given is None else given
        shapes = ({0: torch.export.Dim("rows", min=1, max=1024)},)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.export.save(torch.export.export(module.eval(), (inputs,), dynamic_shapes=shapes), path)
        return path

    return save


def load(path: Path, buckets: tuple[int, ...] | None = SIZES, **settings: Any) -> Runtime:
    deployment = Deployment(
        "net",
        1,
        "torch",
        path,
        path.parent,
        64,
        1 << 20,
        batch_buckets=buckets,
        acceleration=Acceleration(**settings),
        engine_cache=path.parent / "engines",
    )
    return load_torch(deployment, GPU, 2)


def captured(path: Path, **settings: Any) -> PipelinedExecution:
    runtime = load(path, execution="graph", **settings)
    assert isinstance(runtime, PipelinedExecution)
    assert isinstance(runtime, PipelinedRuntime)
    assert isinstance(runtime, SizedRuntime)
    return runtime


def on_cpu(module: nn.Module, array: np.ndarray) -> np.ndarray:
    with torch.inference_mode():
        answer: np.ndarray = module.eval().cpu()(torch.from_numpy(array)).numpy()
    return answer


@pytest.mark.parametrize("make", [Perceptron, Pictures, Attention])
@pytest.mark.parametrize("execution", ["graph", "copied"])
def test_executions_agree_with_the_cpu(export: Save, make: type[Any], execution: str) -> None:
    """Batches have every size and one between, in any order, twice with other rows."""
    module = make()
    runtime = load(export(module), execution=execution, precision="fp32")
    assert isinstance(runtime, PipelinedExecution if execution == "graph" else RowsRuntime)
    for seed in (1, 2):
        torch.manual_seed(seed)
        for count in (64, 1, 2, 3, 32, 64):
            given = example(module, count).numpy()
            (answer,) = runtime.run([given])
            np.testing.assert_allclose(answer, on_cpu(module, given), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("make", [Perceptron, Pictures, Attention])
def test_batches_in_flight_agree_with_the_cpu(export: Save, make: type[Any]) -> None:
    """Rows of two frontends come in all sizes and random order; each batch has the answers of its own rows."""
    module = make()
    runtime = captured(export(module), precision="fp32")
    check_batches_in_flight(runtime, lambda arena: on_cpu(module, arena.inputs[0]), seed=3)


@pytest.mark.parametrize("make", [Perceptron, Pictures, Attention])
@pytest.mark.parametrize(
    ("precision", "within"), [("fp32", 1e-4), ("tf32", 1e-2), ("fp16", 5e-2), ("bf16", 0.1)]
)
def test_every_precision_is_near(export: Save, make: type[Any], precision: Precision, within: float) -> None:
    """Models are captured, the log has the difference, and inputs and outputs keep their types."""
    module = make()
    runtime = captured(export(module), precision=precision)
    assert f"; precision {precision}, outputs differ from float32 by " in runtime.choice
    given = example(module, 9).numpy()
    answer, exact = np.array(runtime.run([given])[0]), on_cpu(module, given)
    assert answer.dtype == np.float32
    assert np.abs(answer - exact).max() <= within * np.abs(exact).max()


def test_uncapturable_torch_model_runs_eagerly(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The model runs in the same pipeline with right answers; `execution: graph` is an error."""
    caplog.set_level("INFO")
    path = tmp_path / "model.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(Reading()).save(str(path))
    np.save(tmp_path / "sample_input.npy", np.ones((2, 784), np.float32))
    with pytest.raises(LoadFailed, match="cannot run with execution: graph"):
        load(path, execution="graph")
    runtime = load(path)
    assert isinstance(runtime, PipelinedExecution)
    assert runtime.choice.startswith("execution eager, 2 batches in flight; precision tf32")
    given = np.random.default_rng(1).random((5, 784), np.float32)
    np.testing.assert_allclose(runtime.run([given])[0], 2 * given, rtol=1e-6)
    assert sum("execution graph is left out" in line for line in caplog.messages) == 1


def test_bfloat16_comes_and_goes(export: Save) -> None:
    """Inputs and outputs of a captured graph have this type."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    runtime = captured(export(Doubler(), torch.ones(2, 3, dtype=torch.bfloat16)))
    given = np.arange(12).reshape(4, 3).astype(ml_dtypes.bfloat16)
    (answer,) = runtime.run([given])
    assert np.asarray(answer).tolist() == (2 * np.arange(12).reshape(4, 3)).tolist()


def test_sizes_share_a_pool_are_added_and_prepared_again(export: Save) -> None:
    """Answers are right after each step; eight sizes take little more memory than the largest."""
    module = Pictures()
    path = export(module)
    version = str(torch.version.cuda).partition(".")[0]
    load(path, (1,), execution="graph")
    before = load_cuda(version).free_bytes()
    single = captured(path, buckets=(64,))
    one_bytes = before - load_cuda(version).free_bytes()
    del single
    torch.cuda.empty_cache()
    before = load_cuda(version).free_bytes()
    runtime = captured(path, precision="fp32")
    eight_bytes = before - load_cuda(version).free_bytes()
    print(f"one size {one_bytes >> 20} MiB, eight sizes {eight_bytes >> 20} MiB")
    assert eight_bytes <= 1.3 * one_bytes + (64 << 20)
    runtime.remove_size(16)
    runtime.prepare_again()
    assert runtime.add_size(24) > 0
    given = example(module, 24).numpy()
    np.testing.assert_allclose(runtime.run([given])[0], on_cpu(module, given), rtol=1e-3, atol=1e-3)


def test_compiled_models_are_captured(export: Save) -> None:
    """Triton's kernels need a C compiler; answers agree."""
    module = Perceptron()
    runtime = captured(export(module), compile=True, precision="fp32")
    assert runtime.choice.endswith("; compiled")
    given = example(module, 33).numpy()
    np.testing.assert_allclose(runtime.run([given])[0], on_cpu(module, given), rtol=1e-3, atol=1e-3)


def test_a_compiled_package_is_captured_or_runs_eagerly(tmp_path: Path) -> None:
    """The package of AOTInductor is compiled for this GPU."""
    module = Perceptron().eval()
    given = example(module)
    shapes = ({0: torch.export.Dim("rows", min=1, max=64)},)
    program = torch.export.export(module.cuda(), (given.cuda(),), dynamic_shapes=shapes)
    path = tmp_path / "model.pt2"
    torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    np.save(tmp_path / "sample_input.npy", given.numpy())
    runtime = load(path, allow_pickle=True)
    assert isinstance(runtime, PipelinedExecution)
    print(runtime.choice)
    rows = example(module, 40).numpy()
    np.testing.assert_allclose(runtime.run([rows])[0], on_cpu(module, rows), rtol=1e-2, atol=1e-2)


class Rounded(nn.Module):
    """It makes ids of numbers of unknown range."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(100, 8)

    def forward(self, x: Any) -> Any:
        return self.words(x.clamp(max=1e9).nan_to_num().abs().round().long()).sum(1)


def ask(server: LiveServer, name: str, datatype: str, number: float) -> int:
    tensor = {"name": name, "shape": [1, 16], "datatype": datatype, "data": [number] * 16}
    body = json.dumps({"inputs": [tensor]}).encode()
    with server.connect() as connection:
        head = [bearer(server.key)]
        return connection.ask(request("POST", "/v2/models/model/infer", head, body)).status


def test_id_out_of_range_is_refused_and_does_not_affect_others(export: Save, tmp_path: Path) -> None:
    """On the device it would be an assertion, after which CUDA computes nothing."""
    path = export(Attention())
    scratch = tmp_path / "server"
    scratch.mkdir()
    with LiveServer(scratch, path, "--device", "cuda:0") as server:
        devices = server.device_pids()
        assert [ask(server, "ids", "INT64", number) for number in (99, 100, -1, 1_000_000, 0)] == [
            200,
            422,
            422,
            422,
            200,
        ]
        assert server.device_pids() == devices


def test_a_broken_cuda_is_replaced(export: Save, tmp_path: Path) -> None:
    """An assertion on the device ends the process; the next process answers."""
    path = export(Rounded(), torch.rand(2, 16))
    scratch = tmp_path / "server"
    scratch.mkdir()
    config = scratch / "deployment.yaml"
    # Its own test of rows would break CUDA too.
    config.write_text(json.dumps({"models": [{"path": str(path), "name": "model", "batching": "none"}]}))
    with LiveServer(scratch, "--config", config, "--device", "cuda:0") as server:
        (device,) = server.device_pids()
        assert ask(server, "x", "FP32", 3) == 200
        assert ask(server, "x", "FP32", 1e6) >= 400
        wait_until(lambda: ask(server, "x", "FP32", 3) == 200, "it answers again")
        assert server.device_pids() != [device]
