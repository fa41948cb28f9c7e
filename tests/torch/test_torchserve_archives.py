"""TorchServe's archives, rebuilt from the documented forms of its examples: answers as eager PyTorch gives."""

from __future__ import annotations

import io
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.http.raw_http import Answer, bearer, request
from tests.live_server import LiveServer, wait_until
from tests.patience import PROGRAM_S
from tests.torch.conftest import torch
from tests.torchserve_archives import loaded_handler, manifest_of, write_folder, write_mar

from stoker.deployment import Deployment
from stoker.errors import LoadFailed
from stoker.scripts.request_batch_choice import choose_request_batches
from stoker.scripts.request_batches import RequestBatches
from stoker.wire.script_requests import RequestHead, ScriptAnswer, ScriptRequest

Image = pytest.importorskip("PIL.Image")
# PyTorch deprecates TorchScript, of which most archives are.
pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated")

MNIST_MODEL = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 4, 3)
        self.fc = torch.nn.Linear(4 * 26 * 26, 10)

    def forward(self, x):
        return self.fc(torch.relu(self.conv(x)).flatten(1))
"""
MNIST_HANDLER = """
from torchvision import transforms

from ts.torch_handler.image_classifier import ImageClassifier


class MNISTDigitClassifier(ImageClassifier):
    image_processing = transforms.Compose(
        [transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))]
    )

    def postprocess(self, data):
        return data.argmax(1).tolist()
"""
TEXT_MODEL = """
import torch


class TextClassificationModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.EmbeddingBag(40, 8)
        self.fc = torch.nn.Linear(8, 3)

    def forward(self, text, offsets):
        return self.fc(self.embedding(text, offsets))
"""
SCRIPTED_HANDLER = """
import os

import torch

model = None


def score(data, context):
    global model
    if not data:
        path = os.path.join(
            context.system_properties.get("model_dir"), context.manifest["model"]["serializedFile"]
        )
        model = torch.jit.load(path)
        return None
    rows = torch.tensor([row.get("data") or row.get("body") for row in data])
    with torch.inference_mode():
        return model(rows).tolist()
"""


def saved(save: Any, thing: Any) -> bytes:
    file = io.BytesIO()
    save(thing, file)
    return file.getvalue()


def module_of(code: str, name: str) -> Any:
    scope: dict[str, Any] = {"__name__": "here"}
    exec(code, scope)  # the model file of the archive
    return scope[name]().eval()


def image_of(seed: int, size: int, mode: str = "RGB") -> bytes:
    random = np.random.default_rng(seed)
    shape = (size, size) if mode == "L" else (size, size, 3)
    file = io.BytesIO()
    Image.fromarray(random.integers(0, 256, shape, np.uint8)).save(file, "PNG")
    return file.getvalue()


def request_of(body: bytes, kind: str = "") -> ScriptRequest:
    return ScriptRequest(b"", body, head=RequestHead("POST", "/", "", [("content-type", kind)], ""))


def answers_of(run: Any, *bodies: bytes, kind: str = "") -> list[ScriptAnswer]:
    return RequestBatches(run).answers([request_of(body, kind) for body in bodies])


def chosen(run: Any, folder: Path, **settings: Any) -> Any:
    settings = {"max_batch_rows": 8, **settings}
    deployment = Deployment("m", 1, "script", folder / "x", folder, max_body_bytes=1 << 20, **settings)
    return choose_request_batches(run, deployment, RequestBatches(run))


def mnist_files() -> tuple[dict[str, Any], dict[str, str | bytes], Any]:
    net = module_of(MNIST_MODEL, "Net")
    files: dict[str, str | bytes] = {
        "mnist_cnn.pt": saved(torch.save, net.state_dict()),
        "mnist.py": MNIST_MODEL,
        "mnist_handler.py": MNIST_HANDLER,
        "sample_input.png": image_of(0, 28, "L"),
    }
    manifest = manifest_of("mnist", "mnist_handler.py", serializedFile="mnist_cnn.pt", modelFile="mnist.py")
    return manifest, files, net


def digit_of(net: Any, image: bytes) -> int:
    pixels = torch.from_numpy(np.asarray(Image.open(io.BytesIO(image)), np.float32) / 255)
    with torch.inference_mode():
        return int(net(((pixels - 0.1307) / 0.3081)[None, None]).argmax())


def test_the_mnist_example_answers_as_eager_pytorch(tmp_path: Path) -> None:
    """A custom handler over weights and a model file answers: one call has several images; a bad one gets 400."""
    pytest.importorskip("torchvision")
    manifest, files, net = mnist_files()
    folder = write_folder(tmp_path, manifest, files)
    images = [image_of(seed, 28, "L") for seed in range(5)]
    with loaded_handler(folder) as run:
        form = chosen(run, folder)
        assert form.batching == "requests", form.batching_reason
        answers = answers_of(run, *images[:2], b"no image", *images[2:])
    expected = [str(digit_of(net, image)).encode() for image in images]
    assert [answer.status for answer in answers] == [200, 200, 400, 200, 200, 200]
    assert [answer.body for answer in answers if answer.status == 200] == expected
    assert "cannot be read" in json.loads(answers[2].body)["message"]


def test_resnet_18_gives_its_likeliest_classes(tmp_path: Path) -> None:
    """TorchScript, `image_classifier` and `index_to_name.json`: five names with probabilities, as eager PyTorch."""
    torchvision = pytest.importorskip("torchvision")
    net = torchvision.models.resnet18(weights=None).eval()
    names = {str(number): [f"n{number:08}", f"class-{number}"] for number in range(1000)}
    files: dict[str, str | bytes] = {
        "resnet-18.pt": saved(torch.jit.save, torch.jit.trace(net, torch.zeros(1, 3, 224, 224))),
        "index_to_name.json": json.dumps(names),
    }
    folder = write_folder(
        tmp_path, manifest_of("resnet-18", "image_classifier", serializedFile="resnet-18.pt"), files
    )
    image = image_of(7, 300)
    with loaded_handler(folder) as run:
        first, second = (json.loads(one.body) for one in answers_of(run, image, image_of(8, 260)))
    weights = torchvision.models.ResNet18_Weights.IMAGENET1K_V1.transforms(antialias=True)
    with torch.inference_mode():
        scores = net(weights(Image.open(io.BytesIO(image)))[None]).softmax(1)[0]
    expected = {
        f"class-{place}": float(scores[place]) for place in scores.argsort(descending=True)[:5].tolist()
    }
    assert list(first) == list(expected)
    np.testing.assert_allclose(list(first.values()), list(expected.values()), rtol=1e-4)
    assert len(second) == 5


def test_the_text_classifier_answers_several_texts(tmp_path: Path) -> None:
    """Its words and pairs of words by number, each text from its own place on; no UTF-8 costs nobody else."""
    net = module_of(TEXT_MODEL, "TextClassificationModel")
    vocabulary = {
        word: place for place, word in enumerate(("<unk>", "it", "is", "good", "not", "it is", "is good"))
    }
    files: dict[str, str | bytes] = {
        "model.pt": saved(torch.save, net.state_dict()),
        "model.py": TEXT_MODEL,
        "source_vocab.pt": saved(torch.save, vocabulary),
        "index_to_name.json": '{"0": "World", "1": "Sports", "2": "Sci/Tec"}',
        "sample_input.txt": "It is good",
    }
    manifest = manifest_of("news", "text_classifier", serializedFile="model.pt", modelFile="model.py")
    folder = write_folder(tmp_path, manifest, files)
    with loaded_handler(folder) as run:
        form = chosen(run, folder, sample_input=folder / "sample_input.txt")
        assert form.batching == "requests", form.batching_reason
        answers = [
            json.loads(one.body) for one in answers_of(run, b"<b>It's</b> g\xc3\xb3od!", b"not it", b"")
        ]
        assert [one.status for one in answers_of(run, b"it", b"\xff\xfe", b"good")] == [200, 400, 200]
    numbers = [[1, 2, 3, 5, 6], [4, 1, 0]]
    with torch.inference_mode():
        for answer, text in zip(answers, numbers, strict=False):
            scores = net(torch.tensor(text), torch.tensor([0])).softmax(1)[0].tolist()
            np.testing.assert_allclose(
                [answer[name] for name in ("World", "Sports", "Sci/Tec")], scores, rtol=1e-5
            )


def test_a_function_of_a_module_scores_torchscript(tmp_path: Path) -> None:
    """The function has a name of its own; a call without rows loads the model."""
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Softmax(dim=1)).eval()
    files: dict[str, str | bytes] = {
        "net.pt": saved(torch.jit.save, torch.jit.script(net)),
        "net_handler.py": SCRIPTED_HANDLER,
        "sample_input.json": "[0.1, 0.2, 0.3, 0.4]",
    }
    folder = write_folder(
        tmp_path, manifest_of("iris", "net_handler.py:score", serializedFile="net.pt"), files
    )
    with loaded_handler(folder) as run:
        form = chosen(run, folder)
        assert form.batching == "requests", form.batching_reason
        answers = answers_of(run, b"[1.0, 2, 3, 4]", b"[4.0, 3, 2, 1]", kind="application/json")
    with torch.inference_mode():
        expected = net(torch.tensor([[1.0, 2, 3, 4], [4, 3, 2, 1]])).numpy()
    np.testing.assert_allclose([json.loads(one.body) for one in answers], expected, rtol=1e-5)


class Mixing(torch.nn.Module):
    """Mixes rows by a softmax over the batch."""

    def forward(self, rows: Any) -> Any:
        return torch.softmax(rows, dim=0)


def test_a_model_that_mixes_rows_gets_one_request_at_a_time(tmp_path: Path) -> None:
    """`batchSize` does not change that."""
    files: dict[str, str | bytes] = {
        "net.pt": saved(torch.jit.save, torch.jit.trace(Mixing(), torch.zeros(1, 4))),
        "net_handler.py": SCRIPTED_HANDLER,
        "sample_input.json": "[0.1, 0.2, 0.3, 0.4]",
    }
    folder = write_folder(
        tmp_path, manifest_of("mix", "net_handler.py:score", serializedFile="net.pt"), files
    )
    with loaded_handler(folder) as run:
        form = chosen(run, folder, batching="rows")
    assert (form.batching, form.max_requests) == ("none", 1)
    assert "another answer" in form.batching_reason


def base_archive(tmp_path: Path, name: str, content: bytes, **fields: Any) -> Path:
    handler = (
        "from ts.torch_handler.base_handler import BaseHandler\n\n\n"
        "class Rows(BaseHandler):\n"
        "    def preprocess(self, data):\n"
        "        return super().preprocess([row['body'] for row in data])\n"
    )
    files: dict[str, str | bytes] = {name: content, "rows.py": handler, **fields.pop("files", {})}
    return write_folder(tmp_path, manifest_of("net", "rows.py", serializedFile=name, **fields), files)


def test_a_program_of_torch_export_is_loaded(tmp_path: Path) -> None:
    """It is the serialized file, without a class."""
    net = torch.nn.Linear(3, 2).eval()
    shapes = ({0: torch.export.Dim("rows", min=1, max=64)},)
    program = torch.export.export(net, (torch.zeros(2, 3),), dynamic_shapes=shapes)
    folder = base_archive(tmp_path, "net.pt2", saved(torch.export.save, program))
    with loaded_handler(folder) as run:
        answers = answers_of(run, b"[1.0, 2.0, 3.0]", b"[0.0, 0.0, 0.0]", kind="application/json")
    with torch.inference_mode():
        expected = net(torch.tensor([[1.0, 2, 3], [0, 0, 0]])).numpy()
    np.testing.assert_allclose([json.loads(one.body) for one in answers], expected, rtol=1e-5)


def test_archive_that_needs_code_to_be_read_is_refused(tmp_path: Path) -> None:
    """Pickled modules, weights without a class, and model files with two classes are refused."""
    net = torch.nn.Linear(3, 2)
    with (
        pytest.raises(RuntimeError, match="weights need a modelFile"),
        loaded_handler(base_archive(tmp_path / "a", "net.pt", saved(torch.save, net.state_dict()))),
    ):
        pass
    one = "import torch\n\n\nclass Net(torch.nn.Linear):\n    def __init__(self): super().__init__(3, 2)\n"
    for code, content, message in (
        (one, saved(torch.save, net), "which run code of their author"),
        (one + "\n\nclass Other: pass\n", saved(torch.save, net.state_dict()), "it has Net, Other"),
    ):
        folder = base_archive(
            tmp_path / message[:4].strip(),
            "net.pt",
            content,
            modelFile="net_model.py",
            files={"net_model.py": code},
        )
        with pytest.raises((LoadFailed, RuntimeError, ValueError), match=message), loaded_handler(folder):
            pass


def test_the_segmenter_and_the_detector_answer_in_their_forms(tmp_path: Path) -> None:
    """Class and probability of each pixel; objects whose score reaches the threshold, by name."""
    pytest.importorskip("torchvision")
    from stoker_torchserve.ts.torch_handler.image_segmenter import ImageSegmenter
    from stoker_torchserve.ts.torch_handler.object_detector import ObjectDetector

    logits = torch.tensor([[[[2.0, 0.0]], [[0.0, 3.0]]]])
    (answer,) = ImageSegmenter().postprocess({"out": logits})
    np.testing.assert_allclose(answer, [[[0, 0.880797], [1, 0.952574]]], rtol=1e-5)
    detector = ObjectDetector()
    detector.mapping = {"3": "cat"}
    found = {
        "boxes": torch.tensor([[0.0, 1, 2, 3], [4, 5, 6, 7]]),
        "labels": torch.tensor([3, 3]),
        "scores": torch.tensor([0.75, 0.25]),
    }
    assert detector.postprocess([found]) == [[{"cat": [0.0, 1.0, 2.0, 3.0], "score": 0.75}]]


def ask(server: LiveServer, body: bytes, *headers: tuple[str, str]) -> Answer:
    with server.connect() as connection:
        return connection.ask(request("POST", "/predictions/mnist", [bearer(server.key), *headers], body))


def test_an_archive_is_served(tmp_path: Path) -> None:
    """Many callers share calls, one bad image costs nobody else anything, and after `kill -9` it is loaded again."""
    pytest.importorskip("torchvision")
    manifest, files, net = mnist_files()
    path = write_mar(tmp_path, manifest, files)
    images = [image_of(seed, 28, "L") for seed in range(24)]
    images[5] = b"no image"
    found: dict[int, Answer] = {}
    scratch = tmp_path / "server"
    scratch.mkdir()
    with LiveServer(scratch, path) as server:

        def call(first: int) -> None:
            for number in range(first, len(images), 6):
                found[number] = ask(server, images[number])

        threads = [threading.Thread(target=call, args=(first,)) for first in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for number, image in enumerate(images):
            if number == 5:
                assert found[number].status == 400, found[number].body
                assert found[number].json()["type"] == "BadRequestException"
            else:
                assert found[number].body == str(digit_of(net, image)).encode(), found[number].body
        (pid,) = server.device_pids()
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: [one for one in server.device_pids() if one != pid], "another device process")
        answer = wait_until(
            lambda: (got := ask(server, images[0])).status == 200 and got,
            "it answers again",
            timeout_s=PROGRAM_S,
        )
        assert answer.body == found[0].body
