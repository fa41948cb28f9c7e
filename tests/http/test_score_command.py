"""`stoker score` by every protocol, against one server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.live_server import PRIMARY, LiveServer
from tests.tiny_models import write_doubler, write_script

from stoker.cli import main
from stoker.commands.score_protocols import PROTOCOLS

SCRIPT = """
from azureml.contrib.services.aml_request import rawhttp

def init():
    pass

@rawhttp
def run(request):
    return {"type": request.headers["content-type"], "size": len(request.get_data(False))}
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A model of four numbers, the same for images of four pixels, and a script that takes whole bodies."""
    scratch = tmp_path_factory.mktemp("score")
    model = write_doubler(scratch / "doubler.onnx")
    script = write_script(scratch / "raw", SCRIPT)
    deployment = scratch / "deployment.yaml"
    deployment.write_text(f"""
frontends: 1
models:
  - {{path: {model}, name: plain}}
  - {{path: {model}, name: digits, image: {{size: [2, 2], channels: 1, scale: 1}}}}
  - {{path: {script}, name: raw}}
""")
    with LiveServer(scratch, "--config", deployment) as server:
        yield server


@pytest.fixture
def score(served: LiveServer, capsys: pytest.CaptureFixture[str]) -> Any:
    """Score by a protocol; returns the exit code, the lines of the answer, and what is said beside it."""

    def run(protocol: str, *words: object) -> tuple[int, list[Any], str]:
        uri = f"http://127.0.0.1:{served.port}/score"
        if protocol == "azure" and "--name" in words:
            uri = f"http://127.0.0.1:{served.port}/api/v1/service/{words[words.index('--name') + 1]}/score"
        given = ["--protocol", protocol, "--uri", uri, *map(str, words)]
        code = main(["score", *given, *([] if "--key" in words else ["--key", PRIMARY])])
        printed = capsys.readouterr()
        return code, [json.loads(line) for line in printed.out.splitlines()], printed.err

    return run


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_rows_are_scored(score: Any, protocol: str, tmp_path: Path) -> None:
    """An answer a row, by each protocol the same; without a key it is refused."""
    np.save(tmp_path / "rows.npy", np.arange(8, dtype=np.float32).reshape(2, 4))
    words = ("--data", tmp_path / "rows.npy", "--name", "plain")
    assert score(protocol, *words) == (0, [[0, 2, 4, 6], [8, 10, 12, 14]], "")
    code, lines, printed = score(protocol, *words, "--key", "wrong")
    assert (code, lines) == (2, [])
    assert "The key from --key is not valid for this service" in printed


def test_request_to_several_services_needs_a_name_that_exists(score: Any, tmp_path: Path) -> None:
    """Without --name the services are listed; a name that is not served is the server's error."""
    (tmp_path / "rows.json").write_text("[[1, 2, 3, 4]]")
    code, _, printed = score("v2", "--data", tmp_path / "rows.json")
    assert code == 2
    assert "name the service with --name: the server has " in printed
    code, _, printed = score("v2", "--data", tmp_path / "rows.json", "--name", "none")
    assert (code, "none" in printed) == (1, True)


def test_images_and_files_are_sent_as_they_are(score: Any, tmp_path: Path) -> None:
    """One image as a body, several as a form; a file with the media type of its name."""
    for name, shade in (("dark.png", 1), ("light.png", 100)):
        Image.fromarray(np.full((2, 2), shade, np.uint8)).save(tmp_path / name)
    images = [word for name in ("dark.png", "light.png") for word in ("--image", tmp_path / name)]
    assert score("azure", *images[:2], "--name", "digits") == (0, [[2] * 4], "")
    assert score("azure", *images, "--name", "digits") == (0, [[2] * 4, [200] * 4], "")
    size = (tmp_path / "dark.png").stat().st_size
    sent = score("azure", "--file", tmp_path / "dark.png", "--name", "raw")
    assert sent == (0, [{"type": "image/png", "size": size}], "")
    code, _, printed = score("azure", "--image", tmp_path / "dark.png", "--name", "plain")
    assert (code, "images need a model" in printed) == (1, True)


def test_body_of_the_protocol_is_sent_unchanged(score: Any, tmp_path: Path) -> None:
    """`--file` sends it to the path of the protocol; `--data` takes rows alone."""
    file = tmp_path / "body.json"
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
    file.write_text(json.dumps({"inputs": [tensor]}))
    code, lines, _ = score("v2", "--file", file, "--name", "plain")
    assert (code, lines[0]["outputs"][0]["data"]) == (0, [2, 4, 6, 8])
    code, _, printed = score("v2", "--data", file, "--name", "plain")
    assert (code, f"goes by --file {file}" in printed) == (2, True)


def test_rows_that_do_not_fit_are_refused_before_they_are_sent(score: Any, tmp_path: Path) -> None:
    """A script that takes whole bodies, an input that does not exist, and an image in place of numbers."""
    file = tmp_path / "rows.json"
    for name, text, message in (
        ("raw", "[[1]]", "raw takes whole bodies"),
        ("plain", '{"data": {"z": [[1, 2, 3, 4]]}}', "plain has no input 'z'"),
    ):
        file.write_text(text)
        code, _, printed = score("v2", "--data", file, "--name", name)
        assert (code, message in printed) == (2, True), printed
    code, _, printed = score("v2", "--image", file, "--name", "plain")
    assert (code, "takes FP32" in printed) == (2, True)
