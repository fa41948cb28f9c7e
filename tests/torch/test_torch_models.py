"""Files of PyTorch: inputs and outputs, batches, and refusals."""

import io
import os
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.torch.conftest import load, run, torch
from tests.torch.zoo import TRACED_ALONE, ZOO

from stoker.deployment import Declaration, DeclaredTensor
from stoker.errors import InvalidInput, LoadFailed
from stoker.runtimes.packed import PackedRuntime
from stoker.runtimes.rows_runtime import RowsRuntime

Save = Callable[..., Path]
nn = torch.nn


class Net(nn.Module):
    """Two outputs of one input, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        scores = self.layer(x)
        return {"scores": scores, "likely": scores.softmax(-1)}


class Pair(nn.Module):
    """A tuple of two outputs, of two inputs."""

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return left + right, left * right


def rows(count: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(7).standard_normal((count, *shape)).astype(np.float32)


def test_an_exported_program_answers_as_eager_pytorch(export: Save) -> None:
    """Its inputs and outputs have their names, its rows share batches, and a batch of any size is right."""
    net = Net()
    runtime = load(export(net, torch.randn(2, 4)))
    assert isinstance(runtime, RowsRuntime)
    assert [str(spec.name) for spec in runtime.signature.inputs] == ["x"]
    assert [(spec.name, spec.dtype, spec.shape) for spec in runtime.signature.outputs] == [
        ("scores", "float32", (3,)),
        ("likely", "float32", (3,)),
    ]
    assert runtime.signature.isolation is not None
    assert runtime.signature.isolation.batched
    for count in (1, 2, 5, 64):
        given = rows(count, 4)
        with torch.inference_mode():
            expected = net(torch.from_numpy(given))
        scores, likely = run(runtime, given)
        np.testing.assert_allclose(scores, expected["scores"], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(likely, expected["likely"], rtol=1e-5, atol=1e-6)


def test_outputs_without_names_are_numbered(export: Save) -> None:
    """A tuple's are numbered, a single one is `output`; several inputs keep the names of `forward`."""
    runtime = load(export(Pair(), torch.randn(2, 3), torch.randn(2, 3)))
    assert [spec.name for spec in runtime.signature.inputs] == ["left", "right"]
    assert [spec.name for spec in runtime.signature.outputs] == ["output_0", "output_1"]
    left, right = rows(3, 3), rows(3, 3) + 1
    added, multiplied = run(runtime, left, right)
    np.testing.assert_allclose(added, left + right)
    np.testing.assert_allclose(multiplied, left * right)
    single = load(export(nn.Linear(3, 2), torch.randn(2, 3), name="single.pt2"))
    assert [spec.name for spec in single.signature.outputs] == ["output"]


def test_program_of_one_size_runs_request_by_request(export: Save) -> None:
    """Without a free first axis it takes only the size of its export."""
    net = nn.Linear(4, 3)
    runtime = load(export(net, torch.randn(2, 4), most_rows=None))
    assert isinstance(runtime, PackedRuntime)
    answer = runtime.run_tensors({"input": rows(2, 4)})
    with torch.inference_mode():
        np.testing.assert_allclose(answer["output"], net(torch.from_numpy(rows(2, 4))), rtol=1e-5, atol=1e-6)
    with pytest.raises(InvalidInput):
        runtime.run_tensors({"input": rows(3, 4)})


def test_program_for_smaller_batches_is_refused(export: Save) -> None:
    """Larger batches would fail later, so the load names the setting."""
    path = export(Net(), torch.randn(2, 4), most_rows=16)
    with pytest.raises(LoadFailed, match="at most 16 rows: set max_batch_rows: 16"):
        load(path)
    assert isinstance(load(path, max_batch_rows=16), RowsRuntime)


def test_free_sizes_beyond_the_batch_are_served_as_requests(tmp_path: Path) -> None:
    """Sequences of one length share a batch, and a wrong size is the caller's fault."""

    class Mean(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.mean(dim=1)

    dims = ({0: torch.export.Dim("rows"), 1: torch.export.Dim("length")},)
    path = tmp_path / "mean.pt2"
    torch.export.save(torch.export.export(Mean(), (torch.randn(2, 6, 3),), dynamic_shapes=dims), path)
    runtime = load(path)
    assert isinstance(runtime, PackedRuntime)
    tensors = runtime.signature.model_tensors
    assert tensors is not None
    assert (tensors.inputs[0].shape, tensors.batched) == ((-1, -1, 3), True)
    np.testing.assert_allclose(
        runtime.run_tensors({"x": rows(2, 9, 3)})["output"], rows(2, 9, 3).mean(axis=1), rtol=1e-5, atol=1e-6
    )
    with pytest.raises(InvalidInput):
        runtime.run_tensors({"x": rows(2, 9, 4)})


def test_traced_torchscript_has_the_inputs_of_its_trace(
    trace: Save, caplog: pytest.LogCaptureFixture
) -> None:
    """By the inputs that it was traced with, whose number of rows is one of many; the log names its successor."""
    caplog.set_level("INFO")
    net = nn.Linear(4, 3)
    runtime = load(trace(net, torch.randn(2, 4)))
    assert isinstance(runtime, RowsRuntime)
    with torch.inference_mode():
        np.testing.assert_allclose(
            run(runtime, rows(5, 4))[0], net(torch.from_numpy(rows(5, 4))), rtol=1e-5, atol=1e-6
        )
    assert sum("torch.export.save" in message for message in caplog.messages) == 1


def scripted(path: Path) -> Path:
    """Save TorchScript that was compiled from code, without sizes."""
    torch.jit.script(Pair()).save(str(path))
    return path


@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_torchscript_that_was_compiled_needs_a_sample(tmp_path: Path) -> None:
    """Without a sample the load fails with a remedy; the sample has names and types."""
    path = scripted(tmp_path / "model.pt")
    with pytest.raises(LoadFailed, match=r"does not describe its inputs: give it a sample input"):
        load(path)
    np.savez(tmp_path / "sample_input.npz", left=rows(2, 3), right=rows(2, 3))
    runtime = load(path)
    assert isinstance(runtime, RowsRuntime)
    np.testing.assert_allclose(run(runtime, rows(4, 3), rows(4, 3))[0], 2 * rows(4, 3))
    np.savez(tmp_path / "sample_input.npz", left=rows(2, 3), other=rows(2, 3))
    with pytest.raises(LoadFailed, match=r"has left, other, and the model takes left, right"):
        load(path)


@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_a_configuration_may_number_inputs_and_outputs(tmp_path: Path) -> None:
    """In Triton's configurations for PyTorch they are `INPUT__0` and `OUTPUT__1`."""
    path = scripted(tmp_path / "model.pt")
    inputs = tuple(DeclaredTensor(f"INPUT__{number}", "float32", (-1, 3)) for number in (1, 0))
    outputs = tuple(DeclaredTensor(f"OUTPUT__{number}", "float32", (-1, 3)) for number in (0, 1))
    runtime = load(path, declaration=Declaration("config.pbtxt", inputs, outputs, batched=True))
    assert [spec.name for spec in runtime.signature.inputs] == ["INPUT__0", "INPUT__1"]
    assert [spec.name for spec in runtime.signature.outputs] == ["OUTPUT__0", "OUTPUT__1"]
    np.testing.assert_allclose(run(runtime, rows(2, 3), rows(2, 3))[1], rows(2, 3) ** 2, rtol=1e-6)


@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_a_configuration_may_declare_inputs_alone(tmp_path: Path) -> None:
    """Outputs that it does not name keep the names of the model's result."""
    inputs = tuple(DeclaredTensor(f"INPUT__{number}", "float32", (-1, 3)) for number in (0, 1))
    declaration = Declaration("config.pbtxt", inputs, batched=True)
    runtime = load(scripted(tmp_path / "model.pt"), declaration=declaration)
    assert [spec.name for spec in runtime.signature.inputs] == ["INPUT__0", "INPUT__1"]
    assert [spec.name for spec in runtime.signature.outputs] == ["output_0", "output_1"]


def test_a_compiled_package_runs_its_code(tmp_path: Path) -> None:
    """An AOTInductor package needs a sample and permission, and the log says that its code runs."""
    net = nn.Linear(4, 3).eval()
    shapes = ({0: torch.export.Dim("rows", min=1, max=64)},)
    program = torch.export.export(net, (torch.randn(2, 4),), dynamic_shapes=shapes)
    path = tmp_path / "model.pt2"
    torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    np.save(tmp_path / "sample_input.npy", rows(2, 4))
    with pytest.raises(
        LoadFailed, match=r"whose compiled code runs when it is loaded: .* allow_pickle: true"
    ):
        load(path)
    runtime = load(path, allow_pickle=True)
    assert isinstance(runtime, RowsRuntime)
    with torch.inference_mode():
        expected = net(torch.from_numpy(rows(6, 4)))
    np.testing.assert_allclose(run(runtime, rows(6, 4))[0], expected, rtol=1e-5, atol=1e-6)


def test_weights_need_their_class(tmp_path: Path) -> None:
    """The module beside the file makes the model; only tensors of the weights are unpickled."""
    (tmp_path / "their_net.py").write_text(
        "import torch\n\n\nclass Net(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.layer = torch.nn.Linear(4, 3)\n\n"
        "    def forward(self, x):\n        return self.layer(x)\n"
    )
    layer = nn.Linear(4, 3)
    path = tmp_path / "model.pt"
    torch.save({"layer.weight": layer.weight, "layer.bias": layer.bias}, path)
    np.save(tmp_path / "sample_input.npy", rows(2, 4))
    with pytest.raises(LoadFailed, match="name its class with model_class: MODULE:CLASS"):
        load(path)
    with pytest.raises(LoadFailed, match=r"model_class their_net:Missing of net cannot be made"):
        load(path, model_class="their_net:Missing")
    runtime = load(path, model_class="their_net:Net")
    with torch.inference_mode():
        expected = layer(torch.from_numpy(rows(3, 4)))
    np.testing.assert_allclose(run(runtime, rows(3, 4))[0], expected, rtol=1e-5, atol=1e-6)


def test_pickled_modules_are_refused(tmp_path: Path) -> None:
    """Loading them would run code of their authors."""
    path = tmp_path / "model.pt"
    torch.save(nn.Linear(4, 3), path)
    with pytest.raises(LoadFailed, match="holds pickled objects, which run code"):
        load(path, model_class="torch.nn:Identity")
    with pytest.raises(LoadFailed, match="a module that is pickled whole needs allow_pickle: true"):
        load(path)


class Touch:
    """Its pickle writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("part", ["sample_inputs/model.pt", "weights/model.pt", "constants/model.pt"])
def test_a_program_with_a_pickle_that_runs_code_is_refused(tmp_path: Path, export: Save, part: str) -> None:
    """PyTorch unpickles several parts; with permission the code runs."""
    good, path, ran = (
        export(Net(), torch.randn(2, 4), name="good.pt2"),
        tmp_path / "net.pt2",
        tmp_path / "ran",
    )
    made = io.BytesIO()
    torch.save({"x": Touch(ran)}, made)
    with zipfile.ZipFile(good) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, content in (parts | {f"good/data/{part}": made.getvalue()}).items():
            archive.writestr(name, content)
    with pytest.raises(
        LoadFailed, match=r"net.pt2 holds pickled objects, which run code .*allow_pickle: true"
    ):
        load(path)
    assert not ran.exists()
    with suppress(LoadFailed):
        load(path, allow_pickle=True)
    assert ran.exists()


def test_a_program_is_loaded_by_a_pytorch_that_unpickles_tensors_alone(
    tmp_path: Path, export: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the look at the file should miss a pickle; the environment is then as it was."""
    good, path, ran = (
        export(Net(), torch.randn(2, 4), name="good.pt2"),
        tmp_path / "net.pt2",
        tmp_path / "ran",
    )
    made = io.BytesIO()
    torch.save({"x": Touch(ran)}, made)
    with zipfile.ZipFile(good) as archive, zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as bad:
        for name in archive.namelist():
            bad.writestr(name, made.getvalue() if name.endswith(".pt") else archive.read(name))
    monkeypatch.setattr("stoker.runtimes.torch.files.find_code", lambda _: "")
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    with pytest.raises(LoadFailed):
        load(path)
    assert not ran.exists()
    assert os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] == "1"
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ


def test_a_pickled_module_that_the_operator_allows(tmp_path: Path) -> None:
    """It answers as before; an object that is no module is refused."""
    net, path = Net(), tmp_path / "model.pt"
    torch.save(net, path)
    np.save(tmp_path / "sample_input.npy", rows(2, 4))
    runtime = load(path, allow_pickle=True)
    with torch.inference_mode():
        expected = net(torch.from_numpy(rows(3, 4)))
    np.testing.assert_allclose(run(runtime, rows(3, 4))[0], expected["scores"], rtol=1e-5, atol=1e-6)
    torch.save(net.state_dict(), path)
    with pytest.raises(
        LoadFailed, match="holds OrderedDict, and no module of PyTorch: leave allow_pickle out"
    ):
        load(path, allow_pickle=True)


def test_damaged_and_foreign_files_are_refused(tmp_path: Path, export: Save) -> None:
    """The message is one sentence."""
    path = export(Net(), torch.randn(2, 4))
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(LoadFailed, match="damaged, cut short, or no file of PyTorch"):
        load(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/models/model.json", "{}")
    with pytest.raises(LoadFailed, match=r"cannot load .*model\.pt2"):
        load(path)


@pytest.mark.parametrize("saved", ["exported", "traced"])
@pytest.mark.parametrize("kind", ZOO)
def test_models_of_mixed_rows_are_not_batched(export: Save, trace: Save, kind: str, saved: str) -> None:
    """Each is found out by trying, and a request gets what the module gives for it alone; its twin is batched."""
    if saved == "exported" and kind in TRACED_ALONE:
        saved = "traced"
    save = export if saved == "exported" else trace
    for module, is_batched in zip((make() for make in ZOO[kind]), (False, True), strict=True):
        runtime = load(save(module, torch.randn(4, 4), name=f"{is_batched}.pt2"))
        assert runtime.signature.isolation is not None
        assert runtime.signature.isolation.batched == is_batched, runtime.signature.isolation
        given = rows(3, 4)
        with torch.inference_mode():
            expected = module(torch.from_numpy(given)).numpy()
        if isinstance(runtime, PackedRuntime):
            (answer,) = runtime.run_tensors({runtime.signature.model_tensors.inputs[0].name: given}).values()
        else:
            (answer,) = run(runtime, given)
        np.testing.assert_allclose(answer, expected, rtol=1e-5, atol=1e-5)


def test_bfloat16_and_whole_numbers_keep_their_types(export: Save) -> None:
    """An output in bfloat16 is one for callers too; indices out of range are the caller's fault."""

    class Lookup(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(10, 4)

        def forward(self, index: Any) -> Any:
            return self.table(index).to(torch.bfloat16)

    runtime = load(export(Lookup(), torch.zeros(2, 3, dtype=torch.int64)))
    (taken,), (given,) = runtime.signature.inputs, runtime.signature.outputs
    assert (taken.dtype, given.dtype, given.shape) == ("int64", "bfloat16", (3, 4))
    (answer,) = run(runtime, np.array([[1, 2, 3]]))
    assert answer.dtype.name == "bfloat16"
    with pytest.raises(InvalidInput):
        run(runtime, np.array([[1, 2, 30]]))
