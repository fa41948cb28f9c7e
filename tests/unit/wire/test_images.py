"""Rows of images: values, sizes, modes, orientation."""

import io
from typing import Any

import numpy as np
import pytest
from tests.unit.wire.image_bodies import (
    BLUE,
    COLOUR,
    GREEN,
    GREY,
    RED,
    Image,
    encoded,
    grey_pixels,
    grey_png,
    reader,
    rows,
    signature,
)

from stoker.settings.image_input import ImageInput


@pytest.mark.parametrize(("kind", "content_type"), [("PNG", "image/png"), ("WEBP", "image/webp")])
def test_a_lossless_image_of_the_models_size_is_exact(kind: str, content_type: str) -> None:
    """Without resizing, each grey value is its pixel divided by 255, correctly rounded, row by row."""
    body = encoded(Image.fromarray(grey_pixels()), kind, lossless=True)
    scored = rows(reader(), body, content_type)
    assert (scored.dtype, scored.shape) == (np.dtype("float32"), (1, 24))
    np.testing.assert_array_equal(scored[0], (grey_pixels().reshape(-1) / 255).astype(np.float32))


def test_jpeg_has_the_pixels_of_pillow() -> None:
    """This holds exactly for a JPEG of the model's size."""
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


def colour_of(picture: Any, kind: str = "PNG", **options: Any) -> tuple[int, ...]:
    """The colour in a model's RGB input of a picture of one colour."""
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
