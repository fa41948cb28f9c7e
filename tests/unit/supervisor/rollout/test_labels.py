"""Labels that bring, keep and move versions."""

from __future__ import annotations

import pytest
from tests.unit.supervisor.rollout.stage import Play, Stage

from stoker.errors import LoadFailed, RequestError, UnknownService
from stoker.models.labels import change_labels, stored_labels


def test_labels_bring_and_take_versions(play: Play) -> None:
    """A label is followed when its file is replaced: its version is loaded first, and the one that it leaves goes."""

    async def scene(stage: Stage) -> None:
        base = stage.stock.base / "digits"
        for version in (5, 7):
            stage.stock.files["digits", version] = "weights"
        await stage.watch.poll_labels()
        assert stage.fleet.happened() == []
        change_labels(base, {"canary": 5})
        await stage.watch.poll_labels()
        assert stage.fleet.routes["digits"].labels == {"canary": 5}
        assert stage.fleet.routes["digits"].default == 3, "a canary is for those who ask for it"
        with pytest.raises(RequestError, match="it has the label 'canary'"):
            await stage.rollout.unload("digits", 5)
        change_labels(base, {"canary": 7, "default": 3})
        await stage.watch.poll_labels()
        assert stage.fleet.routes["digits"].labels == {"canary": 7, "default": 3}
        assert stage.fleet.routes["digits"].default == 3
        assert stage.fleet.states() == {3: "AVAILABLE", 5: "END", 7: "AVAILABLE"}
        change_labels(base, {}, ["canary", "default"])
        await stage.watch.poll_labels()
        assert stage.fleet.states() == {3: "AVAILABLE", 5: "END", 7: "END"}
        (base / "labels.json").write_text("nonsense")
        await stage.watch.poll_labels()
        assert stage.fleet.states()[3] == "AVAILABLE"

    play(scene)


def test_a_label_stays_if_its_new_version_does_not_load(play: Play) -> None:
    """Callers of the label always find a version."""

    async def scene(stage: Stage) -> None:
        base = stage.stock.base / "digits"
        stage.stock.files["digits", 7] = "no weights"
        stage.fleet.broken = {7}
        for version in (3, 7):
            change_labels(base, {"stable": version})
            await stage.watch.poll_labels()
        assert stage.fleet.routes["digits"].labels == {"stable": 3}
        assert stage.fleet.states() == {3: "AVAILABLE", 7: "END"}

    play(scene)


def test_unloading_a_version_leaves_those_with_labels(play: Play) -> None:
    """Requests for the label are served on; requests without a label find no default."""

    async def scene(stage: Stage) -> None:
        stage.stock.files["digits", 7] = "weights"
        change_labels(stage.stock.base / "digits", {"canary": 7})
        await stage.watch.poll_labels()
        await stage.rollout.unload("digits", 3)
        assert stage.fleet.states() == {3: "END", 7: "AVAILABLE"}
        assert (stage.fleet.routes["digits"].default, stage.fleet.routes["digits"].labels) == (
            None,
            {"canary": 7},
        )
        await stage.rollout.unload("digits")
        assert stage.fleet.states() == {3: "END", 7: "END"}
        change_labels(stage.stock.base / "digits", {"canary": 3})
        await stage.watch.poll_labels()
        assert stage.fleet.states() == {3: "END", 7: "END"}, "a label brings back no model that was unloaded"

    play(scene)


def test_a_label_that_cannot_move_keeps_its_version_and_nothing_else(play: Play) -> None:
    """The version that it should leave stays, whatever else comes and goes; the default is not held up by it."""

    async def scene(stage: Stage) -> None:
        for version in (5, 9, 12):
            stage.stock.files["digits", version] = "weights"
        base = stage.stock.base / "digits"
        change_labels(base, {"stable": 5})
        await stage.watch.poll_labels()
        stage.fleet.broken = {9}
        change_labels(base, {"stable": 9})
        with pytest.raises(LoadFailed, match="version 9"):
            await stage.rollout.load("digits")
        assert stage.fleet.states() == {3: "END", 5: "AVAILABLE", 9: "END", 12: "AVAILABLE"}
        assert stage.fleet.routes["digits"].labels == {"stable": 5}
        assert stage.fleet.routes["digits"].default == 12
        with pytest.raises(RequestError, match="it has the label 'stable'"):
            await stage.rollout.unload("digits", 5)
        stage.fleet.broken = set()
        await stage.rollout.load("digits")
        assert stage.fleet.states() == {3: "END", 5: "END", 9: "AVAILABLE", 12: "AVAILABLE"}

    play(scene)


def test_a_label_that_is_moved_before_its_version_has_come_waits_for_it(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    """It goes on meaning what it meant, by a load too; the log says so once; it moves when the version is there."""

    async def scene(stage: Stage) -> None:
        base, files = stage.stock.base / "digits", stage.stock.files
        files["digits", 5] = "weights"
        change_labels(base, {"stable": 3})
        await stage.look(2)
        change_labels(base, {"stable": 7, "canary": 8})
        await stage.watch.poll_labels()
        await stage.look(3)
        await stage.rollout.load("digits")
        assert stage.fleet.routes["digits"].labels == {"stable": 3}
        assert stage.fleet.states() == {3: "AVAILABLE", 5: "AVAILABLE"}
        assert caplog.messages == [
            "the label 'canary' of digits means nothing: there is no version 8 to load",
            "the label 'stable' of digits goes on meaning version 3: there is no version 7 to load",
        ]
        del files["digits", 3]
        await stage.look(2)
        await stage.rollout.load("digits")
        assert stage.fleet.routes["digits"].labels == {"stable": 3}, "its files are gone, it has been loaded"
        files["digits", 7] = "weights"
        await stage.look(2)
        assert stage.fleet.routes["digits"].labels == {"stable": 7}
        assert stage.fleet.states() == {3: "END", 5: "END", 7: "AVAILABLE"}

    play(scene)


def test_a_label_goes_with_its_version(play: Play) -> None:
    """A version that was deleted, and whose label was not moved, is unloaded as one without a label is."""

    async def scene(stage: Stage) -> None:
        base, files = stage.stock.base / "digits", stage.stock.files
        files["digits", 5] = "weights"
        change_labels(base, {"stable": 3})
        await stage.look(2)
        del files["digits", 3]
        await stage.look(2)
        assert stage.fleet.routes["digits"].labels == {}
        assert stage.fleet.states() == {3: "END", 5: "AVAILABLE"}

    play(scene)


def test_moving_a_label_loads_no_files_that_have_changed(play: Play) -> None:
    """A moved label does not mean that the files of other versions are complete."""

    async def scene(stage: Stage) -> None:
        stage.stock.files["digits", 3] = "a part of other weights"
        stage.stock.files["digits", 7] = "weights"
        change_labels(stage.stock.base / "digits", {"canary": 7, "stable": 3})
        await stage.watch.poll_labels()
        assert [line for line in stage.fleet.happened() if "load" in line] == ["load digits 7"]
        assert stage.fleet.routes["digits"].labels == {"canary": 7, "stable": 3}

    play(scene)


def test_a_label_of_a_version_that_is_being_replaced_stays(play: Play) -> None:
    """Its folder holds no model just now, and what was loaded from it goes on under its name."""

    async def scene(stage: Stage) -> None:
        stage.stock.files["digits", 7] = "weights"
        change_labels(stage.stock.base / "digits", {"stable": 3})
        await stage.look(2)
        stage.stock.broken = {("digits", 3)}
        await stage.look(2)
        assert stage.fleet.routes["digits"].labels == {"stable": 3}
        assert stage.fleet.states() == {3: "AVAILABLE", 7: "AVAILABLE"}

    play(scene)


def test_a_default_is_chosen_by_the_api(play: Play) -> None:
    """The label lies beside the versions, so that it outlasts the server; only what is served can be chosen."""

    async def scene(stage: Stage) -> None:
        base = stage.stock.base / "digits"
        for version in (5, 7):
            stage.stock.files["digits", version] = "weights"
        await stage.rollout.load("digits", version=5)
        assert stage.fleet.routes["digits"].default == 5
        await stage.rollout.set_default("digits", 3)
        assert stage.fleet.routes["digits"].default == 3
        assert stage.fleet.states() == {3: "AVAILABLE", 5: "AVAILABLE"}, "nothing else is loaded or unloaded"
        assert stored_labels(base) == {"default": 3}
        with pytest.raises(RequestError, match="it has the label 'default'"):
            await stage.rollout.unload("digits", 3)
        for name, version in (("digits", 7), ("letters", 1)):
            with pytest.raises(UnknownService, match="is not loaded"):
                await stage.rollout.set_default(name, version)
        (base / "labels.json").write_text("nonsense")
        with pytest.raises(RequestError, match="the default of 'digits' cannot be changed"):
            await stage.rollout.set_default("digits", 5)
        assert stage.fleet.routes["digits"].default == 3

    play(scene)
