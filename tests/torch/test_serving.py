"""Models of PyTorch behind a real server: networks that nobody here made, many callers, a killed device process."""

import json
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.http.raw_http import Answer, bearer, request
from tests.live_server import LiveServer, run_stoker, wait_until
from tests.tiny_models import write_doubler
from tests.torch.conftest import load, run, torch

from stoker.runtimes.packed import PackedRuntime

Save = Callable[..., Path]
_CALLERS = 8


def infer(server: LiveServer, *rows: np.ndarray, name: str = "input", model: str = "net") -> Answer:
    """One request of the Open Inference Protocol, on a connection of its own."""
    array = np.stack(rows)
    tensor = {
        "name": name,
        "shape": list(array.shape),
        "datatype": "FP32",
        "data": array.reshape(-1).tolist(),
    }
    body = json.dumps({"inputs": [tensor]}).encode()
    with server.connect() as connection:
        return connection.ask(request("POST", f"/v2/models/{model}/infer", [bearer(server.key)], body))


def data_of(answer: Answer) -> np.ndarray:
    assert answer.status == 200, answer.body
    output = json.loads(answer.body)["outputs"][0]
    return np.array(output["data"], np.float32).reshape(output["shape"])


@pytest.fixture
def net() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3)).eval()


@pytest.fixture
def server(net: Any, export: Save, tmp_path: Path) -> Iterator[LiveServer]:
    path = export(net, torch.randn(2, 16), name="net.pt2")
    scratch = tmp_path / "server"
    scratch.mkdir()
    with LiveServer(scratch, path) as running:
        yield running


def test_many_callers_get_the_answers_of_eager_pytorch(server: LiveServer, net: Any) -> None:
    """Their rows share batches; the repository names the platform; a row of the wrong size is refused."""
    given = np.random.default_rng(3).standard_normal((64, 16)).astype(np.float32)
    with torch.inference_mode():
        expected = net(torch.from_numpy(given)).numpy()
    answers = np.empty((64, 3), np.float32)

    def ask(first: int) -> None:
        for number in range(first, 64, _CALLERS):
            answers[number] = data_of(infer(server, given[number]))[0]

    threads = [threading.Thread(target=ask, args=(first,)) for first in range(_CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_allclose(answers, expected, rtol=1e-5, atol=1e-6)
    assert json.loads(server.describe("/v2/models/net").body)["platform"] == "pytorch_libtorch"
    assert infer(server, given[0][:5]).status == 400
    np.testing.assert_allclose(data_of(infer(server, *given)), expected, rtol=1e-5, atol=1e-6)


def test_a_killed_device_process_is_replaced(server: LiveServer, net: Any) -> None:
    """After `kill -9` the model is loaded again, and answers as before."""
    row = np.ones(16, np.float32)
    before = data_of(infer(server, row))
    (pid,) = server.device_pids()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: [one for one in server.device_pids() if one != pid], "another device process")
    answer = wait_until(lambda: (found := infer(server, row)).status == 200 and found, "it answers again")
    np.testing.assert_array_equal(data_of(answer), before)


_HOLDING = """
import ctypes
import torch


class Net(torch.nn.Module):
    \"\"\"A row that begins with 7 takes seconds that hold the interpreter, as AOTInductor's binding does.\"\"\"

    def forward(self, x):
        if bool((x[:, 0] == 7).any()):
            ctypes.PyDLL(None).sleep(3)
        return x + x
"""


def test_run_that_holds_the_interpreter_delays_no_other_model(tmp_path: Path) -> None:
    """Probes, metrics and another model's rows are answered meanwhile; rows of the same model wait for it."""
    (tmp_path / "net.py").write_text(_HOLDING)
    torch.save({}, tmp_path / "model.pt")
    np.save(tmp_path / "sample_input.npy", np.ones((2, 4), np.float32))
    other = write_doubler(tmp_path / "other.onnx")
    config = tmp_path / "deployment.json"
    models = [
        {"name": "net", "path": str(tmp_path / "model.pt"), "model_class": "net:Net"},
        {"name": "other", "path": str(other)},
    ]
    config.write_text(json.dumps({"models": models}))
    scratch = tmp_path / "server"
    scratch.mkdir()
    row = np.ones(4, np.float32)
    slow = np.array([7, 1, 1, 1], np.float32)
    with LiveServer(scratch, "--config", config) as server:
        pids = server.device_pids()
        answers: list[np.ndarray] = []
        thread = threading.Thread(target=lambda: answers.append(data_of(infer(server, slow, name="x"))))
        thread.start()
        meanwhile = 0
        while thread.is_alive():
            for path in ("/v2/health/ready", "/v2/health/live", "/metrics"):
                assert server.describe(path).status == 200
            assert data_of(infer(server, row, name="x", model="other")).shape == (1, 4)
            meanwhile += thread.is_alive()
        thread.join()
        assert meanwhile, "they were answered after it"
        np.testing.assert_array_equal(answers[0], [2 * slow])
        np.testing.assert_array_equal(data_of(infer(server, row, name="x")), [2 * row])
        assert server.device_pids() == pids


def test_a_registered_model_is_served(net: Any, export: Save, tmp_path: Path) -> None:
    """`stoker models register` takes the file, and a server of the workspace has the version."""
    path = export(net, torch.randn(2, 16), name="net.pt2")
    workspace = tmp_path / "workspace"
    done = run_stoker("models", "register", "net", path, "--workspace", workspace)
    assert done.returncode == 0, done.stderr
    scratch = tmp_path / "server"
    scratch.mkdir()
    with LiveServer(scratch, workspace=workspace) as server:
        assert data_of(infer(server, np.ones(16, np.float32))).shape == (1, 3)


def test_resnet_18_answers_as_eager_pytorch(export: Save) -> None:
    """Convolutions and batch norms of torchvision, in batches of several sizes."""
    torchvision = pytest.importorskip("torchvision")
    net = torchvision.models.resnet18(weights=None).eval()
    runtime = load(export(net, torch.randn(2, 3, 64, 64)), max_batch_rows=8)
    assert runtime.signature.isolation is not None
    assert runtime.signature.isolation.batched, runtime.signature.isolation
    given = np.random.default_rng(5).standard_normal((8, 3, 64, 64)).astype(np.float32)
    with torch.inference_mode():
        expected = net(torch.from_numpy(given)).numpy()
    for count in (1, 3, 8):
        (answer,) = run(runtime, given[:count])
        np.testing.assert_allclose(answer, expected[:count], rtol=1e-3, atol=1e-4)


def test_a_bert_answers_as_eager_pytorch(tmp_path: Path) -> None:
    """The model is Hugging Face's, with random weights; batch and length are free."""
    transformers = pytest.importorskip("transformers")
    configuration = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=100
    )
    net = transformers.BertForSequenceClassification(configuration).eval()
    ids, mask = torch.randint(0, 100, (2, 12)), torch.ones(2, 12, dtype=torch.int64)
    mask[1, 8:] = 0
    rows, length = torch.export.Dim("rows", max=64), torch.export.Dim("length", max=128)
    free = {0: rows, 1: length}
    path = tmp_path / "bert.pt2"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kwargs = {"input_ids": ids, "attention_mask": mask}
        shapes = {"input_ids": free, "attention_mask": free}
        torch.export.save(torch.export.export(net, (), kwargs, dynamic_shapes=shapes, strict=False), path)
    runtime = load(path)
    assert isinstance(runtime, PackedRuntime)
    tensors = runtime.signature.model_tensors
    assert tensors is not None
    assert [info.name for info in tensors.outputs] == ["logits"]
    assert tensors.batched, runtime.signature.isolation
    answer = runtime.run_tensors({"input_ids": ids.numpy(), "attention_mask": mask.numpy()})
    with torch.inference_mode():
        expected = net(input_ids=ids, attention_mask=mask).logits.numpy()
    np.testing.assert_allclose(answer["logits"], expected, rtol=1e-4, atol=1e-5)
