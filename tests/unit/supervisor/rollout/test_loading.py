"""Loading, switching and unloading versions while they are served: what happens in which order, and when it fails."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.unit.supervisor.rollout.stage import Hang, Play, Stage

from stoker.deployment import Deployment
from stoker.errors import LoadFailed, LoadTimeout, NotReady, RepositoryError, RequestError, UnknownService
from stoker.metrics.layout import MODEL_SLOTS
from stoker.models.available_models import AvailableModel
from stoker.settings.choices import Adjustments
from stoker.settings.model import ModelSettings
from stoker.settings.versions import VersionPolicy


def test_model_broken_at_the_start_is_loaded_once_mended(play: Play) -> None:
    """It is listed with its reason; only a change or a request to load makes the server try it again."""

    async def scene(stage: Stage) -> None:
        index = await stage.rollout.index(ready=False)
        assert [(entry["name"], entry["state"], entry.get("reason")) for entry in index] == [
            ("digits", "READY", None),
            ("faces", "UNAVAILABLE", "faces hangs"),
            ("letters", "UNAVAILABLE", "letters is no model"),
        ]
        await stage.look(3)
        assert stage.fleet.happened() == []
        await stage.rollout.load("faces")
        stage.stock.files["letters", 2] = "mended"
        await stage.look(2)
        assert stage.fleet.happened() == ["faces is 4", "load faces 4", "faces is 4", "letters is 2",
                                          "load letters 2", "letters is 2"]  # fmt: skip
        assert stage.fleet.states("letters") == {2: "AVAILABLE"}

    play(scene, with_broken=True)


def test_start_with_a_newest_version_cut_short_serves_the_one_before(play: Play) -> None:
    """The newest one that can be loaded, until a newer one is whole; models that are served stay as they are."""

    async def scene(stage: Stage) -> None:
        for name, number in (("digits", 1), ("faces", 1), ("faces", 2), ("faces", 3), ("letters", 1)):
            stage.stock.files[name, number] = "old"
        stage.fleet.broken = {3}
        stage.fleet.happened()
        served = await stage.rollout.serve_earlier(stage.stock.find_models())
        assert [(model.name, model.version) for model in served] == [("faces", 2), ("letters", 1)]
        assert [line for line in stage.fleet.happened() if line.startswith(("load", "unload"))] == [
            *("load faces 2", "load letters 1"),
        ]
        await stage.look(3)
        assert not any(line.startswith("unload") for line in stage.fleet.happened())
        assert stage.fleet.states("letters")[1] == "AVAILABLE"
        stage.stock.files["letters", 2] = "mended"
        await stage.look(2)
        assert stage.fleet.routes["letters"].default == 2
        assert "unload letters 1" in stage.fleet.happened()

    play(scene, with_broken=True)


def test_unreachable_model_changes_nothing(play: Play) -> None:
    """A model that cannot be looked up just now is not unloaded; a request to load it says why."""

    async def scene(stage: Stage) -> None:
        away = AvailableModel("digits", ModelSettings(), (), lambda _: 1 / 0, error=RepositoryError("away"))  # type: ignore[arg-type,return-value]
        for available in ({"digits": away}, {"folder": msgspec.structs.replace(away, name="folder")}):
            await stage.rollout.refresh(available, [])
        stage.stock.find_model = lambda _: away  # type: ignore[method-assign]
        with pytest.raises(LoadFailed, match="failed to load 'digits', away"):
            await stage.rollout.load("digits")
        with pytest.raises(RepositoryError, match="away"):
            await stage.rollout.follow(away)
        assert (stage.fleet.happened(), stage.fleet.states()) == ([], {3: "AVAILABLE"})

    play(scene)


def test_a_new_version_takes_over_before_the_old_one_leaves(play: Play) -> None:
    """It is loaded beside the old one, then names mean it, then the old one is unloaded and let go."""

    async def scene(stage: Stage) -> None:
        stage.stock.files["digits", 7] = "new weights"
        await stage.rollout.load("digits")
        assert stage.fleet.happened() == [
            "digits is 3",
            "load digits 7",
            "digits is 7",
            "unload digits 3",
            "digits is 7",
        ]
        assert stage.fleet.states() == {3: "END", 7: "AVAILABLE"}
        assert stage.stock.held == {1}

    play(scene)


def test_a_load_can_say_how_a_model_is_batched(play: Play) -> None:
    """Versions with other settings are loaded anew, once; further versions get the settings of the last load."""

    async def scene(stage: Stage) -> None:
        def served(version: int) -> Adjustments:
            deployed = stage.catalogue.models["digits"].versions[version].served
            assert deployed is not None
            return deployed.adjustments

        wanted = Adjustments(max_batch_rows=4)
        for _ in range(2):
            await stage.rollout.load("digits", adjustments=wanted)
        assert stage.fleet.happened().count("load digits 3") == 1
        assert served(3) == wanted
        stage.stock.files["digits", 7] = "new weights"
        await stage.rollout.load("digits", version=7)
        assert served(7) == wanted
        stage.stock.files["digits", 8] = "weights that cannot be loaded"
        stage.fleet.broken.add(8)
        with pytest.raises(LoadFailed):
            await stage.rollout.load("digits", adjustments=Adjustments(instances=2))
        await stage.rollout.load("digits", version=3)
        assert served(3) == wanted, "what could not be loaded so changes nothing"
        del stage.stock.files["digits", 8]
        await stage.rollout.load("digits")
        assert served(7) == Adjustments()

    play(scene)


def test_a_load_that_fails_changes_nothing_that_is_served(play: Play) -> None:
    """The request gets the reason, which stays in the index; the next load tries again."""

    async def scene(stage: Stage) -> None:
        stage.stock.files["digits", 7] = "no weights"
        stage.fleet.broken = {7}
        with pytest.raises(LoadFailed, match="failed to load 'digits', version 7: version 7 is no model"):
            await stage.rollout.load("digits")
        assert stage.fleet.happened() == ["digits is 3"]
        assert stage.stock.held == set()
        assert await stage.rollout.index(ready=False) == [
            {"name": "digits", "version": "3", "state": "READY"},
            {"name": "digits", "version": "7", "state": "UNAVAILABLE", "reason": "version 7 is no model"},
        ]
        stage.fleet.broken = set()
        await stage.rollout.load("digits")
        assert stage.fleet.states() == {3: "END", 7: "AVAILABLE"}

    play(scene)


def test_a_fault_while_a_version_is_taken_is_a_load_that_failed(
    play: Play, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not LOADING for ever; the log has the traceback, and the next load tries again."""

    async def scene(stage: Stage) -> None:
        stage.stock.files["digits", 7] = "weights"
        prepare = stage.stock.prepare

        def faulty(*arguments: Any) -> Deployment:
            prepare(*arguments)
            raise KeyError("packages")

        monkeypatch.setattr(stage.stock, "prepare", faulty)
        with pytest.raises(LoadFailed, match=r"version 7: an unexpected error, .*KeyError\('packages'\)"):
            await stage.rollout.load("digits")
        assert stage.fleet.states() == {3: "AVAILABLE", 7: "END"}
        assert stage.fleet.routes["digits"].versions[1].status.error == "load_failed"
        assert stage.stock.held == set()
        monkeypatch.setattr(stage.stock, "prepare", prepare)
        await stage.rollout.load("digits")
        assert stage.fleet.states() == {3: "END", 7: "AVAILABLE"}

    play(scene)
    assert "loading digits version 7 failed" in caplog.text
    assert "Traceback" in caplog.text


def test_a_reference_is_no_name(play: Play) -> None:
    """`digits:7` would be another model with that name: registered, and without the settings of `digits`."""

    async def scene(stage: Stage) -> None:
        stage.stock.files["digits:7", 7] = "weights of that other model"
        for name in ("digits:7", "../digits", ""):
            with pytest.raises(UnknownService, match="no model can be called so"):
                await stage.rollout.load(name)
        assert stage.fleet.happened() == []

    play(scene)


def test_frontends_get_the_code_of_a_failure_until_it_is_over(play: Play) -> None:
    """A version that was unloaded, or is loaded after all, has not failed."""

    async def scene(stage: Stage) -> None:
        def shown() -> list[tuple[str, str, str]]:
            statuses = [version.status for version in stage.fleet.routes["digits"].versions]
            return [(status.state, status.reason, status.error) for status in statuses]

        stage.stock.files["digits", 7] = "no weights"
        stage.fleet.broken = {7}
        with pytest.raises(LoadFailed):
            await stage.rollout.load("digits")
        assert shown() == [("AVAILABLE", "", ""), ("END", "version 7 is no model", "load_failed")]
        stage.fleet.broken = set()
        await stage.rollout.load("digits")
        assert shown() == [("END", "unloaded", ""), ("AVAILABLE", "", "")]
        stage.stock.files["digits", 7] = "other weights, and no good ones"
        stage.fleet.broken = {7}
        with pytest.raises(LoadFailed):
            await stage.rollout.load("digits")
        assert shown()[1] == ("AVAILABLE", "version 7 is no model", "load_failed"), "what was loaded goes on"

    play(scene)


def test_a_load_that_hangs_holds_up_no_other_model(play: Play) -> None:
    """Others are loaded and unloaded meanwhile; the next change of the same model waits for its end."""

    async def scene(stage: Stage) -> None:
        stage.stock.files.update({("digits", 7): "hangs", ("letters", 1): "weights"})
        hang = stage.fleet.hanging["digits"] = Hang()
        loading = asyncio.ensure_future(stage.rollout.load("digits"))
        await hang.begun.wait()
        assert stage.fleet.states() == {3: "AVAILABLE", 7: "LOADING"}
        await stage.rollout.load("letters")
        assert stage.fleet.states("letters") == {1: "AVAILABLE"}
        await stage.rollout.unload("letters")
        unloading = asyncio.ensure_future(stage.rollout.unload("digits"))
        await stage.rollout.load("letters")
        assert not loading.done()
        assert not unloading.done()
        hang.over.set()
        with pytest.raises(LoadTimeout, match=r"failed to load 'digits', version 7: .* not loaded in time"):
            await loading
        await unloading
        assert stage.fleet.states() == {3: "END", 7: "END"}
        assert stage.fleet.routes["digits"].versions[1].status.error == "load_timeout"

    play(scene)


def test_a_load_fails_by_time_alone_if_nothing_else_has_failed(play: Play) -> None:
    """Of two versions one hangs and one is no model: whoever asked is not told to wait longer."""

    async def scene(stage: Stage) -> None:
        stage.stock.files.update({("digits", 7): "hangs", ("digits", 8): "no weights"})
        stage.stock.policies["digits"] = "all"
        hang = stage.fleet.hanging["digits"] = Hang()
        loading = asyncio.ensure_future(stage.rollout.load("digits"))
        await hang.begun.wait()
        stage.fleet.hanging, stage.fleet.broken = {}, {8}
        hang.over.set()
        with pytest.raises(LoadFailed, match=r"version 7: .* in time; version 8: .* is no model") as failed:
            await loading
        assert failed.value.code == "load_failed"

    play(scene)


def test_changed_files_are_loaded_beside_the_served_version(play: Play) -> None:
    """The same number is loaded again and replaces itself; files that are the same are left alone."""

    async def scene(stage: Stage) -> None:
        await stage.rollout.load("digits")
        assert stage.fleet.happened() == []
        stage.stock.files["digits", 3] = "other weights"
        await stage.rollout.load("digits")
        assert [line for line in stage.fleet.happened() if "load" in line] == [
            "load digits 3",
            "unload digits 3",
        ]
        assert stage.fleet.states() == {3: "AVAILABLE"}
        (version,) = stage.fleet.routes["digits"].versions
        assert version.number in stage.stock.held
        stage.stock.files["digits", 3] = "broken weights"
        stage.fleet.broken = {3}
        with pytest.raises(LoadFailed):
            await stage.rollout.load("digits")
        assert stage.fleet.states() == {3: "AVAILABLE"}
        assert stage.fleet.routes["digits"].versions[0].number == version.number

    play(scene)


def test_other_policies_and_single_versions(play: Play) -> None:
    """A load can bring another policy, or add one version to those that are served."""

    async def scene(stage: Stage) -> None:
        for version in (5, 7, 9):
            stage.stock.files["digits", version] = "weights"
        await stage.rollout.load("digits", VersionPolicy.of((3, 7)))
        assert stage.fleet.states() == {3: "AVAILABLE", 7: "AVAILABLE"}
        await stage.rollout.load("digits", version=5)
        assert (stage.fleet.routes["digits"].default, sorted(stage.fleet.states())) == (7, [3, 5, 7])
        await stage.rollout.unload("digits", 7)
        assert stage.fleet.routes["digits"].default == 5
        await stage.rollout.load("digits")
        assert stage.fleet.states() == {3: "END", 5: "END", 7: "END", 9: "AVAILABLE"}
        with pytest.raises(RequestError, match="digits has no version 8"):
            await stage.rollout.load("digits", version=8)

    play(scene)


def test_unloading(play: Play) -> None:
    """The name means nothing before the last version leaves; what is not served cannot be unloaded."""

    async def scene(stage: Stage) -> None:
        with pytest.raises(UnknownService, match="'digits' version 0: it is not loaded"):
            await stage.rollout.unload("digits", 0)
        await stage.rollout.unload("digits")
        assert stage.fleet.happened() == ["digits is None", "unload digits 3", "digits is None"]
        assert stage.fleet.states() == {3: "END"}
        for name, version in (("letters", None), ("digits", 3), ("digits", None)):
            with pytest.raises(UnknownService, match="is not loaded"):
                await stage.rollout.unload(name, version)
        with pytest.raises(UnknownService, match="no model 'letters'"):
            await stage.rollout.load("letters")
        await stage.rollout.load("digits")
        assert stage.fleet.states() == {3: "AVAILABLE"}

    play(scene)


def test_nothing_is_changed_while_the_server_starts(play: Play) -> None:
    """Loads and unloads are refused until the models of the start are loaded."""

    async def scene(stage: Stage) -> None:
        with pytest.raises(NotReady):
            await stage.rollout.load("digits")
        with pytest.raises(NotReady):
            await stage.rollout.unload("digits")

    play(scene, begins=False)


def test_a_version_that_gets_the_slot_of_another_begins_with_zeros(play: Play) -> None:
    """More versions than slots can be served one after the other; the oldest counters make room."""

    async def scene(stage: Stage) -> None:
        stage.memory.page(0).model(0).count_request(503)
        for version in range(4, 4 + MODEL_SLOTS):
            stage.stock.files["digits", version] = "weights"
            await stage.rollout.load("digits")
            del stage.stock.files["digits", version - 1]
        last = stage.fleet.routes["digits"].versions[-1]
        assert (last.status.slot, last.status.state) == (0, "AVAILABLE")
        assert 3 not in stage.fleet.states()
        assert stage.memory.totals().model(0).requests()[503] == 0

    play(scene)


def test_the_index_shows_models_that_could_be_loaded(play: Play) -> None:
    """Models that were never loaded have only their names; `ready` leaves out all that is not served."""

    async def scene(stage: Stage) -> None:
        stage.stock.files["letters", 1] = stage.stock.files["digits", 12] = "weights"
        stage.stock.files["digits", 14] = ""
        stage.stock.broken = {("digits", 14)}
        assert await stage.rollout.index(ready=False) == [
            {"name": "digits", "version": "3", "state": "READY"},
            {"name": "digits", "version": "12", "state": "UNAVAILABLE"},
            {"name": "digits", "version": "14", "state": "UNAVAILABLE", "reason": "half"},
            {"name": "letters"},
        ]
        assert await stage.rollout.index(ready=True) == [{"name": "digits", "version": "3", "state": "READY"}]

    play(scene)


def test_a_served_version_moves_to_another_process(play: Play) -> None:
    """It is loaded again before it is let go; not from changed files, nor if it was loaded anew meanwhile."""

    async def scene(stage: Stage) -> None:
        served = stage.catalogue.models["digits"].versions[3].served
        assert served is not None
        await stage.rollout.move(served)
        assert stage.fleet.happened() == ["load digits 3", "digits is 3", "unload digits 3"]
        again = stage.catalogue.models["digits"].versions[3].served
        assert again is not None
        assert again.number != served.number
        await stage.rollout.move(served)
        stage.stock.files["digits", 3] = "other weights"
        with pytest.raises(LoadFailed, match="its files have changed"):
            await stage.rollout.move(again)
        assert stage.fleet.happened() == []

    play(scene)
