"""The meaning of names, labels and slots while versions come and go."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from stoker.errors import InvalidSettings
from stoker.metrics.layout import MODEL_SLOTS
from stoker.settings.versions import VersionStatus
from stoker.supervisor.catalogue import Model, Version
from stoker.supervisor.metric_slots import Slots


def model(*available: int, chosen: set[int] | None = None, **wished: int) -> Model:
    """A model with these versions available."""
    versions = {number: Version(VersionStatus(number, "AVAILABLE")) for number in available}
    return Model("digits", versions, set(available) if chosen is None else chosen, dict(wished))


def test_the_newest_version_is_the_default_unless_a_label_says_otherwise() -> None:
    """`default` is a label like others, and wins over the number."""
    plain, labelled = model(3, 12, 5), model(3, 12, 5, default=5)
    for one in (plain, labelled):
        one.settle()
    assert (plain.default, labelled.default) == (12, 5)


def test_names_move_when_their_version_is_available_and_not_before() -> None:
    """Until then labels and the default mean what they meant: no request finds nothing."""
    digits = model(3, stable=3)
    digits.settle()
    digits.chosen, digits.wished = {7}, {"stable": 7, "canary": 8}
    digits.versions[7] = Version(VersionStatus(7, "LOADING"))
    digits.settle()
    assert (digits.default, digits.labels, digits.wanted) == (3, {"stable": 3}, {7, 8})
    digits.versions[7].enter("AVAILABLE")
    digits.settle()
    assert (digits.default, digits.labels) == (7, {"stable": 7})


def test_at_the_start_a_label_means_its_version_before_that_is_loaded() -> None:
    """Others may be available first; requests with the label do not hear meanwhile that there is none."""
    digits = model(7, chosen={7}, stable=3, canary=8)
    digits.versions[3] = Version(VersionStatus(3, "LOADING"), served=Mock())
    digits.versions[8] = Version(VersionStatus(8, "LOADING"))
    digits.settle()
    assert digits.labels == {"stable": 3}
    digits.versions[3].served = None
    digits.versions[3].enter("END")
    digits.settle()
    assert digits.labels == {}


def test_a_default_that_goes_is_followed_by_the_newest_that_is_left() -> None:
    """A version that is unloaded takes its names with it only if nothing else can have them."""
    digits = model(3, 5, 7)
    digits.settle()
    digits.versions[7].leave()
    digits.chosen = {3, 5}
    digits.settle()
    assert digits.default == 5
    for version in digits.versions.values():
        version.enter("END")
    digits.chosen = set()
    digits.settle()
    assert (digits.default, digits.labels, digits.wanted) == (None, {}, set())


def test_a_canary_is_not_the_default_for_lack_of_another() -> None:
    """It is for those who ask for it; who asks for nothing finds nothing."""
    digits = model(3, 7, chosen={3}, canary=7)
    digits.settle()
    digits.versions[3].leave()
    digits.chosen = set()
    digits.settle()
    assert (digits.default, digits.labels, digits.unwanted) == (None, {"canary": 7}, [])


def test_version_of_a_label_is_wanted_until_the_label_moves() -> None:
    """A labelled version stays loaded whatever else is chosen."""
    digits = model(3, 5, chosen={5}, stable=3)
    digits.settle()
    digits.wished = {"stable": 7}
    digits.settle()
    assert (digits.labels, digits.unwanted) == ({"stable": 3}, [])
    digits.versions[7] = Version(VersionStatus(7, "AVAILABLE"))
    digits.settle()
    assert (digits.labels, digits.unwanted) == ({"stable": 7}, [3])


def test_a_version_keeps_its_slot_and_the_longest_unloaded_one_loses_it() -> None:
    """Counters go on when a version is loaded again; only when no slot is unused another version gets one."""
    slots = Slots()
    for version in range(MODEL_SLOTS):
        assert slots.acquire("digits", version) == (version, None)
    with pytest.raises(InvalidSettings, match="64 versions"):
        slots.acquire("letters", 1)
    for version in (9, 4, 9):
        slots.release("digits", version)
    assert slots.acquire("digits", 9) == (9, None)
    assert slots.acquire("letters", 1) == (4, ("digits", 4))
    with pytest.raises(InvalidSettings, match="unload one first"):
        slots.acquire("digits", 4)


def test_versions_of_a_route_are_in_numeric_order() -> None:
    """Versions are numbers: 12 comes behind 5."""
    digits = model(12, 5)
    digits.settle()
    route = digits.route()
    assert [version.version for version in route.versions] == [5, 12]
    assert (route.default, route.labels) == (12, {})
    assert list(digits.index()) == [
        {"name": "digits", "version": "5", "state": "READY"},
        {"name": "digits", "version": "12", "state": "READY"},
    ]
