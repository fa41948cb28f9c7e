"""Images to rows: what is decoded, what it becomes, and what is refused before it costs anything."""

import argparse
import base64
import io
import json
import re
import struct
import subprocess
import sys
import weakref
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stoker.errors import (
    BodyTooLarge,
    ImageTooLarge,
    InvalidInput,
    InvalidSettings,
    MalformedBody,
    StokerError,
    UnsupportedEncoding,
)
from stoker.script_form import ScriptForm
from stoker.settings.image_input import ImageInput, image_argument, read_image_input
from stoker.tensors import Signature, TensorSpec
from stoker.wire.images import ImageReader, OpenedImages, image_layout

Image = pytest.importorskip("PIL.Image", reason="Pillow, of the images extra, is not installed")

GREY = ImageInput(4, 6, channels=1)
COLOUR = ImageInput(4, 6)
RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def signature(*shape: int, dtype: str = "float32") -> Signature:
    return Signature((TensorSpec("x", dtype, shape),), (TensorSpec("y", "float32", (2,)),))


def reader(
    image: ImageInput = GREY,
    taken: Signature | None = None,
    *,
    max_pixels: int = 1_000_000,
    max_rows_bytes: int = 1 << 20,
) -> ImageReader:
    taken = taken or signature(image.height * image.width * image.channels)
    return ImageReader(image, taken, max_pixels=max_pixels, max_rows_bytes=max_rows_bytes)


def rows(made: ImageReader, body: bytes, content_type: str = "") -> np.ndarray:
    opened = made.open(body, content_type.encode())
    (array,) = opened.rows(lambda: None) if isinstance(opened, OpenedImages) else opened
    return array


def encoded(image: Any, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def grey_pixels(width: int = 6, height: int = 4) -> np.ndarray:
    return (np.arange(width * height, dtype=np.uint8) * 10).reshape(height, width)


def grey_png(**options: Any) -> bytes:
    return encoded(Image.fromarray(grey_pixels()), **options)


def form(*parts: tuple[str, bytes], boundary: str = "XX") -> tuple[bytes, str]:
    """A multipart form of parts, each with its header lines."""
    pieces = [f"--{boundary}\r\n{head}\r\n\r\n".encode() + content + b"\r\n" for head, content in parts]
    return b"".join(pieces) + f"--{boundary}--\r\n".encode(), f"multipart/form-data; boundary={boundary}"


# --- settings ---


def test_text_and_mapping_mean_the_same() -> None:
    """The text of the command line and the mapping of the deployment file give one image input."""
    text = "size=4x6, channels=3,scale=127.5,mean=0.5/0.4/0.3,std=2,invert,layout=chw,decoding=fast"
    mapping = {
        "size": [4, 6], "channels": 3, "scale": 127.5, "mean": [0.5, 0.4, 0.3], "std": 2, "invert": True,
        "layout": "chw", "decoding": "fast",
    }  # fmt: skip
    expected = ImageInput(4, 6, 3, 127.5, (0.5, 0.4, 0.3), (2.0, 2.0, 2.0), True, "chw", "fast")
    assert read_image_input(text) == read_image_input(mapping) == expected
    assert read_image_input(json.loads(json.dumps(expected.to_json()))) == expected


def test_image_settings_have_defaults() -> None:
    """A size alone means colour images, and JSON holds only the given settings."""
    assert read_image_input("size=4x6") == COLOUR
    assert GREY.to_json() == {"size": [4, 6], "channels": 1}
    assert (str(GREY), str(COLOUR)) == ("4 × 6 pixels, grey", "4 × 6 pixels, RGB")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({}, "needs a size, height before width: size: [28, 28], or size=28x28 in a text"),
        ("channels=1", "needs a size"),
        (7, "must hold size, channels"),
        ("size=28", "has a size that is not height and width, each between 1 and 16384"),
        ("size=0x28", "has a size that is not"),
        ({"size": [28, 28, 1]}, "has a size that is not"),
        ({"size": [28.0, 28]}, "has a size that is not"),
        ({"size": [28, 99999]}, "has a size that is not"),
        ("size=28x28,chanels=1", "has no 'chanels'; did you mean channels?"),
        ("size=28x28,channels=2", "has channels that are neither 1 (grey) nor 3"),
        ("size=28x28,layout=hwx", "has a layout that is none of hwc, chw"),
        ("size=28x28,decoding=quick", "has a decoding that is none of precise, fast, gpu"),
        ("size=28x28,invert=maybe", "has an invert that is neither true nor false"),
        ("size=28x28,scale=0", "has a scale that is not above 0"),
        ("size=28x28,scale=big", "has a scale that is not a number"),
        ({"size": [28, 28], "scale": True}, "has a scale that is not a number"),
        ("size=28x28,std=0.1/0/0.1", "has a std that is not above 0"),
        ("size=28x28,mean=1/2", "has 2 numbers for mean and 3 channels"),
        ("size=28x28,mean=1/nan/2", "has a mean that is not a number"),
    ],
)
def test_bad_settings_say_what_is_wrong(value: Any, problem: str) -> None:
    """An image input that makes no sense is refused, and the message ends the sentence that settings begin."""
    with pytest.raises(ValueError, match=re.escape(problem)):
        read_image_input(value)


def test_the_argument_of_a_command_is_told_in_its_words() -> None:
    """What a command line gives is read like the settings, and its errors are ones that argparse shows."""
    assert image_argument("size=4x6") == COLOUR
    with pytest.raises(argparse.ArgumentTypeError, match="the image input 'size=28' has a size that is not"):
        image_argument("size=28")


# --- whether it fits the model ---


@pytest.mark.parametrize(
    ("image", "shape", "layout"),
    [
        (GREY, (24,), "hwc"),
        (GREY, (4, 6), "hwc"),
        (GREY, (4, 6, 1), "hwc"),
        (GREY, (1, 4, 6), "chw"),
        (COLOUR, (72,), "hwc"),
        (ImageInput(4, 6, layout="chw"), (72,), "chw"),
        (COLOUR, (4, 6, 3), "hwc"),
        (COLOUR, (3, 4, 6), "chw"),
        (ImageInput(3, 3), (3, 3, 3), "hwc"),
        (ImageInput(3, 3, layout="chw"), (3, 3, 3), "chw"),
    ],
)
def test_the_layout_follows_from_the_shape(image: ImageInput, shape: tuple[int, ...], layout: str) -> None:
    """The order of the axes is the one that the input's shape has, where the settings do not say it."""
    assert image_layout(image, signature(*shape)) == layout


@pytest.mark.parametrize(
    ("image", "taken", "problem"),
    [
        (GREY, signature(25), "4 × 6 pixels, grey do not fit the input 'x', whose rows are 25 numbers"),
        (COLOUR, signature(4, 6), "4 × 6 pixels, RGB do not fit the input 'x', whose rows are 4 × 6 numbers"),
        (GREY, signature(6, 4), "4 × 6 pixels, grey do not fit"),
        (ImageInput(4, 6, layout="chw"), signature(4, 6, 3), "in the layout chw do not fit"),
        (GREY, signature(24, dtype="bool"), "is bool, which cannot hold pixels"),
        (GREY, signature(24, dtype="int8"), "is int8, which cannot hold pixels"),
        (ImageInput(4, 6, 1, 255.0), signature(24, dtype="uint8"), "takes pixels as they are; leave scale"),
        (ImageInput(4, 6, 1, mean=(1.0,)), signature(24, dtype="int32"), "leave scale, mean and std out"),
        (ImageInput(4, 6, 1, scale=1e-3), signature(24, dtype="float16"), "float16 cannot hold the values"),
        (
            GREY,
            Signature((TensorSpec("a", "float32", (24,)), TensorSpec("b", "float32", ())), ()),
            "the model has several inputs (a, b)",
        ),
        (
            GREY,
            Signature((TensorSpec("raw", "uint8", (9,), True),), (), "body", ScriptForm()),
            "the entry script takes whole request bodies; decorate run with @stoker.batched(shape=...)",
        ),
    ],
)
def test_image_settings_that_contradict_the_model_are_refused(
    image: ImageInput, taken: Signature, problem: str
) -> None:
    """A contradiction with the signature stops the start, and the message names it."""
    with pytest.raises(InvalidSettings, match=re.escape(problem)):
        image_layout(image, taken)


# --- values ---


@pytest.mark.parametrize(("kind", "content_type"), [("PNG", "image/png"), ("WEBP", "image/webp")])
def test_a_lossless_image_of_the_models_size_is_exact(kind: str, content_type: str) -> None:
    """Without resizing, each grey value is its pixel divided by 255, correctly rounded, row by row."""
    body = encoded(Image.fromarray(grey_pixels()), kind, lossless=True)
    scored = rows(reader(), body, content_type)
    assert (scored.dtype, scored.shape) == (np.dtype("float32"), (1, 24))
    np.testing.assert_array_equal(scored[0], (grey_pixels().reshape(-1) / 255).astype(np.float32))


def test_a_jpeg_is_what_pillow_decodes() -> None:
    """A JPEG of the model's size has exactly the pixels that Pillow gives for it."""
    picture = Image.fromarray(np.random.default_rng(3).integers(0, 256, (4, 6, 3), np.uint8))
    body = encoded(picture, "JPEG")
    pixels = np.asarray(Image.open(io.BytesIO(body)).convert("RGB"))
    scored = rows(reader(COLOUR, signature(4, 6, 3, dtype="uint8")), body, "image/jpeg; quality=high")
    np.testing.assert_array_equal(scored[0], pixels)


def test_scale_mean_and_deviation_are_per_channel() -> None:
    """The value of a pixel is (v / scale - mean) / std, with the numbers of its channel."""
    image = ImageInput(4, 6, 3, 100.0, (0.1, 0.2, 0.3), (1.0, 2.0, 4.0))
    pixels = np.random.default_rng(1).integers(0, 256, (4, 6, 3), np.uint8)
    scored = rows(reader(image, signature(4, 6, 3, dtype="float64")), encoded(Image.fromarray(pixels)))
    np.testing.assert_allclose(scored[0], (pixels / 100 - [0.1, 0.2, 0.3]) / [1, 2, 4], rtol=1e-14)


def test_integer_inputs_get_the_pixels() -> None:
    """A model of integers takes the values 0 to 255 as they are."""
    scored = rows(reader(GREY, signature(24, dtype="uint8")), grey_png())
    np.testing.assert_array_equal(scored[0], grey_pixels().reshape(-1))
    assert scored.dtype == np.uint8


def test_inverting_turns_ink_on_paper_into_light_on_dark() -> None:
    """With `invert`, white paper becomes 0 and black ink 1."""
    paper = np.full((4, 6), 255, np.uint8)
    paper[1, 2] = 0
    image = ImageInput(4, 6, 1, invert=True)
    scored = rows(reader(image), encoded(Image.fromarray(paper)))
    expected = np.zeros((4, 6), np.float32)
    expected[1, 2] = 1
    np.testing.assert_array_equal(scored[0], expected.reshape(-1))


@pytest.mark.parametrize(("shape", "layout"), [((72,), "chw"), ((3, 4, 6), None)])
def test_planes_come_first_where_the_model_wants_them(shape: tuple[int, ...], layout: Any) -> None:
    """The layout chw puts the channels before the rows of pixels, also in a flat input."""
    pixels = np.random.default_rng(2).integers(0, 256, (4, 6, 3), np.uint8)
    image = ImageInput(4, 6, layout=layout)
    scored = rows(reader(image, signature(*shape, dtype="uint8")), encoded(Image.fromarray(pixels)))
    np.testing.assert_array_equal(scored[0].reshape(3, 4, 6), pixels.transpose(2, 0, 1))


@pytest.mark.parametrize("channels_first", [False, True])
def test_grey_images_have_an_axis_where_the_model_has_one(channels_first: bool) -> None:
    """A model of one channel may have an axis for it, at either end."""
    shape = (1, 4, 6) if channels_first else (4, 6, 1)
    scored = rows(reader(GREY, signature(*shape, dtype="uint8")), grey_png())
    np.testing.assert_array_equal(scored[0], grey_pixels().reshape(shape))


def test_other_sizes_are_resized_to_the_models() -> None:
    """An image of another size is stretched to the model's, averaging where it shrinks."""
    halves = np.zeros((40, 60), np.uint8)
    halves[:, 30:] = 200
    scored = rows(reader(GREY, signature(4, 6, dtype="uint8")), encoded(Image.fromarray(halves)))[0]
    np.testing.assert_array_equal(scored[:, :2], 0)
    np.testing.assert_array_equal(scored[:, 4:], 200)


def test_large_jpegs_are_reduced_while_they_are_decoded() -> None:
    """A photo of many times the size gives nearly what full decoding and resizing would."""
    ramp = np.linspace(0, 255, 960).astype(np.uint8)
    body = encoded(Image.fromarray(np.broadcast_to(ramp, (640, 960)).copy()), "JPEG", quality=95)
    full = Image.open(io.BytesIO(body)).resize((6, 4), Image.Resampling.BILINEAR)
    scored = rows(reader(GREY, signature(4, 6, dtype="uint8")), body)[0]
    assert np.abs(scored.astype(int) - np.asarray(full).astype(int)).max() <= 2


# --- modes ---


def colour_of(picture: Any, kind: str = "PNG", **options: Any) -> tuple[int, ...]:
    """What a picture of one colour becomes for a model that takes RGB."""
    made = reader(COLOUR, signature(4, 6, 3, dtype="uint8"))
    scored = rows(made, encoded(picture.resize((6, 4), Image.Resampling.NEAREST), kind, **options))[0]
    assert (scored == scored[0, 0]).all()
    return tuple(scored[0, 0].tolist())


def palette(colour: tuple[int, int, int]) -> Any:
    picture = Image.new("P", (2, 2), 1)
    picture.putpalette([0, 0, 0, *colour])
    return picture


def test_every_mode_becomes_rgb() -> None:
    """Palettes, bilevel and grey images, grey with alpha and CMYK JPEGs are brought to 8 bits a channel."""
    assert colour_of(palette(GREEN)) == GREEN
    assert colour_of(Image.new("1", (2, 2), 1)) == (255, 255, 255)
    assert colour_of(Image.new("L", (2, 2), 77)) == (77, 77, 77)
    assert colour_of(Image.new("LA", (2, 2), (77, 255))) == (77, 77, 77)
    assert colour_of(Image.new("CMYK", (2, 2), (0, 0, 0, 255)), "JPEG", quality=100) == (0, 0, 0)


def test_sixteen_bits_keep_their_upper_half() -> None:
    """Grey of 16 bits is not clipped: 0x8000 is a medium grey."""
    deep = Image.fromarray(np.full((4, 6), 0x80FF, np.uint16))
    assert colour_of(deep) == (0x80, 0x80, 0x80)
    np.testing.assert_array_equal(rows(reader(GREY, signature(24, dtype="uint8")), encoded(deep)), 0x80)


def test_transparent_pixels_become_white() -> None:
    """Alpha, a transparent palette entry and a transparent colour show white paper; half of it half."""
    assert colour_of(Image.new("RGBA", (2, 2), (0, 0, 0, 0))) == (255, 255, 255)
    assert colour_of(Image.new("RGBA", (2, 2), (255, 0, 0, 255))) == RED
    assert colour_of(Image.new("RGBA", (2, 2), (0, 0, 0, 128))) == (127, 127, 127)
    assert colour_of(palette(BLUE), transparency=1) == (255, 255, 255)
    assert colour_of(palette(BLUE), transparency=0) == BLUE
    assert colour_of(Image.new("RGB", (2, 2), RED), transparency=RED) == (255, 255, 255)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_honoured(orientation: int) -> None:
    """A photo is turned upright before it is resized, whichever of the eight ways the camera was held."""
    upright = np.zeros((40, 60), np.uint8)
    upright[:20, :30] = 250
    # How the sensor stored it: the inverse of what the orientation asks for.
    stored = {
        1: upright, 2: upright[:, ::-1], 3: upright[::-1, ::-1], 4: upright[::-1],
        5: upright.T, 6: upright.T[::-1], 7: upright.T[::-1, ::-1], 8: upright.T[:, ::-1],
    }[orientation]  # fmt: skip
    exif = Image.Exif()
    exif[0x0112] = orientation
    body = encoded(Image.fromarray(np.ascontiguousarray(stored)), "JPEG", quality=100, exif=exif)
    scored = rows(reader(ImageInput(2, 2, 1), signature(2, 2, dtype="uint8")), body)[0]
    assert (scored > 180).tolist() == [[True, False], [False, False]]


def test_damaged_metadata_do_not_cost_the_picture() -> None:
    """A photo whose EXIF block is nonsense is scored as it lies."""
    body = encoded(Image.fromarray(grey_pixels()), "JPEG", exif=b"Exif\0\0nonsense of a camera")
    assert rows(reader(), body).shape == (1, 24)


# --- bodies ---


def test_a_form_gives_a_row_for_each_image_in_order() -> None:
    """Parts with an image's type or a file name are rows; other fields of the form are not."""
    first, second = np.zeros((4, 6), np.uint8), grey_pixels()
    body, content_type = form(
        ('Content-Disposition: form-data; name="comment"', b"a digit"),
        (
            'Content-Disposition: form-data; name="a"\r\nContent-Type: image/png',
            encoded(Image.fromarray(first)),
        ),
        ('Content-Disposition: form-data; name="b"; filename="größe.bin"', encoded(Image.fromarray(second))),
    )
    scored = rows(reader(GREY, signature(4, 6, dtype="uint8")), body, content_type)
    np.testing.assert_array_equal(scored, [first, second])


def test_a_form_may_have_a_preamble_and_a_quoted_boundary() -> None:
    """What stands before the first boundary and behind the last is no part, and a boundary may be quoted."""
    body, _ = form(("Content-Type: image/png", grey_png()), boundary="a b:c")
    body = b"preamble\r\n" + body + b"epilogue"
    assert rows(reader(), body, 'Multipart/Form-Data; charset=x; boundary="a b:c"').shape == (1, 24)


def test_an_image_part_may_hold_what_looks_like_line_ends() -> None:
    """The content of a part is taken byte for byte, line ends included."""
    body = encoded(Image.fromarray(grey_pixels()), pnginfo=_text_chunk("\r\n\r\n--YY\r\n"))
    assert b"\r\n\r\n--YY\r\n" in body
    assert rows(reader(), *form(("Content-Type: image/png", body))).shape == (1, 24)


def _text_chunk(text: str) -> Any:
    from PIL.PngImagePlugin import PngInfo

    info = PngInfo()
    info.add_text("comment", text)
    return info


@pytest.mark.parametrize(
    ("body", "content_type", "error", "problem"),
    [
        (b"", "multipart/form-data", MalformedBody, "names no boundary"),
        (
            b"--XX\r\n\r\nabc",
            "multipart/form-data; boundary=XX",
            MalformedBody,
            "its last boundary is missing",
        ),
        (b"nothing", "multipart/form-data; boundary=XX", MalformedBody, "its last boundary is missing"),
        (
            b"--XX\r\nabc\r\n--XX--",
            "multipart/form-data; boundary=XX",
            MalformedBody,
            "no end of its headers",
        ),
        (b"--XX--\r\n", "multipart/form-data; boundary=XX", InvalidInput, "holds no image"),
        (form(("A: b", b"c"))[0], "multipart/form-data; boundary=XX", InvalidInput, "holds no image"),
        (
            b"",
            "multipart/mixed; boundary=XX",
            UnsupportedEncoding,
            "multipart/mixed is not read; send image/jpeg",
        ),
        (b"GIF89a", "image/gif", UnsupportedEncoding, "image/gif is not read"),
        (b"not an image", "image/jpeg", MalformedBody, "The image is not a JPEG, PNG or WebP image"),
        (b'{"data": [[1]]}', "image/png", MalformedBody, "The image is not"),
        (b"", "image/png", MalformedBody, "The image is not"),
    ],
)
def test_bodies_that_are_not_what_they_say(
    body: bytes, content_type: str, error: type[StokerError], problem: str
) -> None:
    """A body that does not hold what its type says is refused with a message that says why."""
    with pytest.raises(error, match=re.escape(problem)):
        rows(reader(), body, content_type)


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (
            form(("Content-Disposition: form-data; filename=a;filename*=b;filename*1=c", b""))[0],
            "multipart/form-data; boundary=XX",
        ),
        (b"", "multipart/form-data; a=b;a*=c;a*1=d; boundary=XX"),
    ],
)
def test_parameters_that_python_may_fail_at_are_the_callers_fault(body: bytes, content_type: str) -> None:
    """The parser of newer versions reads them; that of older ones raised what is no ValueError."""
    with pytest.raises(MalformedBody):
        rows(reader(), body, content_type)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda text: text,
        lambda text: {"b64": text},
        lambda text: "data:image/png;base64," + text,
    ],
    ids=["text", "b64", "data-url"],
)
def test_base64_in_json_gives_a_row_for_each(wrap: Callable[[str], Any]) -> None:
    """The rows of a JSON body may be base64 texts, bare, as `b64`, or as a canvas gives them."""
    text = base64.b64encode(grey_png()).decode()
    scored = rows(reader(), json.dumps({"data": [wrap(text), wrap(text)]}).encode(), "application/json")
    np.testing.assert_array_equal(scored, [(grey_pixels().reshape(-1) / 255).astype(np.float32)] * 2)


def test_numbers_keep_working_behind_the_reader() -> None:
    """A body of numbers that the reader was shown gives the same rows as without it."""
    body = json.dumps({"data": [list(range(24))], "comment": "x"}).encode()
    np.testing.assert_array_equal(rows(reader(), body), [np.arange(24)])


@pytest.mark.parametrize(
    ("data", "error", "problem"),
    [
        (["!!"], MalformedBody, '"data": row 0 is a text, but not base64'),
        (["ü"], MalformedBody, "but not base64"),
        (["QUJD"], MalformedBody, "The image is not"),
        ([base64.b64encode(grey_png()).decode(), "QUJD"], MalformedBody, "Image 1 is not"),
        (["QUJD", [1, 2]], InvalidInput, "row 1 is no image; either all rows are base64 texts, or none is"),
        ([{"b64": "QUJD"}, {"x": 1}], InvalidInput, "row 1 is no image"),
        ([{"x": 1}], InvalidInput, '"data": expected rows of 24 numbers, row 0 has an object'),
        ("QUJD", InvalidInput, '"data" must be a list of rows, got a string'),
        ([], InvalidInput, '"data" holds no rows'),
    ],
)
def test_json_that_holds_no_images(data: Any, error: type[StokerError], problem: str) -> None:
    """Texts that are no base64, no images, or mixed with numbers are refused by their row."""
    with pytest.raises(error, match=re.escape(problem)):
        rows(reader(), json.dumps({"data": data}).encode())


@pytest.mark.parametrize(
    ("body", "content_type", "claimed"),
    [
        (b'{"data": [[0.5, 1]]}', b"", False),
        (b'{"id": "x", "data": [[0.5, 1]]}', b"application/json", False),
        (b'{"data": ["QUJD"]}', b"", True),
        (b'{"data": [{"b64": "QUJD"}]}', b"", True),
        (b' \n{"data": ["QUJD"]}', b"", True),
        (b"\xff\xd8\xff\xe0", b"", True),
        (b"\x89PNG\r\n\x1a\n", b"application/x-www-form-urlencoded", True),
        (b"RIFF\0\0\0\0WEBPVP8 ", b"", True),
        (b'{"data": [[1]]}', b"image/png", True),
        (b"", b"Multipart/form-data; boundary=X", True),
        (b"", b"", False),
        (b"{}", b"", False),
        (b"[1, 2]", b"application/json", False),
    ],
)
def test_numbers_are_not_claimed(body: bytes, content_type: bytes, claimed: bool) -> None:
    """Bodies of numbers stay on the fast path; images are recognised by type, first bytes, or strings in the data."""
    assert reader().claims(body, content_type) is claimed


# --- what is refused ---


def _png_header(width: int, height: int) -> bytes:
    """A PNG that announces a size, in 60 bytes."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + checksum

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    content = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + content


def test_bombs_are_refused_by_their_header() -> None:
    """An image of too many pixels is refused before any is decoded; one at the limit is not."""
    body = _png_header(65_000, 65_000)
    with pytest.raises(
        ImageTooLarge, match=r"The image has 65000 × 65000 pixels; at most 1 million are decoded"
    ):
        reader().open(body, b"image/png")
    exact = encoded(Image.new("L", (1000, 1000)))
    assert rows(reader(), exact).shape == (1, 24)
    with pytest.raises(ImageTooLarge, match=r"at most 0\.999999 million"):
        reader(max_pixels=999_999).open(exact, b"image/png")


def test_the_bomb_in_a_form_is_named() -> None:
    """Of several images the one that is too large is named by its place."""
    body, content_type = form(
        ("Content-Type: image/png", grey_png()), ("Content-Type: image/png", _png_header(5000, 5000))
    )
    with pytest.raises(ImageTooLarge, match="Image 1 has 5000 × 5000 pixels"):
        reader().open(body, content_type.encode())


def test_very_long_sides_are_refused() -> None:
    """Millions of lines of one pixel, and what would grow beyond the limit while it is resized, are not decoded."""
    with pytest.raises(ImageTooLarge, match="1 × 65536 pixels; at most 65535 on a side"):
        reader().open(_png_header(1, 65_536), b"image/png")
    wide = ImageInput(2, 100, channels=1)
    upright, lying = encoded(Image.new("L", (1, 10_001))), encoded(Image.new("L", (10_001, 1)))
    made = reader(wide)
    with pytest.raises(ImageTooLarge, match="too long a side to be resized to 100 × 2"):
        made.open(upright, b"image/png")
    assert rows(made, lying).shape == (1, 200)
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = encoded(Image.new("L", (10_001, 1)), exif=exif)
    with pytest.raises(ImageTooLarge, match="too long a side"):
        made.open(turned, b"image/png")
    assert rows(reader(wide, max_pixels=1_000_100), upright).shape == (1, 200)


def test_many_large_images_in_one_request_are_refused() -> None:
    """One request may keep a thread for no longer than sixteen images of the largest size do."""
    image = ("Content-Type: image/png", encoded(Image.new("L", (40, 50))))
    made = reader(max_pixels=2000)
    assert rows(made, *form(*[image] * 16)).shape == (16, 24)
    body, content_type = form(*[image] * 17)
    with pytest.raises(
        ImageTooLarge, match=r"have 0\.034 million pixels together; at most 16 times the 0\.002"
    ):
        made.open(body, content_type.encode())


def test_images_are_decoded_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """When an image is begun nothing is left of the one before it but its row."""
    alive: list[weakref.ref[Any]] = []
    open_image = Image.open

    def watched(*arguments: Any, **options: Any) -> Any:
        assert all(reference() is None for reference in alive)
        image = open_image(*arguments, **options)
        alive.append(weakref.ref(image))
        return image

    monkeypatch.setattr(Image, "open", watched)
    assert rows(reader(), *form(*[("Content-Type: image/png", grey_png())] * 3)).shape == (3, 24)
    assert len(alive) == 3


def test_transparency_is_laid_on_paper_in_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image is flattened piece by piece, and comes out as if it were flattened at once."""
    random = np.random.default_rng(8)
    image = Image.fromarray(random.integers(0, 256, (9, 6, 4), np.uint8))
    bodies = [encoded(image), encoded(image.quantize(20))]
    made = reader(ImageInput(9, 6), signature(9, 6, 3))
    whole = [rows(made, body) for body in bodies]
    monkeypatch.setattr("stoker.wire.images._STRIP_PIXELS", 15)
    for body, expected in zip(bodies, whole, strict=True):
        np.testing.assert_array_equal(rows(made, body), expected)


def test_a_jpeg_with_a_thousand_scans_is_refused() -> None:
    """A progressive JPEG may not make the decoder pass over its pixels again and again."""
    body = encoded(Image.fromarray(grey_pixels(24, 10)), "JPEG", progressive=True)
    last, end = body.rindex(b"\xff\xda"), body.rindex(b"\xff\xd9")
    scan = body[last:end]
    assert rows(reader(), body[:end] + scan * 20 + body[end:]).shape == (1, 24)
    with pytest.raises(ImageTooLarge, match="a JPEG of more than 64 scans"):
        reader().open(body[:end] + scan * 64 + body[end:], b"image/jpeg")


def test_bytes_behind_a_jpegs_end_are_no_scans() -> None:
    """Phones append films to photos; what looks like scans there does not count."""
    body = encoded(Image.fromarray(grey_pixels()), "JPEG") + b"\xff\xda\0\x02" * 1000
    assert rows(reader(), body).shape == (1, 24)


def test_more_images_than_rows_fit_are_refused() -> None:
    """Tiny images may not grow into more rows than a body of numbers could have brought; one always may."""
    texts = [base64.b64encode(grey_png()).decode()] * 3
    body = json.dumps({"data": texts}).encode()
    row_bytes = 24 * 4
    assert rows(reader(max_rows_bytes=3 * row_bytes), body).shape == (3, 24)
    with pytest.raises(BodyTooLarge, match="The request holds 3 images; at most 2 are taken at once"):
        rows(reader(max_rows_bytes=3 * row_bytes - 1), body)
    assert rows(reader(max_rows_bytes=1), grey_png()).shape == (1, 24)


def test_a_form_of_countless_parts_is_refused() -> None:
    """Beside as many images as fit, a form may have a hundred other fields; what has more is not taken apart."""
    made = reader(max_rows_bytes=2 * 24 * 4)
    field, image = ("A: b", b""), ("Content-Type: image/png", grey_png())
    assert rows(made, *form(*[field] * 100, image, image)).shape == (2, 24)
    with pytest.raises(BodyTooLarge, match="The multipart form has more than 102 parts"):
        rows(made, *form(*[field] * 101, image, image))
    with pytest.raises(BodyTooLarge, match="The request holds 3 images; at most 2"):
        rows(made, *form(image, image, image))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_images_that_are_cut_short_are_refused(kind: str) -> None:
    """However short an image is cut, the answer is that it is damaged; nothing else escapes."""
    noise = np.random.default_rng(5).integers(0, 256, (24, 36, 3), np.uint8)
    body = encoded(Image.fromarray(noise), kind)
    for length in range(4, len(body) - 40, 97):
        with pytest.raises(MalformedBody, match="damaged or cut short"):
            rows(reader(), body[:length], f"image/{kind.lower()}")


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_damaged_images_are_scored_or_refused(kind: str) -> None:
    """Whatever single bytes of an image are damaged, it is scored or refused as such."""
    random = np.random.default_rng(6)
    noise = random.integers(0, 256, (24, 36, 3), np.uint8)
    body = encoded(Image.fromarray(noise), kind)
    outcomes = set()
    for place in range(0, len(body), 7):
        damaged = bytearray(body)
        damaged[place] ^= int(random.integers(1, 256))
        try:
            rows(reader(), bytes(damaged), f"image/{kind.lower()}")
            outcomes.add("scored")
        except (MalformedBody, ImageTooLarge):
            outcomes.add("refused")
    assert outcomes == {"scored", "refused"}


def test_work_ends_when_nobody_waits_for_it() -> None:
    """Before each image the caller's deadline is looked at, so many images cannot keep a thread for long."""
    checks = 0

    def check() -> None:
        nonlocal checks
        checks += 1
        if checks == 2:
            raise TimeoutError

    body = json.dumps({"data": [base64.b64encode(grey_png()).decode()] * 3}).encode()
    opened = reader().open(body, b"")
    assert isinstance(opened, OpenedImages)
    assert opened.pixels == 3 * 24
    with pytest.raises(TimeoutError):
        opened.rows(check)
    assert checks == 2


def test_pillow_is_not_imported_without_need() -> None:
    """A frontend without image models does not carry Pillow."""
    code = "import sys, stoker.wire.images; sys.exit('PIL' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
