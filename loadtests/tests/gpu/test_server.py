"""The server of the bench on a GPU."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from tests.own_time import give_own_time

from stoker.settings.loading import load_settings
from stoker_bench.gpu import server as server_module
from stoker_bench.gpu.models import GpuModel
from stoker_bench.gpu.server import GpuServer, ServingOptions, deployment


def test_the_deployment_file_is_one(tmp_path: Path) -> None:
    """The server can read it; it has the model's precision and the other options."""
    model = GpuModel("resnet50", "fp16", "uint8", tmp_path / "model.onnx", "images", (2, 2, 3))
    file = tmp_path / "deployment.yaml"
    file.write_text(yaml.safe_dump(deployment(model, ServingOptions("cuda:0", 64, 4))))
    settings = load_settings({}, {}, file, ())
    assert (settings.device, settings.frontends) == (("cuda:0",), 4)
    (served,) = settings.models
    assert (served.name, served.max_batch_rows, served.precision) == ("bench", 64, "fp16")


def test_a_file_of_pytorch_has_the_precision_of_its_weights(tmp_path: Path) -> None:
    """It sets no precision, which the server would refuse; other files have the model's."""
    path = tmp_path / "bert.pt2"
    model = GpuModel("bert", "fp16", "int64", path, "input_ids", (16,), reference=tmp_path)
    assert deployment(model, ServingOptions("cuda:0"))["models"][0].get("precision") is None
    onnx = dataclasses.replace(model, path=path.with_suffix(".onnx"))
    assert deployment(onnx, ServingOptions("cuda:0"))["models"][0]["precision"] == "fp16"


def test_further_models_are_served_alike(tmp_path: Path) -> None:
    """Each has a name of its own, and the options of the first; they share a budget."""
    model = GpuModel("mlp", "fp32", "float32", tmp_path / "model.onnx", "images", (2,))
    options = ServingOptions("cuda:0", 64, memory_mb=100, settings={"optimize": "off"})
    document = deployment(model, options, [tmp_path / "b.onnx"])
    assert document["memory_mb"] == 100
    first, second = document["models"]
    assert second == {**first, "name": "bench1", "path": str(tmp_path / "b.onnx")}
    assert first["optimize"] == "off"


def test_busy_cores_are_processor_time_over_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all of the server's processes, in the seconds between entry and exit."""
    model = GpuModel("mlp", "fp32", "float32", tmp_path / "model.onnx", "images", (2,))
    server = GpuServer(model, ServingOptions("cpu"), tmp_path / "server")
    used_s, clock_s = iter([100.0, 121.0]), iter([5.0, 8.0])
    server._process.tree = SimpleNamespace(cpu_s=lambda: next(used_s))  # type: ignore[assignment]
    give_own_time(monkeypatch, server_module, monotonic=lambda: next(clock_s))
    cores: list[float] = []
    with server.count_cores(cores):
        pass
    assert cores == [7.0]
