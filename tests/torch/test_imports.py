"""Imported models of PyTorch: each way answers as eager PyTorch does, and one that does not is never the default."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.http.raw_http import bearer, request
from tests.live_server import LiveServer, run_stoker
from tests.torch.conftest import torch

from stoker.importing import conversions, measuring
from stoker.importing.imports import ImportOrder, import_model
from stoker.models.registered import Registered
from stoker.models.repository import Repository
from stoker.models.way_choice import objection
from stoker.models.ways import WayResult

Save = Callable[..., Path]
nn = torch.nn
NOW = datetime(2026, 11, 27, tzinfo=UTC)


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Convert and measure in this process, which has PyTorch already; returns puppets by the way they make."""
    puppets: dict[str, Any] = {}

    def order_child(module: str, order: dict[str, Any], *_: object) -> dict[str, Any]:
        puppet = puppets.get(order.get("to", ""))
        if puppet is not None:
            puppet(order)
            return {}
        do = conversions.do if module.endswith("conversions") else measuring.do
        answer: dict[str, Any] = json.loads(json.dumps(do(order)))
        return answer

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    monkeypatch.setattr("stoker.importing.imports.order_child", order_child)
    monkeypatch.setattr("stoker.models.way_measuring.order_child", order_child)
    return puppets


def imported(path: Path, tmp_path: Path, *tried: str, **fields: Any) -> Registered:
    values: dict[str, Any] = {"name": "net", "path": path, "sample": None, "tried": tried, "device": "cpu"}
    values |= {"tolerance": 1e-3, "max_batch_rows": 8, "limit_s": 600.0, **fields}
    return import_model(ImportOrder(**values), Repository(tmp_path / "models"), NOW, lambda *_: None)


def results(registered: Registered) -> dict[str, WayResult]:
    assert registered.ways is not None
    return {one.way: one for one in registered.ways.results}


class Net(nn.Module):
    """Two outputs by name."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        scores = self.layer(x)
        return {"scores": scores, "likely": scores.softmax(-1)}


def test_every_way_has_the_names_and_answers_of_the_original(
    in_process: dict[str, Any], export: Save, tmp_path: Path
) -> None:
    """ONNX and the compiled package take and give what the program does, and keep its rows apart."""
    registered = imported(export(Net(), torch.randn(2, 4), name="net.pt2"), tmp_path, "onnx", "aoti")
    assert registered.ways is not None
    assert list(registered.ways.ways) == ["torch", "onnx", "aoti"]
    for result in results(registered).values():
        assert objection(result, batched=True) == ""
        assert result.difference is not None
        assert result.difference < 1e-5
    assert registered.signature is not None
    assert [one["name"] for one in registered.signature["outputs"]] == ["scores", "likely"]


@pytest.mark.parametrize("form", ["traced", "scripted"])
@pytest.mark.filterwarnings("ignore")
def test_torchscript_is_converted(in_process: dict[str, Any], trace: Save, tmp_path: Path, form: str) -> None:
    """By tracing or scripting; the latter needs a sample, which the version keeps."""
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    sample = tmp_path / "sample.npy"
    np.save(sample, np.ones((2, 4), np.float32))
    if form == "traced":
        path = trace(net, torch.randn(2, 4), name="net.pt")
    else:
        path = tmp_path / "net.pt"
        torch.jit.script(net).save(str(path))
    registered = imported(path, tmp_path, "onnx", sample=None if form == "traced" else sample)
    assert objection(results(registered)["onnx"], batched=True) == ""
    assert (registered.files_dir / "sample_input.npy").exists() == (form == "scripted")


@pytest.mark.filterwarnings("ignore")
def test_resnet_18_and_bert_are_proven_as_onnx(
    in_process: dict[str, Any], export: Save, tmp_path: Path
) -> None:
    """Models that nobody here made, with random weights: the conversions agree within 1e-4."""
    torchvision = pytest.importorskip("torchvision")
    transformers = pytest.importorskip("transformers")
    resnet = export(torchvision.models.resnet18(weights=None), torch.randn(2, 3, 64, 64), name="resnet.pt2")
    config = transformers.BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )

    class Bert(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = transformers.BertForSequenceClassification(config)

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return self.bert(input_ids=input_ids, attention_mask=attention_mask).logits

    ids = torch.randint(0, 100, (2, 12))
    bert = export(Bert(), ids, torch.ones_like(ids), name="bert.pt2")
    for path in (resnet, bert):
        found = results(imported(path, tmp_path, "onnx", name=path.stem))
        assert objection(found["onnx"], batched=True) == "", path
        assert found["onnx"].difference is not None
        assert found["onnx"].difference < 1e-4


class SoftmaxOverBatch(nn.Module):
    """Its rows affect each other."""

    def forward(self, x: Any) -> Any:
        return x.softmax(dim=0)


def test_model_of_mixed_rows_is_not_batched_in_any_way(
    in_process: dict[str, Any], export: Save, tmp_path: Path
) -> None:
    """That is no objection: its requests run one after the other, whichever way is the default."""
    found = results(imported(export(SoftmaxOverBatch(), torch.randn(4, 4)), tmp_path, "onnx", "aoti"))
    assert {name: one.batched for name, one in found.items()} == dict.fromkeys(
        ("torch", "onnx", "aoti"), False
    )
    assert all(objection(one, batched=False) == "" for one in found.values())


@pytest.mark.parametrize("fault", ["other weights", "rows that mix"])
def test_a_wrong_conversion_is_never_chosen(
    in_process: dict[str, Any], export: Save, tmp_path: Path, fault: str
) -> None:
    """It is left out of the version, and the table says why."""
    torch.manual_seed(1)
    path = export(nn.Linear(4, 4), torch.randn(2, 4), name="net.pt2")

    class Mixing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 4)

        def forward(self, input: Any) -> Any:  # noqa: A002  # the name of the original's input
            return self.net(input) + 1e-6 * (input - input.mean(dim=0))

    def convert(order: dict[str, Any]) -> None:
        torch.manual_seed(2 if fault == "other weights" else 1)
        wrong = nn.Linear(4, 4) if fault == "other weights" else Mixing()
        other = export(wrong, torch.randn(2, 4), name="other.pt2")
        conversions.do({**order, "source": str(other)})

    in_process["onnx"] = convert
    registered = imported(path, tmp_path, "onnx")
    assert registered.ways is not None
    assert (registered.ways.default, list(registered.ways.ways)) == ("torch", ["torch"])
    assert registered.framework == "torch"
    assert ("differ" if fault == "other weights" else "mix") in objection(
        results(registered)["onnx"], batched=True
    )
    assert not (registered.files_dir / "onnx").exists()


def test_an_imported_program_is_served_by_each_way(export: Save, tmp_path: Path) -> None:
    """`stoker models import` in processes of its own; a server runs the way that `execution` names."""
    net = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    path = export(net, torch.randn(2, 16), name="net.pt2")
    workspace = tmp_path / "workspace"
    done = run_stoker(
        "models", "import", path, "--try", "onnx", "--device", "cpu", "--max-batch-rows", "8", "--json",
        "--workspace", workspace,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert list(json.loads(done.stdout)["ways"]) == ["torch", "onnx"]
    row = np.ones((1, 16), np.float32)
    with torch.inference_mode():
        expected = net(torch.from_numpy(row)).numpy()
    config = tmp_path / "deployment.yaml"
    for number, way in enumerate(("onnx", "torch")):
        config.write_text(f"models: [{{registered: net, execution: {way}}}]")
        scratch = tmp_path / str(number)
        scratch.mkdir()
        with LiveServer(scratch, "--config", config, "--device", "cpu", workspace=workspace) as server:
            tensor = {"name": "input", "shape": [1, 16], "datatype": "FP32", "data": row.ravel().tolist()}
            body = json.dumps({"inputs": [tensor]}).encode()
            with server.connect() as connection:
                head = request("POST", "/v2/models/net/infer", [bearer(server.key)], body)
                output = json.loads(connection.ask(head).body)["outputs"][0]
            np.testing.assert_allclose(np.reshape(output["data"], (1, 3)), expected, rtol=1e-5, atol=1e-6)
            platform = json.loads(server.describe("/v2/models/net").body)["platform"]
            assert platform.startswith("onnx" if way == "onnx" else "pytorch")
