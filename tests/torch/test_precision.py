"""Models in 16 bits: converted, by autocast, or refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.torch.conftest import load, torch
from tests.torch.modules import model_of, rows, run_of

from stoker.errors import LoadFailed
from stoker.runtimes.torch.model import TorchModel
from stoker.runtimes.torch.precision import choose_precision
from stoker.settings.choices import Acceleration, Precision

Save = Callable[..., Path]
nn = torch.nn


class Literal(nn.Module):
    """Its code names float32, as a normalisation does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        wide = x.to(torch.float32)
        return self.layer(wide * torch.ones(4, dtype=torch.float32))


class Overflowing(nn.Module):
    """Its weights overflow in float16, not in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.full((4, 3), 1e5))

    def forward(self, x: Any) -> Any:
        return x @ self.weights


def set_precision(make: Callable[[], Any], precision: Precision, *shape: int) -> tuple[TorchModel, str]:
    def open_model() -> TorchModel:
        return model_of(make())

    return choose_precision(
        torch, "net", precision, "cpu", open_model, run_of, {"x": rows(8, *(shape or (4,)))}, open_model()
    )


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_program_is_converted_with_the_types_in_its_code(export: Save, precision: Precision) -> None:
    """Weights, and float32 in the code, become 16 bits; inputs and outputs stay float32."""
    path = export(Literal(), torch.randn(2, 4))
    model, words = set_precision(lambda: torch.export.load(path).module(), precision)
    assert words.startswith(f"precision {precision}, outputs differ from float32 by 0.0")
    assert words.endswith(", converted")
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[precision]
    assert {weights.dtype for weights in model.module.parameters()} == {dtype}


def test_module_that_cannot_be_converted_uses_autocast() -> None:
    """Its code makes float32, which does not fit converted weights; the module is loaded again."""
    torch.manual_seed(1)
    weights = Literal().state_dict()

    def make() -> Any:
        module = Literal()
        module.load_state_dict(weights)
        return module

    model, words = set_precision(make, "bf16")
    assert words.endswith(", autocast")
    assert {weights.dtype for weights in model.module.parameters()} == {torch.float32}


def test_precision_that_loses_too_much_is_refused() -> None:
    """The message has the failures of both forms; tf32 converts nothing and is compared too."""
    reason = r"net cannot compute with precision: fp16: converted: .*not finite.*; autocast: .*not finite"
    with pytest.raises(LoadFailed, match=reason):
        set_precision(Overflowing, "fp16")
    assert set_precision(Overflowing, "bf16")[1].endswith(", converted")
    assert set_precision(Overflowing, "tf32")[1] == ("precision tf32, outputs equal those of float32")


def test_precision_of_a_compiled_package_is_refused() -> None:
    """A package holds no module that could be converted."""
    package = TorchModel(lambda x: x, lambda package, tensors: package(*tensors), ["x"])
    with pytest.raises(LoadFailed, match="compile the model in fp16"):
        choose_precision(torch, "net", "fp16", "cpu", lambda: package, run_of, {"x": rows(2, 4)}, package)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_sixteen_bits_are_refused_on_the_cpu(export: Save, precision: Precision) -> None:
    """The message is that of ONNX models."""
    with pytest.raises(LoadFailed, match=f"precision: {precision} is for GPUs"):
        load(export(Literal(), torch.randn(2, 4)), acceleration=Acceleration(precision=precision))
