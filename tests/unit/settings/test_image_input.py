"""The settings of an image input."""

import argparse
import json
import re
from typing import Any

import pytest

from stoker.settings.image_input import ImageInput, image_argument, read_image_input

GREY = ImageInput(4, 6, channels=1)
COLOUR = ImageInput(4, 6)


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
    """A size alone means colour images, null is no value, and JSON holds only the given settings."""
    assert read_image_input("size=4x6") == COLOUR
    assert read_image_input({"size": [4, 6], "scale": None, "layout": None}) == COLOUR
    assert GREY.to_json() == {"size": [4, 6], "channels": 1}
    assert (str(GREY), str(COLOUR)) == ("4 × 6 pixels, grey", "4 × 6 pixels, RGB")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({}, "needs a size, height before width: size: [28, 28], or size=28x28 in a text"),
        ("channels=1", "needs a size"),
        (7, "must hold size, channels"),
        ("size=28", "has a value of size that must be height and width, each between 1 and 16384"),
        ("size=0x28", "has a value of size that must be"),
        ({"size": [28, 28, 1]}, "has a value of size that must be"),
        ({"size": [28.0, 28]}, "has a value of size that must be"),
        ({"size": [28, 99999]}, "has a value of size that must be"),
        ("size=28x28,chanels=1", "has no 'chanels'; did you mean channels?"),
        ("size=28x28,channels=2", "has a value of channels that must be 1 (grey) or 3"),
        ("size=28x28,layout=hwx", "has a value of layout that must be hwc or chw"),
        ("size=28x28,decoding=gpu", "has a value of decoding that must be precise or fast"),
        ("size=28x28,invert=maybe", "has a value of invert that must be true or false"),
        ("size=28x28,scale=0", "has a value of scale that must be between 1e-09 and 1000000000"),
        ("size=28x28,scale=big", "has a value of scale that must be a number"),
        ({"size": [28, 28], "scale": True}, "has a value of scale that must be a number"),
        ("size=28x28,std=0.1/0/0.1", "has a value of std that must be between 1e-09"),
        ("size=28x28,mean=1/2", "has 2 numbers for mean and 3 channels"),
        ("size=28x28,mean=1/nan/2", "has a value of mean that must be between -1000000000 and"),
    ],
)
def test_bad_image_settings_are_refused_with_the_reason(value: Any, problem: str) -> None:
    """The message completes a sentence that begins with the setting's name."""
    with pytest.raises(ValueError, match=re.escape(problem)):
        read_image_input(value)


def test_argument_of_a_command_is_read_like_the_setting() -> None:
    """Its errors are those that argparse prints."""
    assert image_argument("size=4x6") == COLOUR
    with pytest.raises(
        argparse.ArgumentTypeError, match="the image input 'size=28' has a value of size that"
    ):
        image_argument("size=28")
