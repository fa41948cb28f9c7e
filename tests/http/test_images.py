"""Images through HTTP: every way to send one gives the rows that numbers would."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.http.raw_http import Answer, bearer, request, scoring
from tests.live_server import LiveServer, run_stoker
from tests.tiny_models import write_doubler

Image = pytest.importorskip("PIL.Image", reason="Pillow, of the images extra, is not installed")

DIGITS, DRAWN, PLAIN = (f"/api/v1/service/{name}/score" for name in ("digits", "drawn", "plain"))
PIXELS = np.array([[0, 51], [102, 255]], np.uint8)
DOUBLED = [[0.0, 102.0, 204.0, 510.0]]
"""The answer of the doubler to the pixels."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """One model of four numbers: with images, without, and registered with inverted images."""
    scratch = tmp_path_factory.mktemp("images")
    model = write_doubler(scratch / "doubler.onnx")
    spec = "size=2x2,channels=1,invert"
    registered = run_stoker(
        "models", "register", "drawn", model, "--image", spec, "--workspace", scratch / "workspace"
    )
    assert registered.returncode == 0, registered.stderr
    deployment = scratch / "deployment.yaml"
    deployment.write_text(f"""
frontends: 1
max_image_mpx: 1
max_body_mb: 8
models:
  - {{path: {model}, name: digits, image: {{size: [2, 2], channels: 1, scale: 1}}}}
  - {{path: {model}, name: plain}}
  - registered: drawn
""")
    with LiveServer(scratch, "--config", deployment) as running:
        yield running


def encoded(pixels: np.ndarray, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def ask(server: LiveServer, path: str, body: bytes, content_type: str | None) -> Answer:
    headers = [] if content_type is None else [("Content-Type", content_type)]
    with server.connect() as connection:
        answer = connection.ask(scoring(path, server.key, body, headers))
        if not answer.closes:
            connection.assert_open("/")
    return answer


def form(*images: bytes) -> tuple[bytes, str]:
    head = b'--limit\r\nContent-Disposition: form-data; name="f"; filename="f.png"\r\n\r\n'
    return b"".join(head + image + b"\r\n" for image in images) + b"--limit--", (
        "multipart/form-data; boundary=limit"
    )


def test_an_image_is_a_row(server: LiveServer) -> None:
    """PNG and lossless WebP give exactly what their pixels give as numbers; numbers keep working."""
    assert ask(server, DIGITS, encoded(PIXELS), "image/png").json() == DOUBLED
    assert ask(server, DIGITS, encoded(PIXELS, "WEBP", lossless=True), "image/webp").json() == DOUBLED
    numbers = json.dumps({"data": [PIXELS.reshape(-1).tolist()]}).encode()
    assert ask(server, DIGITS, numbers, "application/json").json() == DOUBLED
    assert ask(server, DIGITS, numbers, None).json() == DOUBLED


def test_a_jpeg_is_scored(server: LiveServer) -> None:
    """A JPEG gives what Pillow makes of it."""
    body = encoded(PIXELS, "JPEG", quality=95)
    expected = 2.0 * np.asarray(Image.open(io.BytesIO(body))).reshape(1, 4)
    assert ask(server, DIGITS, body, "image/jpeg").json() == expected.tolist()


def test_an_image_without_a_type_is_recognized(server: LiveServer) -> None:
    """Where the content type is none, or the form that curl announces, an image is known by its first bytes."""
    for content_type in (None, "application/x-www-form-urlencoded", "application/octet-stream"):
        assert ask(server, DIGITS, encoded(PIXELS), content_type).json() == DOUBLED


def test_a_form_brings_several(server: LiveServer) -> None:
    """Each image part of a form is a row, in order."""
    body, content_type = form(encoded(PIXELS), encoded(PIXELS[::-1].copy()))
    answer = ask(server, DIGITS, body, content_type)
    assert answer.json() == [*DOUBLED, [204.0, 510.0, 0.0, 102.0]]


def test_torchserves_clients_send_images(server: LiveServer) -> None:
    """`curl -T` puts a file without a type, `curl -F` a form; without an image input it is refused in its JSON."""
    image = encoded(PIXELS)
    body, content_type = form(image)
    for method, headers, sent in (("PUT", [], image), ("POST", [("Content-Type", content_type)], body)):
        for name in ("digits", "plain"):
            with server.connect() as connection:
                key = [bearer(server.key), *headers]
                connection.send(request(method, f"/predictions/{name}", key, sent))
                answer = connection.answer()
            if name == "digits":
                assert answer.json() == DOUBLED
            else:
                assert (answer.status, answer.json()["type"]) == (400, "BadRequestException")
    direct = ask(server, "/predictions/digits", image, "application/x-www-form-urlencoded")
    assert direct.json() == DOUBLED


@pytest.mark.parametrize("content_type", [None, "application/json; charset=utf-8"])
def test_base64_in_json(server: LiveServer, content_type: str | None) -> None:
    """Base64 in `data` gives rows, through both paths."""
    text = base64.b64encode(encoded(PIXELS)).decode()
    body = json.dumps({"data": [text, {"b64": text}]}).encode()
    assert ask(server, DIGITS, body, content_type).json() == DOUBLED * 2
    with server.connect() as connection:
        close = scoring(DIGITS, server.key, body, [("Connection", "close")])
        assert connection.ask(close).json() == DOUBLED * 2


def test_a_registered_model_remembers_its_images(server: LiveServer) -> None:
    """A model registered with `--image` is served with it; inverted ink is light."""
    answer = ask(server, DRAWN, encoded(PIXELS), "image/png")
    np.testing.assert_allclose(answer.json(), 2 * (255 - PIXELS.reshape(1, 4).astype(float)) / 255, rtol=1e-6)
    shown = run_stoker("models", "show", "drawn", "--workspace", server.workspace)
    assert "images       2 × 2 pixels, grey" in shown.stdout


@pytest.mark.parametrize(
    ("name", "types"), [("digits", ["image/jpeg", "image/png", "image/webp"]), ("plain", [])]
)
def test_the_description_names_the_images_that_are_taken(
    server: LiveServer, name: str, types: list[str]
) -> None:
    """swagger.json has the media types of images for a model that takes them, and for no other one."""
    path = f"/api/v1/service/{name}/swagger.json"
    with server.connect() as connection:
        swagger, openapi = (
            connection.ask(request("GET", f"{path}{query}", [bearer(server.key)])).json()
            for query in ("", "?version=3")
        )
    assert swagger["consumes"] == ["application/json", *types]
    scored = openapi["paths"][f"/api/v1/service/{name}/score"]["post"]
    assert list(scored["requestBody"]["content"]) == ["application/json", *types]


def test_a_large_image_is_decoded_beside_the_loop(server: LiveServer) -> None:
    """An image at the limit is decoded on another thread and scored; while the server says how long that took."""
    answer = ask(server, DIGITS, encoded(np.full((1000, 1000), 100, np.uint8)), "image/png")
    assert answer.json() == [[200.0] * 4]
    timing = answer.header("server-timing")
    assert timing is not None
    assert float(timing.partition("parse;dur=")[2].partition(",")[0]) > 1


def test_many_large_images_at_once(server: LiveServer) -> None:
    """Concurrent callers with large images each get their own answer."""
    connections = [server.connect() for _ in range(8)]
    for level, connection in enumerate(connections):
        body = encoded(np.full((600, 600), level, np.uint8))
        connection.send(scoring(DIGITS, server.key, body, [("Content-Type", "image/png")]))
    for level, connection in enumerate(connections):
        assert connection.answer().json() == [[2.0 * level] * 4]
        connection.socket.close()


def test_a_caller_may_leave_while_its_image_is_decoded(server: LiveServer) -> None:
    """Nobody waits for the image any more; the next one is scored."""
    body = encoded(np.full((1000, 1000), 9, np.uint8))
    for _ in range(4):
        with server.connect() as connection:
            connection.send(scoring(DIGITS, server.key, body, [("Content-Type", "image/png")]))
    assert ask(server, DIGITS, encoded(PIXELS), "image/png").json() == DOUBLED


@pytest.mark.parametrize(
    ("path", "body", "content_type", "status", "code"),
    [
        (PLAIN, encoded(PIXELS), "image/png", 415, "unsupported_encoding"),
        (PLAIN, *form(encoded(PIXELS)), 415, "unsupported_encoding"),
        (PLAIN, encoded(PIXELS), None, 400, "malformed_body"),
        (DIGITS, b"GIF89a", "image/gif", 415, "unsupported_encoding"),
        (DIGITS, b"no image", "image/jpeg", 400, "malformed_body"),
        (DIGITS, encoded(PIXELS)[:40], "image/png", 400, "malformed_body"),
        (DIGITS, encoded(np.zeros((1001, 1000), np.uint8)), "image/png", 413, "image_too_large"),
        (DIGITS, b'{"data": ["QUJD"]}', None, 400, "malformed_body"),
        (DIGITS, b'{"data": [[1, 2, 3]], "comment": "x"}', None, 422, "invalid_input"),
        (DIGITS, b'{"data": [[1, 2, 3]]}', None, 422, "invalid_input"),
        (DIGITS, b"no JSON", None, 400, "malformed_body"),
    ],
)
def test_refusals(
    server: LiveServer, path: str, body: bytes, content_type: str | None, status: int, code: str
) -> None:
    """A body that is no image, too large, or not accepted by the model has a status and a code of its own."""
    answer = ask(server, path, body, content_type)
    assert (answer.status, answer.error_code()) == (status, code), answer.body


def test_images_need_a_key(server: LiveServer) -> None:
    """An image without a valid key is refused like anything else."""
    with server.connect() as connection:
        headers = [("Content-Type", "image/png"), bearer("wrong")]
        assert connection.ask(request("POST", DIGITS, headers, encoded(PIXELS))).status == 401


def test_an_image_that_does_not_fit_the_model_stops_the_start(tmp_path: Path) -> None:
    """The server ends before it is ready, with what does not fit."""
    model = write_doubler(tmp_path / "doubler.onnx")
    spec = "size=28x28,channels=1"
    served = run_stoker("serve", model, "--image", spec, "--port", "0", "--workspace", tmp_path / "w")
    assert served.returncode == 2
    assert "doubler: image: 28 × 28 pixels, grey do not fit the input 'x', whose rows are 4 numbers" in (
        served.stderr
    )
    registered = run_stoker("models", "register", "m", model, "--image", spec, "--workspace", tmp_path / "w")
    assert registered.returncode == 2
    assert "do not fit the input 'x'" in registered.stderr
