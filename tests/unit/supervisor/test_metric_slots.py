"""The slots of versions in the metrics: a version keeps its own as long as there are enough."""

import pytest

from stoker.errors import InvalidSettings
from stoker.metrics.layout import MODEL_SLOTS
from stoker.supervisor.metric_slots import Slots


def test_a_version_keeps_its_slot_when_it_comes_back() -> None:
    """Its counters continue."""
    slots = Slots()
    slots.keep("first", 1, 0)
    slot, loser = slots.acquire("digits", 3)
    assert (slot, loser, slots.has("digits", 3)) == (1, None, True)
    slots.release("digits", 3)
    assert slots.acquire("digits", 3) == (slot, None)


def test_the_version_that_was_unloaded_longest_ago_loses_its_slot() -> None:
    """Slots of loaded versions are never taken."""
    slots = Slots()
    for version in range(MODEL_SLOTS):
        slots.acquire("digits", version)
    with pytest.raises(InvalidSettings, match="unload one first"):
        slots.acquire("letters", 1)
    slots.release("digits", 5)
    slots.release("digits", 4)
    assert slots.acquire("letters", 1) == (5, ("digits", 5))
    assert not slots.has("digits", 5)
    assert slots.acquire("letters", 2) == (4, ("digits", 4))
