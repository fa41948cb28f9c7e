"""The setting for texts."""

from pathlib import Path

import pytest

from stoker.settings.text_input import TextInput, TextSettings, read_text_settings


def test_read_text_settings_of_mappings_texts_and_off() -> None:
    """A mapping and a text say the same; false and `off` switch texts off."""
    expected = TextSettings(256, "refuse")
    assert read_text_settings({"max_tokens": 256, "longer": "refuse"}) == expected
    assert read_text_settings("max_tokens=256, longer=refuse") == expected
    assert read_text_settings(expected) is expected
    assert read_text_settings({}) == TextSettings(None, "cut")
    assert read_text_settings(False) is False
    assert read_text_settings("off") is False


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"max_tokens": 4}, "must be a whole number between 8 and"),
        ({"longer": "shorten"}, "must be cut or refuse"),
        ({"tokens": 4}, "tokens"),
        (7, "must hold max_tokens and longer by name, or be off"),
    ],
)
def test_read_text_settings_refuses_others(value: object, words: str) -> None:
    """The error has the reason."""
    with pytest.raises(ValueError, match=words):
        read_text_settings(value)


def test_text_input_in_words() -> None:
    """The summary of a start shows it."""
    assert str(TextInput(Path("t"), 64)) == "up to 64 tokens, longer ones are cut"
    assert str(TextInput(Path("t"), 64, "refuse")) == "up to 64 tokens, longer ones are refused"
