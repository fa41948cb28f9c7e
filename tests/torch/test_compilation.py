"""Models compiled by torch.compile."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.torch.conftest import load, run, torch
from tests.torch.modules import rows

from stoker.errors import LoadFailed
from stoker.runtimes.rows_runtime import RowsRuntime
from stoker.settings.choices import Acceleration

Save = Callable[..., Path]
nn = torch.nn


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Require a compiler of C++, and restore PyTorch's state of compilation."""
    if shutil.which("g++") is None:
        pytest.skip(reason="torch.compile needs g++ here")
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    yield
    torch.compiler.set_stance("default")
    torch.compiler.reset()


@pytest.mark.usefixtures("compiler")
def test_compiled_model_answers_alike_and_is_not_compiled_again(
    export: Save, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Other sizes than those of the load run without compilation; the workspace keeps the code."""
    caplog.set_level("INFO")
    net = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 3)).eval()
    cache = tmp_path / "engines"
    runtime = load(
        export(net, torch.randn(2, 4)), acceleration=Acceleration(compile=True), engine_cache=cache
    )
    assert isinstance(runtime, RowsRuntime)
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
