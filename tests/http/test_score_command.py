"""`stoker score` against one server."""

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
    """Score; returns the exit code, the lines of the answer, and the text on standard error."""

    def run(name: str, *words: object) -> tuple[int, list[Any], str]:
        given = ["--uri", f"http://127.0.0.1:{served.port}/api/v1/service/{name}/score", *map(str, words)]
        code = main(["score", *given, *([] if "--key" in words else ["--key", PRIMARY])])
        printed = capsys.readouterr()
        return code, [json.loads(line) for line in printed.out.splitlines()], printed.err

    return run


def test_rows_are_answered_one_line_each(score: Any, tmp_path: Path) -> None:
    """With a wrong key they are refused, and the key's origin is named."""
    np.save(tmp_path / "rows.npy", np.arange(8, dtype=np.float32).reshape(2, 4))
    words = ("--data", tmp_path / "rows.npy")
    assert score("plain", *words) == (0, [[0, 2, 4, 6], [8, 10, 12, 14]], "")
    code, lines, errors = score("plain", *words, "--key", "wrong")
    assert (code, lines) == (2, [])
    assert "The key from --key is not valid for this service" in errors


def test_unknown_service_is_an_error_of_the_server(score: Any, tmp_path: Path) -> None:
    """Its exit code is 1, and the message names the service."""
    (tmp_path / "rows.json").write_text("[[1, 2, 3, 4]]")
    code, _, errors = score("none", "--data", tmp_path / "rows.json")
    assert (code, "none" in errors) == (1, True)


def test_images_and_files_are_sent_as_they_are(score: Any, tmp_path: Path) -> None:
    """One image as a body, several as a form; a file with the media type of its name."""
    for name, shade in (("dark.png", 1), ("light.png", 100)):
        Image.fromarray(np.full((2, 2), shade, np.uint8)).save(tmp_path / name)
    images = [word for name in ("dark.png", "light.png") for word in ("--image", tmp_path / name)]
    assert score("digits", *images[:2]) == (0, [[2] * 4], "")
    assert score("digits", *images) == (0, [[2] * 4, [200] * 4], "")
    size = (tmp_path / "dark.png").stat().st_size
    sent = score("raw", "--file", tmp_path / "dark.png")
    assert sent == (0, [{"type": "image/png", "size": size}], "")
    (tmp_path / "rows.json").write_text("[[1, 2, 3, 4]]")
    code, _, errors = score("plain", "--image", tmp_path / "rows.json")
    assert (code, "rows.json is no image: --data sends rows" in errors) == (2, True)
    code, _, errors = score("plain", "--image", tmp_path / "dark.png")
    assert (code, "images need a model" in errors) == (1, True)
