"""Loads and unloads as folders and labels change."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from tests.patience import PATIENCE_S
from tests.unit.supervisor.rollout.stage import Hang, Play, Stage

from stoker.models.available_models import AvailableModel
from stoker.models.labels import change_labels, labels_mark
from stoker.settings.versions import VersionPolicy
from stoker.supervisor import repository_poller as watch_module
from stoker.supervisor.background import in_thread
from stoker.supervisor.repository_poller import RepositoryPoller


def test_labels_that_could_not_be_followed_are_looked_at_again(
    play: Play, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk that is away for a moment loses no change; the log has each trouble once."""

    async def scene(stage: Stage) -> None:
        stage.stock.files["digits", 7] = "weights"
        await stage.rollout.load("digits", VersionPolicy.of((3, 7)))
        change_labels(stage.stock.base / "digits", {"stable": 3})
        entry, troubles = (
            stage.stock.find_model,
            [OSError(116, "Stale file handle")] * 3 + [KeyError("a fault")] * 2,
        )

        def away(name: str) -> AvailableModel:
            if troubles:
                raise troubles.pop(0)
            return entry(name)

        monkeypatch.setattr(stage.stock, "find_model", away)
        for _ in range(5):
            await stage.watch.poll_labels()
            assert stage.fleet.routes["digits"].labels == {}
        await stage.watch.poll_labels()
        assert stage.fleet.routes["digits"].labels == {"stable": 3}

    play(scene)
    assert caplog.text.count("the labels of digits stay as they are") == 2
    assert caplog.text.count("Stale file handle") == 1


def test_a_disk_that_hangs_holds_up_only_the_labels_on_it(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking at a file may take for ever: the loop goes on, and so do the labels of models in other folders."""
    hanging, go_on = threading.Event(), threading.Event()

    def mark(base: Path) -> tuple[int, int, int]:
        if base.name == "digits":
            hanging.set()
            assert go_on.wait(PATIENCE_S)
        return labels_mark(base)

    monkeypatch.setattr(watch_module, "labels_mark", mark)

    async def scene(stage: Stage) -> None:
        stage.stock.files["letters", 1] = "weights"
        await stage.rollout.load("letters")
        stage.rollout.bases["digits"] = stage.stock.base / "mounted" / "digits"
        change_labels(stage.stock.base / "letters", {"stable": 1})
        looking = asyncio.ensure_future(stage.watch.poll_labels())
        await in_thread(hanging.wait, 30)
        while not stage.fleet.routes["letters"].labels:  # noqa: ASYNC110  # threads move it
            await asyncio.sleep(0)
        await stage.watch.poll_labels()
        assert not looking.done()
        go_on.set()
        await looking

    play(scene)


def test_models_of_one_folder_are_looked_at_on_one_thread(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread for each model would take the cores from the requests, every second."""
    looks: list[int] = []

    def mark(base: Path) -> tuple[int, ...]:
        looks.append(threading.get_ident())
        return labels_mark(base)

    monkeypatch.setattr(watch_module, "labels_mark", mark)

    async def scene(stage: Stage) -> None:
        for name in (f"m{number}" for number in range(30)):
            stage.stock.files[name, 1] = "weights"
            stage.rollout.bases[name] = stage.stock.base / name
        await stage.watch.poll_labels()
        looks.clear()
        await stage.watch.poll_labels()
        assert len(looks) > 30
        assert len(set(looks)) == 1

    play(scene)


def test_labels_are_followed_while_another_model_hangs(play: Play) -> None:
    """Also that of the one that hangs is, once it has timed out: it may have been moved back meanwhile."""

    async def scene(stage: Stage) -> None:
        files = stage.stock.files
        files.update({("digits", 7): "hangs", ("letters", 1): "weights", ("letters", 2): "weights"})
        stage.stock.policies["letters"] = (1,)
        await stage.rollout.load("letters")
        await stage.watch.poll_labels()
        hang = stage.fleet.hanging["digits"] = Hang()
        change_labels(stage.stock.base / "digits", {"stable": 7})
        looking = asyncio.ensure_future(stage.watch.poll_labels())
        await hang.begun.wait()
        change_labels(stage.stock.base / "digits", {"stable": 3})
        change_labels(stage.stock.base / "letters", {"canary": 2})
        # The first look may still be at the letters, which the next one then leaves out.
        async with asyncio.timeout(PATIENCE_S):
            while stage.fleet.routes["letters"].labels != {"canary": 2}:
                await stage.watch.poll_labels()
                await asyncio.sleep(0)
        assert stage.fleet.routes["letters"].labels == {"canary": 2}
        assert not looking.done()
        hang.over.set()
        await looking
        await stage.watch.poll_labels()
        assert stage.fleet.routes["digits"].labels == {"stable": 3}
        assert stage.fleet.states() == {3: "AVAILABLE", 7: "END"}

    play(scene)


def test_the_watch_follows_labels_while_it_loads(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that hangs keeps it neither from looking further nor from being ended."""
    monkeypatch.setattr(watch_module, "_LABELS_S", 0.0)

    async def scene(stage: Stage) -> None:
        files = stage.stock.files
        files.update({("digits", 7): "hangs", ("letters", 1): "weights", ("letters", 2): "weights"})
        stage.stock.policies["letters"] = (1,)
        await stage.rollout.load("letters")
        hang = stage.fleet.hanging["digits"] = Hang()
        watching = asyncio.ensure_future(RepositoryPoller(stage.rollout, stage.stock, poll_s=1e-9).run())
        await hang.begun.wait()
        other = stage.fleet.hanging["letters"] = Hang()
        change_labels(stage.stock.base / "letters", {"canary": 2})
        await other.begun.wait()
        assert stage.fleet.states() == {3: "AVAILABLE", 7: "LOADING"}
        assert stage.fleet.states("letters") == {1: "AVAILABLE", 2: "LOADING"}
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching

    play(scene)


def test_the_poller_loads_versions_with_complete_files(play: Play) -> None:
    """A version whose files still change, or that holds no model yet, is left alone, and so is the one before."""

    async def scene(stage: Stage) -> None:
        stage.stock.files["digits", 7] = "a part"
        await stage.look()
        stage.stock.files["digits", 7] = "a larger part"
        stage.stock.files["digits", 9] = ""
        stage.stock.broken = {("digits", 9)}
        await stage.look()
        assert stage.fleet.happened() == []
        await stage.look()
        assert stage.fleet.states() == {3: "END", 7: "AVAILABLE"}
        stage.stock.broken = set()
        await stage.look(2)
        assert stage.fleet.states() == {3: "END", 7: "END", 9: "AVAILABLE"}

    play(scene)


def test_the_poller_unloads_vanished_versions(play: Play) -> None:
    """A version that is gone gives way to the newest that is left, a model that is gone to nothing."""

    async def scene(stage: Stage) -> None:
        files = stage.stock.files
        files["letters", 1] = files["digits", 7] = "weights"
        await stage.look(2)
        assert (stage.fleet.states("digits"), stage.fleet.states("letters")) == (
            {3: "END", 7: "AVAILABLE"},
            {1: "AVAILABLE"},
        )
        del files["digits", 7], files["letters", 1]
        await stage.look(2)
        assert stage.fleet.states("digits") == {3: "AVAILABLE", 7: "END"}
        assert (stage.fleet.states("letters"), stage.fleet.routes["letters"].default) == ({1: "END"}, None)
        stage.stock.away = True
        await stage.look(2)
        assert stage.fleet.states("digits") == {3: "AVAILABLE", 7: "END"}

    play(scene)


def test_the_poller_does_not_repeat_failed_loads(play: Play) -> None:
    """Only when its files have changed and come to rest; until then the old version stays."""

    async def scene(stage: Stage) -> None:
        stage.stock.files["digits", 7] = "no weights"
        stage.fleet.broken = {7}
        await stage.look(2)
        stage.fleet.broken = set()
        await stage.look(3)
        assert stage.fleet.states() == {3: "AVAILABLE", 7: "END"}
        stage.stock.files["digits", 7] = "weights"
        await stage.look()
        assert stage.fleet.states() == {3: "AVAILABLE", 7: "END"}
        await stage.look()
        assert stage.fleet.states() == {3: "END", 7: "AVAILABLE"}

    play(scene)


def test_a_version_that_is_replaced_in_its_place_is_not_gone(play: Play) -> None:
    """While somebody copies new files over a served version, what was loaded goes on."""

    async def scene(stage: Stage) -> None:
        stage.stock.files["digits", 2] = "old weights"
        stage.stock.broken = {("digits", 3)}
        await stage.look(2)
        assert stage.fleet.happened() == []
        stage.stock.broken = set()
        stage.stock.files["digits", 3] = "new weights"
        await stage.look(2)
        assert [line for line in stage.fleet.happened() if "load" in line] == [
            "load digits 3",
            "unload digits 3",
        ]

    play(scene)
