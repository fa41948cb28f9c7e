"""The forms of a module: 16 bits, channels last, compiled; each gives the answers of the module as it was loaded."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.torch.conftest import load, run, torch

from stoker.errors import LoadFailed
from stoker.runtimes.packed import Feeds, Run
from stoker.runtimes.torch import TorchRuntime
from stoker.runtimes.torch_model import TorchModel, choose_layout, choose_precision
from stoker.settings.choices import Acceleration, Precision

Save = Callable[..., Path]
nn = torch.nn


def rows(count: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(7).standard_normal((count, *shape)).astype(np.float32)


class Literal(nn.Module):
    """It names types in its code, as a normalisation in float32 does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        wide = x.to(torch.float32)
        return self.layer(wide * torch.ones(4, dtype=torch.float32))


class Overflowing(nn.Module):
    """Too large for float16, not for bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.full((4, 3), 1e5))

    def forward(self, x: Any) -> Any:
        return x @ self.weights


def model_of(module: Any) -> TorchModel:
    return TorchModel(module, lambda module, tensors: module(*tensors), ["x"])


def run_of(model: TorchModel) -> Run:
    def run(feeds: Feeds) -> dict[str, np.ndarray]:
        with torch.inference_mode():
            given = model([torch.from_numpy(array) for array in feeds.values()])
        assert given.dtype == torch.float32
        return {"y": given.numpy().copy()}

    return run


def in_precision(make: Callable[[], Any], precision: Precision, *shape: int) -> tuple[TorchModel, str]:
    def open_model() -> TorchModel:
        return model_of(make())

    return choose_precision(
        torch, "net", precision, "cpu", open_model, run_of, {"x": rows(8, *(shape or (4,)))}, open_model()
    )


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_program_is_converted_with_the_types_that_its_code_names(
    export: Save, precision: Precision
) -> None:
    """Weights are of 16 bits, and so is what was float32 by name; inputs and outputs stay float32."""
    path = export(Literal(), torch.randn(2, 4))
    model, words = in_precision(lambda: torch.export.load(path).module(), precision)
    assert words.startswith(f"precision {precision}, outputs differ from float32 by 0.0")
    assert words.endswith(", converted")
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[precision]
    assert {weights.dtype for weights in model.module.parameters()} == {dtype}


def test_a_module_that_cannot_be_converted_computes_by_autocast() -> None:
    """Its code makes float32 that does not fit its weights; the module is loaded anew for it."""
    torch.manual_seed(1)
    module = Literal().state_dict()

    def make() -> Any:
        made = Literal()
        made.load_state_dict(module)
        return made

    model, words = in_precision(make, "bf16")
    assert words.endswith(", autocast")
    assert {weights.dtype for weights in model.module.parameters()} == {torch.float32}


def test_a_precision_that_loses_too_much_is_refused() -> None:
    """With what both ways end in; a precision that converts nothing is compared too."""
    reason = r"net cannot compute with precision: fp16: converted: .*not finite.*; autocast: .*not finite"
    with pytest.raises(LoadFailed, match=reason):
        in_precision(Overflowing, "fp16")
    assert in_precision(Overflowing, "bf16")[1].endswith(", converted")
    assert in_precision(Overflowing, "tf32")[1] == ("precision tf32, outputs equal those of float32")


def test_a_package_has_the_precision_that_it_was_compiled_for() -> None:
    """It holds no module."""
    package = TorchModel(lambda x: x, lambda package, tensors: package(*tensors), ["x"])
    with pytest.raises(LoadFailed, match="compile the model in fp16"):
        choose_precision(torch, "net", "fp16", "cpu", lambda: package, run_of, {"x": rows(2, 4)}, package)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_sixteen_bits_are_refused_on_the_cpu(export: Save, precision: Precision) -> None:
    """As for ONNX models."""
    with pytest.raises(LoadFailed, match=f"precision: {precision} is for GPUs"):
        load(export(Literal(), torch.randn(2, 4)), acceleration=Acceleration(precision=precision))


class Pictures(nn.Module):
    """A convolution; with `flattens` a view that only channels that come first have."""

    def __init__(self, *, flattens: bool = False) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 5, 3)
        self.flattens = flattens

    def forward(self, x: Any) -> Any:
        maps = self.layer(x)
        return maps.view(-1, 5 * 36) if self.flattens else maps.mean((2, 3))


@pytest.mark.parametrize(
    ("times_ms", "flattens", "is_last"),
    [((10, 5), False, True), ((10, 9.8), False, False), ((10, 5), True, False)],
)
def test_channels_are_last_where_that_is_faster_and_works(
    times_ms: tuple[float, float], flattens: bool, is_last: bool
) -> None:
    """Else the module is as it was."""
    module = Pictures(flattens=flattens).eval()
    now_ns = [0]
    sample = {"x": rows(2, 3, 8, 8)}
    expected = run_of(model_of(module))(sample)["y"]

    def timed(model: TorchModel) -> Run:
        run = run_of(model)
        last = module.layer.weight.is_contiguous(memory_format=torch.channels_last)

        def run_timed(feeds: Feeds) -> dict[str, np.ndarray]:
            now_ns[0] += int(1e6 * times_ms[last])
            return run(feeds)

        return run_timed

    model, words = choose_layout(torch, "net", timed, sample, model_of(module), lambda: now_ns[0])
    assert words == ("channels last (5.00 ms; first 10.00 ms)" if is_last else "")
    assert module.layer.weight.is_contiguous(memory_format=torch.channels_last) == is_last
    np.testing.assert_allclose(run_of(model)(sample)["y"], expected, rtol=1e-4, atol=1e-5)


def test_a_model_without_pictures_has_no_layout_to_choose() -> None:
    """Nothing of it is timed."""
    model = model_of(Literal())
    chosen = choose_layout(torch, "net", lambda _: pytest.fail("timed"), {"x": rows(2, 4)}, model)
    assert chosen == (model, "")


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A compiler of C++, and the process's state of compilation as it was."""
    if shutil.which("g++") is None:
        pytest.skip(reason="torch.compile needs g++ here")
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    yield
    torch.compiler.set_stance("default")
    torch.compiler.reset()


@pytest.mark.usefixtures("compiler")
def test_a_compiled_model_gives_the_same_and_is_never_compiled_again(
    export: Save, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Sizes that were not run at the load run as they are; the code is kept in the workspace."""
    caplog.set_level("INFO")
    net = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 3)).eval()
    cache = tmp_path / "engines"
    runtime = load(
        export(net, torch.randn(2, 4)), acceleration=Acceleration(compile=True), engine_cache=cache
    )
    assert isinstance(runtime, TorchRuntime)
    assert "net: compiled" in caplog.messages
    assert any(file.suffix == ".so" for file in cache.rglob("*"))
    compiled = dict(torch._dynamo.utils.counters["stats"])
    assert compiled["unique_graphs"] > 0
    for count in (1, 7, 64, 33):
        with torch.inference_mode():
            expected = net(torch.from_numpy(rows(count, 4)))
        np.testing.assert_allclose(run(runtime, rows(count, 4))[0], expected, rtol=1e-4, atol=1e-5)
    assert dict(torch._dynamo.utils.counters["stats"]) == compiled


def test_model_that_cannot_be_compiled_is_refused(
    trace: Save, export: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TorchScript is refused, and so is any model without a compiler."""
    with pytest.raises(LoadFailed, match=r"net: compile is for programs of torch\.export\.save"):
        load(trace(nn.Linear(4, 3), torch.randn(2, 4)), acceleration=Acceleration(compile=True))
    monkeypatch.setattr(torch, "compile", lambda *_, **__: lambda *_: 1 / 0)
    with pytest.raises(LoadFailed, match="net cannot be compiled: division by zero; leave compile out"):
        load(export(nn.Linear(4, 3), torch.randn(2, 4)), acceleration=Acceleration(compile=True))
