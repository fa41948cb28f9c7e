"""Requests for the check whether a handler's requests may share a call: the sample input, and others made of it."""

from __future__ import annotations

import io
import json
import mimetypes
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np

from stoker.errors import LoadFailed
from stoker.scripts.json_companions import companions_of
from stoker.scripts.row_variations import variations
from stoker.settings.files import read_sample_file
from stoker.wire.script_requests import RequestHead, ScriptRequest

_JSON: Final = "application/json"
_BYTES: Final = "application/octet-stream"
_MADE_UP_PIXELS: Final = 224


def make_examples(sample: Path | None, count: int, *, images: bool) -> list[ScriptRequest]:
    """Return up to `count` different requests, the sample first.

    Args:
        sample: A file with a request; None if there is none.
        images: Whether the handler takes images, which can be made up.

    Raises:
        LoadFailed: The sample cannot be read, or is not what its name says.
    """
    if sample is None:
        if not images:
            return []
        return [_request(_png(seed), "image/png") for seed in range(count)]
    kind = mimetypes.guess_type(sample.name)[0] or _BYTES
    try:
        made = dict.fromkeys(islice(_bodies(read_sample_file(sample), kind, count), count))
    except (OSError, ValueError, RecursionError) as error:
        raise LoadFailed.unreadable_sample(error) from error
    return [_request(each, kind) for each in made]


def _bodies(body: bytes, kind: str, count: int) -> Iterator[bytes]:
    yield body
    if kind == _JSON:
        content = json.loads(body)
        # A half of plain ones, and the rest as unlike the sample as can be.
        yield from (json.dumps(made).encode() for made in variations([content], count // 2)[1:])
        yield from (json.dumps(made).encode() for _, made in companions_of(content))
    elif kind.startswith("text"):
        text = body.decode()
        yield from (str(made).encode() for made in variations([text], count)[1:])
        yield from (str(made).encode() for _, made in companions_of(text))
    elif kind.startswith("image"):
        yield from _images(body)


def _images(body: bytes) -> Iterator[bytes]:
    """Yield images like one: of its size and mode, turned over, inverted, black, and noise."""
    from PIL import Image, ImageOps

    with Image.open(io.BytesIO(body)) as image:
        image.load()
        if image.mode not in ("L", "RGB"):
            return
        noise = np.random.default_rng(0).integers(0, 256, np.asarray(image).shape, np.uint8)
        made = (
            ImageOps.mirror(image),
            ImageOps.invert(image),
            Image.fromarray(noise),
            ImageOps.flip(image),
            Image.new(image.mode, image.size),
        )
    for each in made:
        yield _saved(each)


def _png(seed: int) -> bytes:
    from PIL import Image

    shape = (_MADE_UP_PIXELS, _MADE_UP_PIXELS, 3)
    return _saved(Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, np.uint8)))


def _saved(image: object) -> bytes:
    from PIL.Image import Image

    assert isinstance(image, Image)
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def _request(body: bytes, kind: str) -> ScriptRequest:
    headers = [("content-type", kind), ("content-length", str(len(body)))]
    return ScriptRequest(b"", body, head=RequestHead("POST", "/score", "", headers, "127.0.0.1"))
