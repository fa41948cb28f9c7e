"""The layout of an image input, from its settings and the model."""

import re

import pytest
from tests.unit.wire.image_bodies import COLOUR, GREY, signature

from stoker.errors import (
    InvalidSettings,
)
from stoker.script_form import ScriptForm
from stoker.settings.image_input import ImageInput
from stoker.tensors import Signature, TensorSpec
from stoker.wire.images import image_layout


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
