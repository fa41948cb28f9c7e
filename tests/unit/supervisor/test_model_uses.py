"""The uses of versions that are loaded on demand: requests by the counters of the metrics, and earlier loads."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.puppets import SecondsClock, metric_memory

from stoker.deployment import Deployment
from stoker.residency.footprints import Footprint, Footprints
from stoker.supervisor.model_uses import ModelUses, Use

KEY = ("digits", 1)
SLOT = 3
LOADED = Footprint(40 << 20, 0.5)


class Scene:
    """Uses with the metrics and the clock beneath them."""

    def __init__(self, folder: Path) -> None:
        self.clock, self.memory = SecondsClock(), metric_memory()
        self.footprints = Footprints(folder / "footprints.json")
        self.uses = ModelUses(self.footprints, self.memory, self.clock)
        self.deployed = Deployment("digits", 1, "onnx", folder / "digits.onnx", folder, 1, 1)
        self.footprints.keep(self.deployed, "cpu", LOADED)

    def answer(self, requests: int) -> None:
        """Count answered requests in the metrics."""
        for _ in range(requests):
            self.memory.page(0).model(SLOT).count_request(200)

    def rate(self, use: Use) -> float:
        return self.uses.describe(KEY, use, 0.0, leased=False).requests_per_s


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_a_new_use_has_the_footprint_of_earlier_loads(scene: Scene) -> None:
    """A use is made once, and dropped with its version."""
    assert scene.uses.find(KEY) is None
    use = scene.uses.provide(KEY, scene.deployed, "cpu")
    assert use.footprint == LOADED
    assert scene.uses.provide(KEY, scene.deployed, "cpu") is use
    scene.uses.forget(KEY)
    assert scene.uses.find(KEY) is None


def test_requests_count_from_the_state_of_the_slot_on(scene: Scene) -> None:
    """Requests that the counters had at the load are no uses; later ones are, at the time of the look."""
    scene.answer(7)
    use = scene.uses.provide(KEY, scene.deployed, "cpu")
    scene.uses.begin_slot(use, SLOT)
    scene.clock.now_s += 5
    scene.uses.learn(KEY, use, SLOT)
    assert (use.requests, use.last_used_s, scene.rate(use)) == (7, 0.0, 0.0)
    scene.answer(2)
    scene.uses.learn(KEY, use, SLOT)
    assert (use.requests, use.last_used_s) == (9, scene.clock.now_s)
    assert scene.rate(use) > 0


def test_the_request_that_caused_a_load_counts_once(scene: Scene) -> None:
    """It counts at the load; when its answer is in the metrics, nothing is learned."""
    use = scene.uses.provide(KEY, scene.deployed, "cpu")
    scene.uses.begin_slot(use, SLOT)
    scene.uses.count_waiting(KEY, use)
    rate = scene.rate(use)
    assert rate > 0
    scene.answer(1)
    scene.uses.learn(KEY, use, SLOT)
    assert (use.requests, scene.rate(use)) == (1, rate)


def test_a_version_is_described_with_its_minimum_residence(scene: Scene) -> None:
    """It may leave when its residence is over, unless it is leased."""
    use = scene.uses.provide(KEY, scene.deployed, "cpu")
    use.since_s = 100.0
    described = scene.uses.describe(KEY, use, 30.0, leased=True)
    assert (described.name, described.bytes, described.load_s) == ("digits:1", 40 << 20, 0.5)
    assert (described.resident_until_s, described.leased) == (130.0, True)
