"""JPEGs that a GPU decodes, or Pillow instead; the GPU is a puppet."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import Any

import numpy as np
import pytest

from stoker.errors import MalformedBody
from stoker.settings.image_input import read_image_input
from stoker.tensors import Signature, TensorSpec
from stoker.wire import jpegs
from stoker.wire.images import ImageReader, OpenedImages
from stoker.wire.jpegs import decode_jpeg, open_gpu_decoder

Image = pytest.importorskip("PIL.Image", reason="Pillow, of the images extra, is not installed")
pytest.importorskip("simplejpeg", reason="simplejpeg, of the images extra, is not installed")

from tests.nvimgcodec_puppet import PuppetCodec, install_codec  # noqa: E402

SIZE = (9, 14)


@pytest.fixture
def codec(monkeypatch: pytest.MonkeyPatch) -> Iterator[PuppetCodec]:
    """Install the package; it is not opened yet."""
    jpegs.gpu_decoder.cache_clear()
    yield install_codec(monkeypatch)
    jpegs.gpu_decoder.cache_clear()


def jpeg(mode: str = "RGB", kind: str = "JPEG", **options: Any) -> bytes:
    file = BytesIO()
    pixels = np.random.default_rng(1).integers(0, 256, (*SIZE, 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(file, kind, **options)
    return file.getvalue()


def pixels_of(body: bytes) -> np.ndarray:
    return np.asarray(Image.open(BytesIO(body)).convert("RGB"))


def rows(body: bytes, decoding: str = "gpu", size: tuple[int, int] = SIZE, channels: int = 3) -> np.ndarray:
    image = read_image_input({"size": list(size), "channels": channels, "decoding": decoding})
    signature = Signature((TensorSpec("x", "uint8", (*size, channels)),), (TensorSpec("y", "float32", (2,)),))
    opened = ImageReader(image, signature, max_pixels=10_000, max_rows_bytes=1 << 20).open(body, b"")
    assert isinstance(opened, OpenedImages)
    (array,) = opened.rows(lambda: None)
    return array


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"mode": "L"}], ids=str)
def test_a_gpu_decodes_jpegs(codec: PuppetCodec, options: dict[str, Any]) -> None:
    """Its pixels become the row; one decoder serves all images of a process, and none of its backends is a CPU."""
    body = jpeg(**options)
    np.testing.assert_array_equal(rows(body)[0], pixels_of(body) ^ 1)
    rows(body)
    (arguments,) = codec.opened
    assert codec.BackendKind.CPU_ONLY not in arguments["backends"]
    assert codec.decoded == 2


def test_image_decoded_on_a_gpu_is_resized_as_on_the_cpu(codec: PuppetCodec) -> None:
    """The image gets the model's size, its channels and its Exif orientation."""
    codec.decode = lambda pixels: pixels
    exif = Image.Exif()
    exif[0x0112] = 6
    body = jpeg(exif=exif)
    for size, channels in ((4, 5), 3), ((30, 20), 1):
        expected = rows(body, "precise", size, channels)
        np.testing.assert_array_equal(rows(body, "gpu", size, channels), expected)
    assert codec.decoded == 2


@pytest.mark.parametrize(
    "options", [{"mode": "CMYK"}, {"keep_rgb": True}, {"kind": "PNG"}, {"kind": "WEBP"}], ids=str
)
def test_other_colours_and_formats_do_not_use_the_gpu(codec: PuppetCodec, options: dict[str, Any]) -> None:
    """The package takes RGB in a JPEG for YCbCr."""
    body = jpeg(**options)
    np.testing.assert_array_equal(rows(body), rows(body, "precise"))
    assert codec.decoded == 0


def test_image_that_the_gpu_cannot_decode_is_left_to_pillow(codec: PuppetCodec) -> None:
    """Pillow decodes an image if the GPU gives no pixels, or pixels of another shape."""
    body = jpeg()
    for given in (None, np.zeros((9, 13, 3), np.uint8), np.zeros(SIZE, np.uint8)):
        codec.decode = lambda pixels, given=given: given
        np.testing.assert_array_equal(rows(body), rows(body, "precise"))
    assert codec.decoded == 3


def test_image_that_neither_gpu_nor_pillow_can_decode_is_refused(codec: PuppetCodec) -> None:
    """Pillow comes last and refuses the image."""
    codec.decode = lambda pixels: None
    body = jpeg()
    with pytest.raises(MalformedBody):
        rows(body[: len(body) // 2])


def test_image_of_another_size_than_its_header_is_not_decoded(codec: PuppetCodec) -> None:
    """The limits are checked for the size in the header."""
    assert decode_jpeg(jpeg(), (9, 13), SIZE, "gpu") is None
    assert codec.decoded == 0


def test_a_gpu_that_fails_in_a_frontend_is_logged_once(
    codec: PuppetCodec, caplog: pytest.LogCaptureFixture
) -> None:
    """The start has tried it, so it is an error; images are answered nevertheless."""
    codec.failure = RuntimeError("CUDA Runtime failure: '#2'")
    open_gpu_decoder()
    body = jpeg()
    np.testing.assert_array_equal(rows(body), rows(body, "precise"))
    assert [record.getMessage() for record in caplog.records] == [
        "JPEGs are decoded on the CPU, because nvImageCodec does not start: CUDA Runtime failure: '#2'"
    ]


def test_threads_take_turns_on_the_gpu(codec: PuppetCodec) -> None:
    """The package's decoder keeps the state of one decoding, and releases Python's lock meanwhile."""
    body = jpeg()
    with ThreadPoolExecutor(1) as other:

        def decode(pixels: np.ndarray) -> np.ndarray:
            codec.decode = lambda pixels: pixels
            second = other.submit(decode_jpeg, body, SIZE, SIZE, "gpu")
            with pytest.raises(TimeoutError):
                second.result(timeout=0.05)
            return pixels

        codec.decode = decode
        assert decode_jpeg(body, SIZE, SIZE, "gpu") is not None
    assert codec.decoded == 2


def test_other_decodings_open_no_gpu(codec: PuppetCodec) -> None:
    """A CUDA context costs memory of the GPU."""
    for decoding in ("precise", "fast"):
        rows(jpeg(), decoding)
    assert codec.opened == []
