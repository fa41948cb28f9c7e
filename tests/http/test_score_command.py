"""`stoker score` by every protocol, against one server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.live_server import PRIMARY, LiveServer, free_port
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


@dataclass(frozen=True)
class Served:
    """A server, and its gRPC port."""

    server: LiveServer
    grpc_port: int


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A model of four numbers, the same for images of four pixels, and a script that takes whole bodies."""
    scratch, grpc_port = tmp_path_factory.mktemp("score"), free_port()
    model = write_doubler(scratch / "doubler.onnx")
    script = write_script(scratch / "raw", SCRIPT)
    deployment = scratch / "deployment.yaml"
    deployment.write_text(f"""
frontends: 1
grpc_port: {grpc_port}
models:
  - {{path: {model}, name: plain}}
  - {{path: {model}, name: digits, image: {{size: [2, 2], channels: 1, scale: 1}}}}
  - {{path: {script}, name: raw}}
""")
    with LiveServer(scratch, "--config", deployment) as server:
        yield Served(server, grpc_port)


@pytest.fixture
def score(served: Served, capsys: pytest.CaptureFixture[str]) -> Any:
    """Score by a protocol; returns the exit code, the lines of the answer, and what is said beside it."""

    def run(protocol: str, *words: object) -> tuple[int, list[Any], str]:
        port = served.grpc_port if protocol == "grpc" else served.server.port
        uri = f"grpc://127.0.0.1:{port}" if protocol == "grpc" else f"http://127.0.0.1:{port}/score"
        if protocol == "azure" and "--name" in words:
            uri = f"http://127.0.0.1:{port}/api/v1/service/{words[words.index('--name') + 1]}/score"
        given = ["--protocol", protocol, "--uri", uri, *map(str, words)]
        code = main(["score", *given, *([] if "--key" in words else ["--key", PRIMARY])])
        said = capsys.readouterr()
        return code, [json.loads(line) for line in said.out.splitlines()], said.err

    return run


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_rows_are_scored(score: Any, protocol: str, tmp_path: Path) -> None:
    """An answer a row, by each protocol the same; without a key it is refused."""
    np.save(tmp_path / "rows.npy", np.arange(8, dtype=np.float32).reshape(2, 4))
    words = ("--data", tmp_path / "rows.npy", "--name", "plain")
    assert score(protocol, *words) == (0, [[0, 2, 4, 6], [8, 10, 12, 14]], "")
    code, lines, said = score(protocol, *words, "--key", "wrong")
    assert (code, lines) == (2, [])
    assert "The key from --key is not valid for this service" in said


@pytest.mark.parametrize("protocol", PROTOCOLS[1:])
def test_of_several_services_one_is_named(score: Any, protocol: str, tmp_path: Path) -> None:
    """And it has to be there."""
    (tmp_path / "rows.json").write_text("[[1, 2, 3, 4]]")
    code, _, said = score(protocol, "--data", tmp_path / "rows.json")
    assert code == 2
    assert "name the service with --name: the server has " in said
    code, _, said = score(protocol, "--data", tmp_path / "rows.json", "--name", "none")
    assert (code, "none" in said) == (1, True)


@pytest.mark.parametrize("protocol", ["azure", "torchserve"])
def test_images_and_files_are_sent_as_they_are(score: Any, protocol: str, tmp_path: Path) -> None:
    """One image as a body, several as a form; a file with the media type of its name."""
    for name, shade in (("dark.png", 1), ("light.png", 100)):
        Image.fromarray(np.full((2, 2), shade, np.uint8)).save(tmp_path / name)
    images = [word for name in ("dark.png", "light.png") for word in ("--image", tmp_path / name)]
    assert score(protocol, *images[:2], "--name", "digits") == (0, [[2] * 4], "")
    assert score(protocol, *images, "--name", "digits") == (0, [[2] * 4, [200] * 4], "")
    size = (tmp_path / "dark.png").stat().st_size
    sent = score(protocol, "--file", tmp_path / "dark.png", "--name", "raw")
    assert sent == (0, [{"type": "image/png", "size": size}], "")
    code, _, said = score(protocol, "--image", tmp_path / "dark.png", "--name", "plain")
    assert (code, "images need a model" in said) == (1, True)


def test_a_body_of_a_protocol_is_sent_as_it_is(score: Any, tmp_path: Path) -> None:
    """With its path; by gRPC there is none."""
    file = tmp_path / "body.json"
    file.write_text('{"instances": [[1, 2, 3, 4]], "signature_name": "serving_default"}')
    code, lines, _ = score("v1", "--file", file, "--name", "plain")
    assert (code, lines) == (0, [{"predictions": [[2, 4, 6, 8]]}])
    code, _, said = score("grpc", "--file", file, "--name", "plain")
    assert (code, "--file is a body of HTTP" in said) == (2, True)
    code, _, said = score("v2", "--data", file, "--name", "plain")
    assert (code, f"goes by --file {file}" in said) == (2, True)


@pytest.mark.parametrize("protocol", ["v2", "grpc"])
def test_what_does_not_fit_is_told_before_it_is_sent(score: Any, protocol: str, tmp_path: Path) -> None:
    """A script that takes whole bodies, an input that there is not, and an image where numbers go."""
    file = tmp_path / "rows.json"
    for name, text, said in (
        ("raw", "[[1]]", "raw takes whole bodies"),
        ("plain", '{"data": {"z": [[1, 2, 3, 4]]}}', "plain has no input 'z'"),
    ):
        file.write_text(text)
        code, _, told = score(protocol, "--data", file, "--name", name)
        assert (code, said in told) == (2, True), told
    code, _, told = score(protocol, "--image", file, "--name", "plain")
    assert (code, "takes FP32" in told) == (2, True)
