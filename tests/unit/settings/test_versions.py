"""The versions that a policy chooses, and the settings of policies and labels."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.errors import InvalidSettings
from stoker.settings.versions import VersionPolicy, check_named, read_labels, read_versions


@pytest.mark.parametrize(
    ("setting", "chosen"),
    [
        (None, [12]),
        ("latest", [12]),
        ("latest:2", [7, 12]),
        ("latest:9", [3, 5, 7, 12]),
        ("all", [3, 5, 7, 12]),
        ((3, 7), [3, 7]),
        ((5, 6), [5]),
    ],
)
def test_policy_chooses_among_existing_versions(setting: Any, chosen: list[int]) -> None:
    """The newest by number, all, or those that are named; a named one that is not there is none."""
    assert VersionPolicy.of(setting).choose([12, 3, 7, 5]) == chosen
    assert VersionPolicy.of(setting).choose([]) == []


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("latest", "latest"),
        ("latest:3", "latest:3"),
        ("all", "all"),
        (7, (7,)),
        ("7", (7,)),
        ("7, 3,7", (3, 7)),
        ([3, "7"], (3, 7)),
        (0, (0,)),
    ],
)
def test_versions_as_operators_write_them(written: Any, read: Any) -> None:
    """Words and numbers, on the command line and in YAML; numbers are sorted, each is there once."""
    assert read_versions(written) == read


@pytest.mark.parametrize(
    "written", ["", "newest", "latest:0", "latest:x", "3,", "-1", [], [1.5], [True], {}, None]
)
def test_other_policies_are_refused(written: Any) -> None:
    """A malformed policy is an error, not a guess."""
    with pytest.raises(ValueError, match="must"):
        read_versions(written)


def test_labels_are_names_of_versions() -> None:
    """Numbers may be typed as texts; other names and versions are refused."""
    assert read_labels({"stable": 3, "canary": "7"}) == {"stable": 3, "canary": 7}
    for wrong in ({"a/b": 1}, {"": 1}, {"a": -1}, {"a": "x"}, {"a": None}, {3: 3}, ["a"]):
        with pytest.raises(ValueError, match="must"):
            read_labels(wrong)


def test_versions_that_are_named_have_to_be_there() -> None:
    """The message says which one is missing, and which there are."""
    check_named("digits", VersionPolicy.of("all"), [1])
    check_named("digits", VersionPolicy.of((1, 2)), [2, 1])
    with pytest.raises(InvalidSettings, match="digits has no version 4, 9; it has 1, 2"):
        check_named("digits", VersionPolicy.of((9, 2, 4)), [2, 1])
