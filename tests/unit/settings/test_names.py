"""Names of models and services, and references to versions."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import InvalidSettings
from stoker.settings.names import (
    checked_name,
    checked_service,
    is_name,
    is_service_name,
    name_from_file,
    parse_reference,
)

name_characters = st.sampled_from("abzABZ019._-")
names = st.builds(
    lambda first, rest: first + rest, st.sampled_from("aZ09"), st.text(name_characters, max_size=99)
)


@given(name=names, version=st.none() | st.integers(1, 10**17))
def test_every_valid_reference_round_trips(name: str, version: int | None) -> None:
    """References that are printed as NAME or NAME:VERSION are read back as the same."""
    assert parse_reference(name if version is None else f"{name}:{version}") == (name, version)


@given(name=st.text(max_size=110))
def test_a_name_is_a_plain_file_name(name: str) -> None:
    """A valid name is no path, not hidden, and not longer than 100 characters."""
    if is_name(name):
        assert checked_name(name) == name
        assert Path("models", name).name == name
        assert name.isascii()
        assert not name.startswith(".")
        assert len(name) <= 100
    else:
        with pytest.raises(InvalidSettings, match="cannot be a model name"):
            checked_name(name)


@given(name=st.text(max_size=110) | st.text(alphabet="aé .-(ß", max_size=110))
def test_a_name_of_a_service_is_a_file_name_and_a_part_of_a_path(name: str) -> None:
    """It needs no quotes within quotes, and has room for endings in a file name."""
    if is_service_name(name):
        assert Path("keys", f"{name}.signing").name == f"{name}.signing"
        assert len(f"{name}.sample_input.json".encode()) < 255
        assert name.isprintable()
        assert name == name.strip(" .-") or name[-1] in ".-"
        assert not set(name).intersection("/\\:,;'\"%<>{}[]")
    else:
        assert not is_name(name)
        with pytest.raises(InvalidSettings, match="cannot be a service name"):
            checked_service(name, "service")


@pytest.mark.parametrize(
    "name", ["my model (1)", "größe+2", "模型", "a.b-c_d", "e\u0301te\u0301", "9 #1 & co!"]
)
def test_names_of_folders_are_names_of_services(name: str) -> None:
    """Those that people give to copies, and in their own script."""
    assert checked_service(name) == name


@given(stem=st.text(max_size=150))
def test_every_file_name_gives_a_valid_name(stem: str) -> None:
    """A name made of a file name is valid, and a valid one is kept but for trailing punctuation."""
    name = name_from_file(stem)
    assert is_name(name)
    assert name_from_file(name) == name


@pytest.mark.parametrize(
    "reference", ["", ":1", "mnist:", "mnist:0", "mnist:01", "mnist:-1", "mnist:x", "a:1:2", "mnist:١"]
)
def test_malformed_references_are_refused(reference: str) -> None:
    """A version is a number from 1 up in plain digits."""
    with pytest.raises(InvalidSettings):
        parse_reference(reference)
