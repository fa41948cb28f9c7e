"""Versions that answer beside one before them: comparisons, and requests by weights."""

from __future__ import annotations

import pytest
from tests.unit.supervisor.rollout.stage import Play, Stage

from stoker.errors import ParityFailed, RequestError, UnknownService
from stoker.models.labels import change_labels, store_canary
from stoker.settings.traffic import Canary, Parity
from stoker.supervisor.trials import Trials
from stoker.takeover.comparison import Comparison, FieldDifference

AGREE = Comparison({"same": 9, "close": 1})
DIFFER = Comparison({"same": 9, "different": 1}, {"y": FieldDifference(0.5, 0.25, 10, 1)})


def test_a_version_takes_over_only_if_it_answers_as_the_one_before(play: Play) -> None:
    """Where that is required, the other one goes on, the load says so, and the new one is gone and has failed."""

    async def scene(stage: Stage) -> None:
        stage.stock.parity = Parity("require", tolerance=0.1)
        stage.stock.files["digits", 7] = "new weights"
        for comparison, reason in (
            (DIFFER, r"does not answer as version 3 \(10 requests compared: 9 same, 1 different; y differs by at "
             r"most 0.5 .* 1 of 10 classes flip; parity_tolerance 0.1\)"),
            (None, "it takes or gives other tensors than version 3"),
            (Comparison(), "there was no request to compare"),
        ):  # fmt: skip
            stage.fleet.comparison = comparison
            with pytest.raises(ParityFailed, match="failed to load 'digits', version 7: .*" + reason):
                await stage.rollout.load("digits")
            assert stage.fleet.happened() == [
                "digits is 3",
                "load digits 7",
                "compare digits 3 with digits 7",
                "unload digits 7",
                "digits is 3",
            ]
            assert stage.fleet.states() == {3: "AVAILABLE", 7: "END"}
            assert stage.fleet.routes["digits"].versions[1].status.error == "parity_failed"
            assert stage.stock.held == set()
        stage.fleet.comparison = AGREE
        await stage.rollout.load("digits")
        assert stage.fleet.states() == {3: "END", 7: "AVAILABLE"}
        events = [(entry["version"], entry["event"]) for entry in stage.rollout.events.listed("digits")]
        assert events[1:] == [
            *[("7", "parity_failed")] * 3, ("7", "parity_passed"), ("7", "available"), ("7", "default"),
            ("3", "unloaded"),
        ]  # fmt: skip
        assert stage.rollout.events.listed("digits")[1]["report"]["fields"]["y"]["flipped"] == 1
        decisions = stage.memory.totals().model(1).decisions()
        assert (decisions["parity_failed"], decisions["parity_passed"]) == (3, 1)

    play(scene)


def test_a_warning_keeps_no_version_from_taking_over(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    """A load of the same number anew is compared too; a version that takes nobody's place is not."""

    async def scene(stage: Stage) -> None:
        stage.stock.parity = Parity("warn")
        stage.fleet.comparison = DIFFER
        stage.stock.files["digits", 3] = "changed weights"
        await stage.rollout.load("digits")
        assert "compare digits 3 with digits 3" in stage.fleet.happened()
        stage.stock.files["digits", 2] = "old weights"
        change_labels(stage.stock.base / "digits", {"canary": 2})
        await stage.watch.poll_labels()
        assert stage.fleet.states() == {2: "AVAILABLE", 3: "AVAILABLE"}
        assert not [line for line in stage.fleet.happened() if line.startswith("compare")]
        stage.stock.files["digits", 1] = "older weights"
        change_labels(stage.stock.base / "digits", {"canary": 1})
        await stage.watch.poll_labels()
        assert "compare digits 2 with digits 1" in stage.fleet.happened(), "it takes over a label"

    play(scene)
    assert "digits version 3: it does not answer as its files before (10 requests compared" in caplog.text


def test_requests_go_to_labels_by_weights_that_settings_files_and_callers_set(play: Play) -> None:
    """The last change counts; a label without its version gets no weight, and an unknown label is refused."""

    async def scene(stage: Stage) -> None:
        base = stage.stock.base / "digits"

        def shares() -> dict[str, int]:
            return dict(stage.fleet.routes["digits"].shares)

        stage.stock.files["digits", 7] = "new weights"
        change_labels(base, {"default": 3, "next": 7})
        store_canary(base, Canary({"default": 90, "next": 10, "later": 50}, "key"))
        stage.fleet.broken = {7}
        await stage.watch.poll_labels()
        assert shares() == {"3": 90}
        stage.fleet.broken = set()
        await stage.rollout.load("digits")
        assert (shares(), stage.fleet.routes["digits"].by) == ({"3": 90, "7": 10}, "key")
        await stage.rollout.shift("digits", Canary({"default": 1, "next": 1}, shadow={"next": 5}))
        assert (shares(), dict(stage.fleet.routes["digits"].shadows)) == ({"3": 1, "7": 1}, {"7": 5})
        await stage.rollout.load("digits")
        assert shares() == {"3": 1, "7": 1}, "the file says nothing new"
        store_canary(base, Canary())
        await stage.watch.poll_labels()
        assert shares() == {}
        with pytest.raises(RequestError, match="it has no label 'later'; it has default, next"):
            await stage.rollout.shift("digits", Canary({"later": 1}))
        with pytest.raises(UnknownService, match="it is not loaded"):
            await stage.rollout.shift("letters", Canary())
        texts = [entry["text"] for entry in stage.rollout.events.listed() if entry["event"] == "weights"]
        assert texts == [
            "default=90, next=10, later=50 by key",
            "default=1, next=1; a copy of 5 % to next",
            "off",
        ]

    play(scene)


def test_a_version_that_fails_loses_its_weight(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    """At once, until weights are set anew; what it had done before it got a weight does not count."""

    async def scene(stage: Stage) -> None:
        stage.stock.files["digits", 7] = "new weights"
        change_labels(stage.stock.base / "digits", {"default": 3, "next": 7})
        await stage.watch.poll_labels()
        old, new = (stage.memory.page(0).model(slot) for slot in (0, 1))
        trials = Trials(stage.catalogue, stage.rollout, stage.memory, lambda: 0.0)

        async def after(scored: int, failed: int) -> dict[str, int]:
            for _ in range(200):
                old.count_request(200)
            for status, count in ((200, scored), (500, failed)):
                for _ in range(count):
                    new.count_request(status)
            await trials.check()
            return dict(stage.fleet.routes["digits"].shares)

        assert await after(0, 200) == {}
        half = Canary({"default": 1, "next": 1})
        await stage.rollout.shift("digits", half)
        assert await after(0, 200) == {"3": 1, "7": 1}
        assert await after(200, 0) == {"3": 1, "7": 1}
        assert await after(150, 50) == {"3": 1}
        assert await after(150, 50) == {"3": 1}
        await stage.rollout.shift("digits", half)
        assert await after(0, 100) == {"3": 1, "7": 1}, "a new trial begins"
        assert await after(200, 0) == {"3": 1, "7": 1}
        (entry,) = [entry for entry in stage.rollout.events.listed() if entry["event"] == "rolled_back"]
        assert (entry["version"], stage.memory.totals().model(1).decisions()["rolled_back"]) == ("7", 1)
        assert (
            "the label next gets no requests any more: 50 of its 400 requests have failed, of the others 0 of"
            in (entry["text"])
        )

    play(scene)
    assert "digits version 7: the label next gets no requests any more" in caplog.text
