"""Loading, switching and unloading versions while they are served: what happens in which order, and when it fails."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE_S
from tests.puppets import metric_memory

from stoker.control.frontend_messages import Route
from stoker.deployment import Deployment
from stoker.errors import (
    LoadFailed,
    LoadTimeout,
    NotReady,
    OperatorError,
    ParityFailed,
    RepositoryError,
    RequestError,
    UnknownModel,
    UnknownService,
)
from stoker.metrics.layout import MODEL_SLOTS
from stoker.metrics.memory import MetricMemory
from stoker.models.labels import change_labels, labels_mark, store_canary
from stoker.models.offers import Offer
from stoker.models.sources import ModelSource
from stoker.settings.choices import Adjustments
from stoker.settings.model import ModelSettings
from stoker.settings.names import VersionPolicy
from stoker.settings.traffic import Canary, Parity
from stoker.supervisor import repository_poller as watch_module
from stoker.supervisor.background import in_thread
from stoker.supervisor.catalogue import Catalogue
from stoker.supervisor.repository_poller import RepositoryPoller
from stoker.supervisor.rollout import Rollout, Trials
from stoker.takeover.comparison import Comparison, FieldDifference


@dataclass
class Hang:
    """A model that hangs while it is loaded: it says when it does, and the test says when its time is up."""

    begun: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)


class PuppetFleet:
    """Processes that load what they are told to, and write down what happens.

    Attributes:
        log: What happened, in order.
        broken: Versions that cannot be loaded.
        hanging: The models that hang while they are loaded, by name.
        told: What frontends were told last, by model.
        comparison: What comes of comparing two versions.
    """

    def __init__(self) -> None:
        self.log: list[str] = []
        self.broken: set[int] = set()
        self.hanging: dict[str, Hang] = {}
        self.told: dict[str, Route] = {}
        self.comparison: Comparison | None = None

    async def add(self, model: Deployment) -> None:
        await asyncio.sleep(0)
        if hang := self.hanging.get(model.name):
            hang.begun.set()
            await hang.over.wait()
            raise LoadTimeout(f"version {model.version} was not loaded in time")
        if model.version in self.broken:
            raise LoadFailed(f"version {model.version} is no model")
        self.log.append(f"load {_named(model)}")

    async def remove(self, model: Deployment) -> None:
        self.log.append(f"unload {_named(model)}")
        await asyncio.sleep(0)

    async def compare(self, old: Deployment, new: Deployment) -> Comparison | None:
        await asyncio.sleep(0)
        self.log.append(f"compare {_named(old)} with {_named(new)}")
        return self.comparison

    def publish(self, route: Route) -> None:
        self.told[route.name] = route
        line = f"{route.name} is {route.default}"
        if line not in self.log[-1:]:
            self.log.append(line)

    def happened(self) -> list[str]:
        """What happened since this was asked last."""
        log, self.log = self.log, []
        return log

    def states(self, name: str = "digits") -> dict[int, str]:
        """The states that frontends know of."""
        return {version.version: version.standing.state for version in self.told[name].versions}


def _named(model: Deployment) -> str:
    return f"{model.name} {model.version}"


@dataclass
class PuppetStock:
    """Models in a folder that is only thought of.

    Attributes:
        files: The content of each version by name and number.
        policies: The setting `versions` of models.
        broken: Versions that hold no model yet.
        base: A real folder for labels.
        away: Whether the file system is away.
        held: The numbers of loads that were taken and not put back.
        parity: How versions are held against each other.
    """

    base: Path
    files: dict[tuple[str, int], str]
    policies: dict[str, Any] = field(default_factory=dict)
    broken: set[tuple[str, int]] = field(default_factory=set)
    away: bool = False
    held: set[int] = field(default_factory=set)
    parity: Parity = field(default_factory=Parity)

    def poll_keys(self) -> None:
        """They are never changed here."""

    keys_generation = 0

    def offers(self) -> dict[str, Offer]:
        if self.away:
            raise RepositoryError("the folder is away")
        return {name: self._offer(name) for name in dict.fromkeys(name for name, _ in self.files)}

    def offer(self, name: str) -> Offer:
        if name not in self.offers():
            raise UnknownModel(f"no model {name!r}")
        return self.offers()[name]

    def take(self, offer: Offer, version: int, slot: int, number: int) -> Deployment:
        self.held.add(number)
        return dataclasses.replace(
            self.deployed(offer.name, version, slot, number), adjustments=offer.adjustments
        )

    def put_back(self, number: int) -> None:
        self.held.discard(number)

    def deployed(self, name: str, version: int, slot: int = 0, number: int = 0) -> Deployment:
        return Deployment(
            name,
            version,
            "onnx",
            Path(name),
            Path(),
            max_batch_rows=4,
            max_body_bytes=64,
            number=number,
            slot=slot,
            fingerprint=self.files[name, version],
            parity=self.parity,
        )

    def _offer(self, name: str) -> Offer:
        versions = {version for model, version in self.files if model == name}
        broken = {version for model, version in self.broken if model == name}
        folder = self.base / name
        folder.mkdir(exist_ok=True)
        settings = ModelSettings(path=folder, versions=self.policies.get(name))
        reasons: dict[int, OperatorError] = {version: RepositoryError("half") for version in broken}
        return Offer(
            name, settings, tuple(sorted(versions - broken)), lambda v: self._source(name, v), reasons, folder
        )

    def _source(self, name: str, version: int) -> ModelSource:
        content = self.files[name, version]

        class Source(ModelSource):
            def fingerprint(self) -> str:
                return content

        return Source(name, version, "onnx", Path(name))


@dataclass
class Stage:
    """A server whose processes are puppets."""

    fleet: PuppetFleet
    stock: PuppetStock
    catalogue: Catalogue
    rollout: Rollout
    watch: RepositoryPoller
    memory: MetricMemory

    async def look(self, times: int = 1) -> None:
        """Let the watch look for versions."""
        for _ in range(times):
            await self.watch.poll()


Play = Callable[..., None]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Run a scene on a server that has begun with `digits` in version 3."""

    def run(
        scene: Callable[[Stage], Awaitable[None]],
        begins: bool = True,
        with_broken: bool = False,
        **policies: Any,
    ) -> None:
        stock = PuppetStock(tmp_path, {("digits", 3): "weights"}, policies)
        if with_broken:
            stock.files["faces", 4] = "more weights"
        fleet = PuppetFleet()
        memory = metric_memory()
        broken = {("letters", 2): LoadFailed("letters is no model")} if with_broken else {}
        if with_broken:
            stock.files["letters", 2] = "nonsense"
        begun = [stock.deployed("digits", 3), *([stock.deployed("faces", 4, 1, 1)] if with_broken else [])]
        catalogue = Catalogue(begun, stock.offers(), broken)

        async def perform() -> None:
            rollout = Rollout(catalogue, fleet, stock, memory)
            if begins:
                await rollout.begin(stock.offers(), {1: LoadTimeout("faces hangs")} if with_broken else {})
            stage_log = fleet.happened()
            assert ("unload faces 4" in stage_log) == with_broken
            await scene(
                Stage(fleet, stock, catalogue, rollout, RepositoryPoller(rollout, stock, 1.0), memory)
            )

        asyncio.run(perform())

    return run


def test_what_was_broken_at_the_start_is_loaded_when_it_is_mended(play: Play) -> None:
    """It is shown with its reason; a look that finds it unchanged does not try it, whoever asks for it does."""

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


def test_what_cannot_be_found_just_now_changes_nothing(play: Play) -> None:
    """Neither it nor anything that may have been found beside it is unloaded; who asks for it is told why."""

    async def scene(stage: Stage) -> None:
        away = Offer("digits", ModelSettings(), (), lambda _: 1 / 0, error=RepositoryError("away"))  # type: ignore[arg-type,return-value]
        for offers in ({"digits": away}, {"folder": dataclasses.replace(away, name="folder")}):
            await stage.rollout.refresh(offers, [])
        stage.stock.offer = lambda _: away  # type: ignore[method-assign]
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
    """What is served otherwise is loaded anew, once; further versions are so too, until a load says nothing of it."""

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
            assert stage.fleet.told["digits"].versions[1].standing.error == "parity_failed"
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
    """Whoever said it last; a label whose version is not there has none, and one that is unknown is refused."""

    async def scene(stage: Stage) -> None:
        base = stage.stock.base / "digits"

        def shares() -> dict[str, int]:
            return dict(stage.fleet.told["digits"].shares)

        stage.stock.files["digits", 7] = "new weights"
        change_labels(base, {"default": 3, "next": 7})
        store_canary(base, Canary({"default": 90, "next": 10, "later": 50}, "key"))
        stage.fleet.broken = {7}
        await stage.watch.poll_labels()
        assert shares() == {"3": 90}
        stage.fleet.broken = set()
        await stage.rollout.load("digits")
        assert (shares(), stage.fleet.told["digits"].by) == ({"3": 90, "7": 10}, "key")
        await stage.rollout.shift("digits", Canary({"default": 1, "next": 1}, shadow={"next": 5}))
        assert (shares(), dict(stage.fleet.told["digits"].shadows)) == ({"3": 1, "7": 1}, {"7": 5})
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
            await trials.look()
            return dict(stage.fleet.told["digits"].shares)

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


def test_a_load_that_fails_changes_nothing_that_is_served(play: Play) -> None:
    """Its reason is told to who asked and stays in the index; the next load tries again."""

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
        take = stage.stock.take

        def faulty(*arguments: Any) -> Deployment:
            take(*arguments)
            raise KeyError("packages")

        monkeypatch.setattr(stage.stock, "take", faulty)
        with pytest.raises(LoadFailed, match=r"version 7: an unexpected error, .*KeyError\('packages'\)"):
            await stage.rollout.load("digits")
        assert stage.fleet.states() == {3: "AVAILABLE", 7: "END"}
        assert stage.fleet.told["digits"].versions[1].standing.error == "load_failed"
        assert stage.stock.held == set()
        monkeypatch.setattr(stage.stock, "take", take)
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


def test_the_code_of_a_failure_is_told_to_frontends_and_forgotten_with_it(play: Play) -> None:
    """A version that was unloaded, or is loaded after all, has not failed."""

    async def scene(stage: Stage) -> None:
        def told() -> list[tuple[str, str, str]]:
            standings = [version.standing for version in stage.fleet.told["digits"].versions]
            return [(standing.state, standing.reason, standing.error) for standing in standings]

        stage.stock.files["digits", 7] = "no weights"
        stage.fleet.broken = {7}
        with pytest.raises(LoadFailed):
            await stage.rollout.load("digits")
        assert told() == [("AVAILABLE", "", ""), ("END", "version 7 is no model", "load_failed")]
        stage.fleet.broken = set()
        await stage.rollout.load("digits")
        assert told() == [("END", "unloaded", ""), ("AVAILABLE", "", "")]
        stage.stock.files["digits", 7] = "other weights, and no good ones"
        stage.fleet.broken = {7}
        with pytest.raises(LoadFailed):
            await stage.rollout.load("digits")
        assert told()[1] == ("AVAILABLE", "version 7 is no model", "load_failed"), "what was loaded goes on"

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
        assert stage.fleet.told["digits"].versions[1].standing.error == "load_timeout"

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


def test_labels_that_could_not_be_followed_are_looked_at_again(
    play: Play, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk that is away for a moment loses no change; the log has each trouble once."""

    async def scene(stage: Stage) -> None:
        stage.stock.files["digits", 7] = "weights"
        await stage.rollout.load("digits", VersionPolicy.of((3, 7)))
        change_labels(stage.stock.base / "digits", {"stable": 3})
        offer, troubles = (
            stage.stock.offer,
            [OSError(116, "Stale file handle")] * 3 + [KeyError("a fault")] * 2,
        )

        def away(name: str) -> Offer:
            if troubles:
                raise troubles.pop(0)
            return offer(name)

        monkeypatch.setattr(stage.stock, "offer", away)
        for _ in range(5):
            await stage.watch.poll_labels()
            assert stage.fleet.told["digits"].labels == {}
        await stage.watch.poll_labels()
        assert stage.fleet.told["digits"].labels == {"stable": 3}

    play(scene)
    assert caplog.text.count("the labels of digits stay as they are") == 2
    assert caplog.text.count("Stale file handle") == 1


def test_a_disk_that_hangs_holds_up_only_the_labels_on_it(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking at a file may take for ever: the loop goes on, and so do the labels of other models."""
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
        stage.rollout.bases["digits"] = stage.stock.base / "digits"
        change_labels(stage.stock.base / "letters", {"stable": 1})
        looking = asyncio.ensure_future(stage.watch.poll_labels())
        await in_thread(hanging.wait, 30)
        while not stage.fleet.told["letters"].labels:  # noqa: ASYNC110  # threads move it
            await asyncio.sleep(0)
        await stage.watch.poll_labels()
        assert not looking.done()
        go_on.set()
        await looking

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
            while stage.fleet.told["letters"].labels != {"canary": 2}:
                await stage.watch.poll_labels()
                await asyncio.sleep(0)
        assert stage.fleet.told["letters"].labels == {"canary": 2}
        assert not looking.done()
        hang.over.set()
        await looking
        await stage.watch.poll_labels()
        assert stage.fleet.told["digits"].labels == {"stable": 3}
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


def test_changed_files_are_loaded_beside_what_is_served(play: Play) -> None:
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
        (version,) = stage.fleet.told["digits"].versions
        assert version.number in stage.stock.held
        stage.stock.files["digits", 3] = "broken weights"
        stage.fleet.broken = {3}
        with pytest.raises(LoadFailed):
            await stage.rollout.load("digits")
        assert stage.fleet.states() == {3: "AVAILABLE"}
        assert stage.fleet.told["digits"].versions[0].number == version.number

    play(scene)


def test_other_policies_and_single_versions(play: Play) -> None:
    """A load can bring another policy, or add one version to those that are served."""

    async def scene(stage: Stage) -> None:
        for version in (5, 7, 9):
            stage.stock.files["digits", version] = "weights"
        await stage.rollout.load("digits", VersionPolicy.of((3, 7)))
        assert stage.fleet.states() == {3: "AVAILABLE", 7: "AVAILABLE"}
        await stage.rollout.load("digits", version=5)
        assert (stage.fleet.told["digits"].default, sorted(stage.fleet.states())) == (7, [3, 5, 7])
        await stage.rollout.unload("digits", 7)
        assert stage.fleet.told["digits"].default == 5
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
    """What is loaded first is not known to be there."""

    async def scene(stage: Stage) -> None:
        with pytest.raises(NotReady):
            await stage.rollout.load("digits")
        with pytest.raises(NotReady):
            await stage.rollout.unload("digits")

    play(scene, begins=False)


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
        assert stage.fleet.told["digits"].labels == {"canary": 5}
        assert stage.fleet.told["digits"].default == 3, "a canary is for those who ask for it"
        with pytest.raises(RequestError, match="it has the label 'canary'"):
            await stage.rollout.unload("digits", 5)
        change_labels(base, {"canary": 7, "default": 3})
        await stage.watch.poll_labels()
        assert stage.fleet.told["digits"].labels == {"canary": 7, "default": 3}
        assert stage.fleet.told["digits"].default == 3
        assert stage.fleet.states() == {3: "AVAILABLE", 5: "END", 7: "AVAILABLE"}
        change_labels(base, {}, ["canary", "default"])
        await stage.watch.poll_labels()
        assert stage.fleet.states() == {3: "AVAILABLE", 5: "END", 7: "END"}
        (base / "labels.json").write_text("nonsense")
        await stage.watch.poll_labels()
        assert stage.fleet.states()[3] == "AVAILABLE"

    play(scene)


def test_a_label_whose_version_does_not_load_stays_where_it_is(play: Play) -> None:
    """Callers of the label never find nothing."""

    async def scene(stage: Stage) -> None:
        base = stage.stock.base / "digits"
        stage.stock.files["digits", 7] = "no weights"
        stage.fleet.broken = {7}
        for version in (3, 7):
            change_labels(base, {"stable": version})
            await stage.watch.poll_labels()
        assert stage.fleet.told["digits"].labels == {"stable": 3}
        assert stage.fleet.states() == {3: "AVAILABLE", 7: "END"}

    play(scene)


def test_unloading_a_version_leaves_those_with_labels(play: Play) -> None:
    """Whoever asks for the label is served on; whoever asks for none finds no default."""

    async def scene(stage: Stage) -> None:
        stage.stock.files["digits", 7] = "weights"
        change_labels(stage.stock.base / "digits", {"canary": 7})
        await stage.watch.poll_labels()
        await stage.rollout.unload("digits", 3)
        assert stage.fleet.states() == {3: "END", 7: "AVAILABLE"}
        assert (stage.fleet.told["digits"].default, stage.fleet.told["digits"].labels) == (
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
        assert stage.fleet.told["digits"].labels == {"stable": 5}
        assert stage.fleet.told["digits"].default == 12
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
        assert stage.fleet.told["digits"].labels == {"stable": 3}
        assert stage.fleet.states() == {3: "AVAILABLE", 5: "AVAILABLE"}
        assert caplog.messages == [
            "the label 'canary' of digits means nothing: there is no version 8 to load",
            "the label 'stable' of digits goes on meaning version 3: there is no version 7 to load",
        ]
        del files["digits", 3]
        await stage.look(2)
        await stage.rollout.load("digits")
        assert stage.fleet.told["digits"].labels == {"stable": 3}, "its files are gone, it has been loaded"
        files["digits", 7] = "weights"
        await stage.look(2)
        assert stage.fleet.told["digits"].labels == {"stable": 7}
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
        assert stage.fleet.told["digits"].labels == {}
        assert stage.fleet.states() == {3: "END", 5: "AVAILABLE"}

    play(scene)


def test_moving_a_label_loads_no_files_that_have_changed(play: Play) -> None:
    """Who has moved it has not said that others are complete."""

    async def scene(stage: Stage) -> None:
        stage.stock.files["digits", 3] = "a part of other weights"
        stage.stock.files["digits", 7] = "weights"
        change_labels(stage.stock.base / "digits", {"canary": 7, "stable": 3})
        await stage.watch.poll_labels()
        assert [line for line in stage.fleet.happened() if "load" in line] == ["load digits 7"]
        assert stage.fleet.told["digits"].labels == {"canary": 7, "stable": 3}

    play(scene)


def test_a_label_of_a_version_that_is_being_replaced_stays(play: Play) -> None:
    """Its folder holds no model just now, and what was loaded from it goes on under its name."""

    async def scene(stage: Stage) -> None:
        stage.stock.files["digits", 7] = "weights"
        change_labels(stage.stock.base / "digits", {"stable": 3})
        await stage.look(2)
        stage.stock.broken = {("digits", 3)}
        await stage.look(2)
        assert stage.fleet.told["digits"].labels == {"stable": 3}
        assert stage.fleet.states() == {3: "AVAILABLE", 7: "AVAILABLE"}

    play(scene)


def test_the_watch_loads_what_has_come_to_rest(play: Play) -> None:
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


def test_the_watch_unloads_what_has_vanished(play: Play) -> None:
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
        assert (stage.fleet.states("letters"), stage.fleet.told["letters"].default) == ({1: "END"}, None)
        stage.stock.away = True
        await stage.look(2)
        assert stage.fleet.states("digits") == {3: "AVAILABLE", 7: "END"}

    play(scene)


def test_the_watch_does_not_try_again_what_has_failed(play: Play) -> None:
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


def test_a_version_that_gets_the_slot_of_another_begins_with_zeros(play: Play) -> None:
    """More versions than slots can be served one after the other; the oldest counters make room."""

    async def scene(stage: Stage) -> None:
        stage.memory.page(0).model(0).count_request(503)
        for version in range(4, 4 + MODEL_SLOTS):
            stage.stock.files["digits", version] = "weights"
            await stage.rollout.load("digits")
            del stage.stock.files["digits", version - 1]
        last = stage.fleet.told["digits"].versions[-1]
        assert (last.standing.slot, last.standing.state) == (0, "AVAILABLE")
        assert 3 not in stage.fleet.states()
        assert stage.memory.totals().model(0).requests()[503] == 0

    play(scene)


def test_the_index_shows_what_could_be_loaded(play: Play) -> None:
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
