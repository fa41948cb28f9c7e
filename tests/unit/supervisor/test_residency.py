"""Models are loaded on requests, and leave within a budget of memory; processes are puppets."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import os
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.puppet_nvml import a_gpu, install

from stoker.control.frontend_messages import Route
from stoker.deployment import Deployment
from stoker.errors import LoadFailed, ModelTooLarge, NotReady, UnknownService
from stoker.gpu.facts import GpuMemory
from stoker.metrics.layout import MODEL_SLOTS, UNLOADED_SLOT
from stoker.metrics.memory import MetricMemory
from stoker.residency.footprints import Footprint, Footprints
from stoker.settings.versions import ON_DEMAND
from stoker.supervisor import device_memory
from stoker.supervisor import residency as module
from stoker.supervisor.catalogue import Catalogue
from stoker.supervisor.device_memory import DeviceMemory
from stoker.supervisor.events import Events
from stoker.supervisor.residency import Residency

MB = 1 << 20
UUID = a_gpu().answers["nvmlDeviceGetUUID"]


def packed(memory_bytes: int, load_s: float, warm_up_s: float) -> SimpleNamespace:
    """A replica in a process that it shares."""
    load = SimpleNamespace(memory_bytes=memory_bytes, load_s=load_s, warm_up_s=warm_up_s)
    return SimpleNamespace(load=load)


class PuppetFleet:
    """Device processes that take as many bytes as their models, by name; each has one model.

    Attributes:
        routes: The last route that frontends got, by model.
        log: Loads and unloads, in order.
        hold: Lets the last requests of models go on until it is set.
        running: Cleared while the processes of loaded models are being restarted.
    """

    def __init__(self, clock: list[float]) -> None:
        self.clock = clock
        self.routes: dict[str, Route] = {}
        self.log: list[str] = []
        self.broken: set[str] = set()
        self.loading = 0
        self.most = 9
        self.hold = asyncio.Event()
        self.hold.set()
        self.running = asyncio.Event()
        self.running.set()
        self.packed: dict[str, Any] = {}
        self.frontends = SimpleNamespace(update=lambda model: None, serve=lambda model: None)
        self.devices = SimpleNamespace(
            processes=[],
            packs=lambda model: model.name in self.packed,
            has_room_for=lambda model: model.name in self.packed and len(self.devices.processes) < self.most,
            replicas=SimpleNamespace(of=lambda model: []),
            find_packed=lambda model: self.packed.get(model.name),
            keep_apart=lambda model: None,
        )

    def _pid(self, model: Deployment) -> Any:
        return SimpleNamespace(
            group=SimpleNamespace(
                device=model.devices[0], model=model.name, models=[model], packs=model.name in self.packed
            ),
            child=SimpleNamespace(process=SimpleNamespace(pid=model.name)),
            report=None,
            base_bytes=None,
        )

    async def wake(self, model: Deployment) -> None:
        self.loading += 1
        assert self.loading == 1, "models are loaded one after the other"
        await asyncio.sleep(0)
        self.clock[0] += 0.5
        self.loading -= 1
        if model.name in self.broken:
            raise LoadFailed(f"{model.name} is no model")
        self.devices.processes.append(self._pid(model))
        self.log.append(f"load {model.name}")

    async def joined(self, model: Deployment, is_leaving: Callable[[], bool]) -> None:
        await asyncio.sleep(0)
        while not self.running.is_set() and not is_leaving():  # noqa: ASYNC110  # nothing announces that a model leaves
            await asyncio.sleep(0)

    async def sleep(self, model: Deployment) -> None:
        await self.hold.wait()
        self.devices.processes[:] = [one for one in self.devices.processes if one.group.model != model.name]
        self.log.append(f"unload {model.name}")

    async def remove(self, model: Deployment) -> None:
        await self.sleep(model)

    def publish(self, route: Route) -> None:
        self.routes[route.name] = route

    def residence(self, name: str) -> str:
        """The residence of the only version of a model, as frontends know it."""
        return self.routes[name].versions[0].status.residence


@dataclasses.dataclass
class Stage:
    fleet: PuppetFleet
    residency: Residency
    catalogue: Catalogue
    memory: MetricMemory
    clock: list[float]
    events: Events
    stock: SimpleNamespace
    footprints: Footprints

    def served(self, name: str) -> Deployment:
        """The only version of a model."""
        model = self.catalogue.models[name].versions[1].served
        assert model is not None
        return model

    def guess(self, name: str) -> None:
        """Forget what is known of a model's memory, and give it a file of 10 MB."""
        model = self.served(name)
        model.path.write_bytes(bytes(10 * MB))
        self.catalogue.models[name].versions[1].served = dataclasses.replace(model, fingerprint="new")

    def ask(self, name: str, requests: int = 1) -> None:
        """Count requests to a loaded model."""
        slot = self.catalogue.models[name].versions[1].status.slot
        for _ in range(requests):
            self.memory.page(0).model(slot).count_request(200)


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Run a scene with models of these bytes and a budget."""

    def run(
        scene: Callable[[Stage], Awaitable[None]],
        sizes: dict[str, int],
        budget_mb: int,
        **settings: Any,
    ) -> None:
        async def perform() -> None:
            clock = [100.0]
            fleet = PuppetFleet(clock)
            monkeypatch.setattr(device_memory, "private_memory", lambda name: sizes[name])
            footprints = Footprints(tmp_path / "run" / "footprints.json")
            models = [
                Deployment(
                    name, 1, "onnx", tmp_path / name, tmp_path, max_batch_rows=1, max_body_bytes=1,
                    number=number, slot=UNLOADED_SLOT, on_demand=True, **settings,
                )
                for number, name in enumerate(sizes)
            ]  # fmt: skip
            for model in models:
                footprints.keep(model, "cpu", Footprint(sizes[model.name], 0.5))
            catalogue, memory, events = Catalogue(models), MetricMemory(fd := MetricMemory.create()), Events()
            os.close(fd)
            stock = SimpleNamespace(verify=lambda model: None)
            budgets = DeviceMemory(budget_mb, fleet.devices.processes)
            residency = Residency(
                budgets, catalogue, fleet, stock, memory, events, footprints, lambda: clock[0]
            )  # type: ignore[arg-type]  # puppets
            await asyncio.wait_for(
                scene(Stage(fleet, residency, catalogue, memory, clock, events, stock, footprints)),
                timeout=60,
            )

        asyncio.run(perform())

    return run


def test_unused_models_leave_for_requested_ones(play: Callable[..., None]) -> None:
    """The memory stays within the budget, and the model that is missed least leaves."""

    async def scene(stage: Stage) -> None:
        assert {model.route().versions[0].status.residence for model in stage.catalogue.models.values()} == {
            "unloaded"
        }
        await stage.residency.wake("a", 1)
        await stage.residency.wake("b", 1)
        assert (stage.fleet.residence("a"), stage.fleet.residence("b")) == ("loaded", "loaded")
        stage.clock[0] += 1
        stage.ask("a", 50)
        stage.ask("b")
        await stage.residency.check()
        stage.clock[0] += 1
        await stage.residency.wake("c", 1)
        assert stage.fleet.log == ["load a", "load b", "unload b", "load c"]
        assert stage.fleet.residence("b") == "unloaded"
        reasons = [model.versions[1].status.reason for model in stage.catalogue.models.values()]
        assert reasons == ["", ON_DEMAND, ""]
        assert stage.catalogue.models["b"].default == 1, "its names mean it all the same"
        totals = stage.memory.totals().on_demand()
        assert (totals.loads, totals.evictions["room"]) == (3, 1)
        assert (totals.used_bytes, totals.budget_bytes) == (80 * MB, 100 * MB)
        (evicted,) = [one for one in stage.events.listed() if one["event"] == "evicted"]
        assert evicted["model"] == "b"
        assert "to make room for c version 1" in evicted["text"]

    play(scene, dict.fromkeys("abc", 40 * MB), 100)


def test_requests_count_when_a_model_has_to_leave(play: Callable[..., None]) -> None:
    """A model stays that was just loaded for a request which nobody has counted yet; counted ones count at once."""

    async def scene(stage: Stage) -> None:
        await stage.residency.wake("a", 1)
        stage.ask("a")
        stage.clock[0] += 600
        await stage.residency.wake("b", 1)
        await stage.residency.wake("c", 1)
        assert stage.fleet.log == ["load a", "load b", "unload a", "load c"]
        stage.ask("b", 50)
        await stage.residency.wake("d", 1)
        assert stage.fleet.log[-2:] == ["unload c", "load d"]

    play(scene, dict.fromkeys("abcd", 40 * MB), 100)


def test_a_first_load_beside_others_makes_room_for_no_process(play: Callable[..., None]) -> None:
    """Before it is measured, a model is guessed by its file; only one with a process of its own takes more."""

    async def scene(stage: Stage) -> None:
        await stage.residency.wake("a", 1)
        stage.fleet.packed["b"] = packed(memory_bytes=10 * MB, load_s=0.1, warm_up_s=0.1)
        for name in "bc":
            stage.guess(name)
            await stage.residency.wake(name, 1)
        assert stage.fleet.log == ["load a", "load b", "unload a", "load c"]

    play(scene, {"a": 40 * MB, "b": 10 * MB, "c": 10 * MB}, 100)


def test_a_model_leaves_a_full_process_rather_than_that_one_more_is_started(
    play: Callable[..., None],
) -> None:
    """Where the memory has no room for a process: the next model takes the place of one, not of many."""

    async def scene(stage: Stage) -> None:
        stage.fleet.most = 3
        for name in "abcd":
            stage.fleet.packed[name] = packed(memory_bytes=10 * MB, load_s=0.1, warm_up_s=0.1)
            await stage.residency.wake(name, 1)
        assert stage.fleet.log == ["load a", "load b", "load c", "unload a", "load d"]

    play(scene, dict.fromkeys("abcd", 10 * MB), 100)


def test_files_are_verified_while_other_models_load(play: Callable[..., None]) -> None:
    """It may take as long as a load, which nobody else waits for; it is done once."""
    verified: list[str] = []
    go_on = threading.Event()

    async def scene(stage: Stage) -> None:
        def verify(model: Deployment) -> None:
            verified.append(model.name)
            assert model.name != "a" or go_on.wait(60)

        stage.stock.verify = verify
        waking = asyncio.ensure_future(stage.residency.wake("a", 1))
        await stage.residency.wake("b", 1)
        assert stage.fleet.log == ["load b"]
        go_on.set()
        await waking
        await stage.residency.wake("b", 1)
        assert stage.fleet.log == ["load b", "unload b", "load a", "unload a", "load b"]
        assert sorted(verified) == ["a", "b"]

    play(scene, dict.fromkeys("ab", 40 * MB), 60)


def test_a_load_that_was_held_up_once_does_not_keep_its_model(play: Callable[..., None]) -> None:
    """In a shared process its own load time counts, as a mean with the loads before."""

    async def scene(stage: Stage) -> None:
        stage.fleet.packed["a"] = packed(memory_bytes=40 * MB, load_s=0.1, warm_up_s=0.2)
        for name in "abab":
            await stage.residency.wake(name, 1)
        loads_s = [stage.catalogue.models[name].versions[1].load_s for name in "ab"]
        assert loads_s == pytest.approx([(0.4 + 0.3) / 2, 0.5]), "each was said to load in 0.5 s"

    play(scene, dict.fromkeys("ab", 40 * MB), 60)


def test_concurrent_requests_share_a_load(play: Callable[..., None]) -> None:
    """One load answers all requests for it, and a request that stops waiting does not end it."""

    async def scene(stage: Stage) -> None:
        gone, *others = [asyncio.ensure_future(stage.residency.wake("a", 1)) for _ in range(4)]
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(*others)
        await stage.residency.wake("a", 1)
        assert stage.fleet.log == ["load a"]
        with pytest.raises(UnknownService):
            await stage.residency.wake("z", 1)
        with pytest.raises(UnknownService):
            await stage.residency.wake("a", 2)

    play(scene, {"a": MB}, 100)


def test_a_model_requested_while_it_leaves_comes_back(play: Callable[..., None]) -> None:
    """Its last requests are answered before it is loaded again."""

    async def scene(stage: Stage) -> None:
        await stage.residency.wake("a", 1)
        stage.fleet.hold.clear()
        other = asyncio.ensure_future(stage.residency.wake("b", 1))
        for _ in range(10):
            await asyncio.sleep(0)
        assert stage.fleet.residence("a") == "unloading"
        again = asyncio.ensure_future(stage.residency.wake("a", 1))
        for _ in range(10):
            await asyncio.sleep(0)
        assert stage.fleet.log == ["load a"], "neither is loaded before the other has left"
        stage.fleet.hold.set()
        await asyncio.gather(other, again)
        assert stage.fleet.log == ["load a", "unload a", "load b", "unload b", "load a"]

    play(scene, dict.fromkeys("ab", 60 * MB), 100)


def test_a_model_that_leaves_while_its_process_restarts_is_loaded_again(play: Callable[..., None]) -> None:
    """The request that waits for the process must not wait for one that comes back without the model."""

    async def scene(stage: Stage) -> None:
        await stage.residency.wake("a", 1)
        stage.fleet.running.clear()
        waiting = asyncio.ensure_future(stage.residency.wake("a", 1))
        await asyncio.sleep(0)
        await stage.residency.wake("b", 1)
        await waiting
        assert stage.fleet.log == ["load a", "unload a", "load b", "unload b", "load a"]
        assert stage.fleet.residence("a") == "loaded"

    play(scene, dict.fromkeys("ab", 60 * MB), 100)


def test_a_model_without_room_is_refused(play: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """One that does not fit yet is refused with a time to retry; the others stay."""

    async def scene(stage: Stage) -> None:
        async def pass_time(delay_s: float) -> None:
            stage.clock[0] += delay_s

        monkeypatch.setattr(module.asyncio, "sleep", pass_time)
        monkeypatch.setattr(stage.fleet, "wake", _quick(stage.fleet))
        await stage.residency.wake("a", 1)
        with pytest.raises(NotReady, match="b is not loaded: it needs about 60 MiB") as caught:
            await stage.residency.wake("b", 1)
        assert caught.value.retry_after_s
        assert stage.fleet.residence("a") == "loaded"
        assert stage.fleet.residence("b") == "unloaded"
        stage.clock[0] += 60
        await stage.residency.wake("b", 1)
        assert stage.fleet.residence("a") == "unloaded"

    play(scene, {"a": 60 * MB, "b": 60 * MB}, 100, min_residence_s=30.0)


def test_a_model_above_the_whole_budget_is_refused_at_once(play: Callable[..., None]) -> None:
    """By its file before a load, by its measured memory after one: nobody waits for it, and nobody leaves."""
    sizes = dict.fromkeys(["a", "big", "file", "folder"], 40 * MB)

    async def scene(stage: Stage) -> None:
        for name in ("file", "folder"):
            stage.guess(name)
            stage.fleet.packed[name] = packed(memory_bytes=MB, load_s=0.1, warm_up_s=0.1)
        stage.served("file").path.write_bytes(bytes(60 * MB))
        (path := stage.served("folder").path).unlink()
        path.mkdir()
        (path / "saved_model.pb").write_bytes(bytes(60 * MB))
        sizes["big"] = 101 * MB
        await stage.residency.wake("big", 1)
        await stage.residency.check()
        await stage.residency.wake("a", 1)
        began_s = stage.clock[0]
        for name in ("big", "file", "folder"):
            with pytest.raises(ModelTooLarge, match=f"{name} version 1 cannot be loaded: it needs") as caught:
                await stage.residency.wake(name, 1)
            assert caught.value.retry_after_s is None
        assert stage.clock[0] == began_s
        assert stage.fleet.residence("a") == "loaded"
        assert stage.fleet.log == ["load big", "unload big", "load a"]

    play(scene, sizes, 100)


def _quick(fleet: PuppetFleet) -> Callable[[Deployment], Awaitable[None]]:
    async def wake(model: Deployment) -> None:
        fleet.devices.processes.append(fleet._pid(model))

    return wake


def test_a_model_that_cannot_be_loaded_is_not_tried_all_the_time(play: Callable[..., None]) -> None:
    """Its callers are told why and when to come again; its files may be mended meanwhile."""

    async def scene(stage: Stage) -> None:
        stage.fleet.broken.add("a")
        for _ in range(2):
            with pytest.raises(NotReady, match="a could not be loaded: a is no model") as caught:
                await stage.residency.wake("a", 1)
            assert caught.value.retry_after_s == 1
        assert [one["event"] for one in stage.events.listed()] == ["load_failed"]
        assert stage.fleet.residence("a") == "unloaded"
        stage.fleet.broken.clear()
        stage.clock[0] += 1
        await stage.residency.wake("a", 1)
        assert stage.fleet.residence("a") == "loaded"

    play(scene, {"a": MB}, 100)


def test_a_load_that_would_come_too_late_is_refused(play: Callable[..., None]) -> None:
    """A request that waits for less long than the loads before it gets a time to retry at once."""

    async def scene(stage: Stage) -> None:
        first = asyncio.ensure_future(stage.residency.wake("a", 1, 60.0))
        await asyncio.sleep(0)
        with pytest.raises(NotReady, match="loads of 1 other model come first") as caught:
            await stage.residency.wake("b", 1, 0.9)
        assert caught.value.retry_after_s == 1
        await asyncio.gather(first, stage.residency.wake("b", 1, 1.1))
        assert stage.fleet.log == ["load a", "load b"]

    play(scene, dict.fromkeys("ab", MB), 100)


def test_more_memory_than_expected_makes_models_leave(play: Callable[..., None]) -> None:
    """Memory is measured, so models that grow make others leave."""
    sizes = dict.fromkeys("ab", 40 * MB)

    async def scene(stage: Stage) -> None:
        await stage.residency.wake("a", 1)
        await stage.residency.wake("b", 1)
        stage.clock[0] += 1
        stage.ask("b")
        await stage.residency.check()
        assert stage.fleet.log == ["load a", "load b"]
        sizes["b"] = 70 * MB
        stage.clock[0] += 1
        await stage.residency.check()
        assert stage.fleet.log == ["load a", "load b", "unload a"]
        assert stage.memory.totals().on_demand().evictions["budget"] == 1

    play(scene, sizes, 100)


def test_more_models_are_known_than_the_metrics_have_slots(play: Callable[..., None]) -> None:
    """Each loaded model has a slot of its own, whose counters are its own."""

    async def scene(stage: Stage) -> None:
        names = list(stage.catalogue.models)
        for name in names:
            await stage.residency.wake(name, 1)
            stage.clock[0] += 1
            stage.ask(name)
            await stage.residency.check()
        slots = [
            version.status.slot
            for model in stage.catalogue.models.values()
            for version in model.versions.values()
            if version.status.residence == "loaded"
        ]
        assert sorted(slots) == list(range(UNLOADED_SLOT))
        assert len(stage.catalogue.models) == len(names)
        totals = stage.memory.totals()
        assert {sum(totals.model(slot).requests().values()) for slot in slots} == {1}
        assert totals.on_demand().evictions["slots"] == len(names) - UNLOADED_SLOT

    play(scene, {f"m{number}": MB for number in range(MODEL_SLOTS + 6)}, 1000)


def test_a_gpu_has_a_budget_of_its_own_memory(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Memory of others and of the host does not count; the memory of an unloaded model may come back late."""
    caplog.set_level("INFO")
    install(monkeypatch, a_gpu())
    sizes, late = {"a": 400 * MB, "b": 300 * MB, "c": 100 * MB}, []

    async def scene(stage: Stage) -> None:
        def read(uuids: list[str]) -> dict[str, GpuMemory]:
            used = sum(sizes[one.group.model] for one in stage.fleet.devices.processes)
            used += 300 * MB + (late.pop() if late else 0)
            return {uuid: GpuMemory(4 << 30, used, {}) for uuid in uuids}

        async def unload(model: Deployment) -> None:
            await sleep_model(model)
            late.extend(3 * [sizes[model.name]])

        async def pass_time(delay_s: float) -> None:
            stage.clock[0] += delay_s
            await sleep(0)

        sleep, sleep_model = asyncio.sleep, stage.fleet.sleep
        monkeypatch.setattr(module.asyncio, "sleep", pass_time)
        monkeypatch.setattr(stage.fleet, "sleep", unload)
        monkeypatch.setattr(device_memory, "read_memory", read)
        for name in "abca":
            await stage.residency.wake(name, 1)
            stage.clock[0] += 1
        # The first time, a context of 512 MiB is expected; measured, a and c fit beside b.
        assert stage.fleet.log == ["load a", "load b", "unload a", "load c", "load a"]
        totals = stage.memory.totals().on_demand()
        assert (totals.on_gpus, totals.used_bytes, totals.budget_bytes) == (True, 800 * MB, 1000 * MB)
        loads = [line for line in caplog.messages if "on demand" in line]
        assert [line.partition(": ")[2] for line in loads] == [
            f"{mb} MB of GPU memory" for mb in ("419.4", "314.6", "104.9", "419.4")
        ]
        sizes["b"] = 600 * MB
        await stage.residency.check()
        assert stage.fleet.log[-1] == "unload b", "its arena has grown"

    play(scene, dict.fromkeys("abc", 9000 * MB), 1000, devices=("cuda:0",))


def test_a_shared_context_is_not_a_models(play: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a process that was started for several models, the context counts for none of them."""
    install(monkeypatch, a_gpu())

    async def scene(stage: Stage) -> None:
        def read(uuids: list[str]) -> dict[str, GpuMemory]:
            models = len(stage.fleet.devices.processes)
            used = 100 * MB * models + (500 * MB if models else 0)
            return {uuid: GpuMemory(4 << 30, used, {}) for uuid in uuids}

        monkeypatch.setattr(device_memory, "read_memory", read)
        stage.fleet.devices.has_room_for = lambda model: bool(stage.fleet.devices.processes)
        for name in "ab":
            stage.fleet.packed[name] = packed(memory_bytes=900 * MB, load_s=0.1, warm_up_s=0.1)
            stage.guess(name)
            await stage.residency.wake(name, 1)
        kept = [stage.footprints.find(stage.served(name), UUID).size_bytes for name in "ab"]
        assert kept == [88 * MB, 100 * MB], "600 less a guessed 512 MiB, and what was measured beside it"

    play(scene, dict.fromkeys("ab", 9000 * MB), 1000, devices=("cuda:0",))


def test_footprints_outlive_the_server(tmp_path: Path) -> None:
    """Measured footprints are read again; others are guessed by the size of files, as after damage of the file."""
    path = tmp_path / "run" / "footprints.json"
    file = tmp_path / "digits.onnx"
    file.write_bytes(bytes(3 * MB))
    (tmp_path / "digits.onnx.data").write_bytes(bytes(5 * MB))
    (tmp_path / "other.onnx").write_bytes(bytes(MB))
    model = Deployment(
        "digits", 1, "onnx", file, tmp_path, max_batch_rows=1, max_body_bytes=1, fingerprint="f"
    )
    kept = Footprints(path)
    guess = kept.find(model, "cpu")
    assert (guess.measured, guess.size_bytes > 8 * MB, guess.load_s > 0) == (False, True, True)
    kept.keep(model, "cpu", Footprint(11 * MB, 1.5))
    kept.save()
    assert Footprints(path).find(model, "cpu") == Footprint(11 * MB, 1.5)
    changed = dataclasses.replace(model, fingerprint="g")
    assert not Footprints(path).find(changed, "cpu").measured
    for damaged in (b"{", b"[]", b'{"digits:1:f@cpu": [true, 1]}', b'{"digits:1:f@cpu": [5]}'):
        path.write_bytes(damaged)
        assert not Footprints(path).find(model, "cpu").measured


def test_numbers_of_loads_are_not_confused(play: Callable[..., None]) -> None:
    """A version that is loaded anew stays until it has taken over, and the old load leaves alone."""

    async def scene(stage: Stage) -> None:
        await stage.residency.wake("a", 1)
        model = stage.catalogue.models["a"]
        old = model.versions[1].served
        assert old is not None
        numbers = itertools.count(10)
        fresh = dataclasses.replace(old, number=next(numbers), slot=UNLOADED_SLOT)
        loaded = await stage.residency.add(model, 1, fresh)
        assert loaded.slot == old.slot, "counters go on"
        assert model.versions[1].served is old

    play(scene, {"a": MB}, 100)


def test_a_load_that_hangs_delays_no_other(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one begins beside it, within what it leaves of the budget; later it is not tried again at once."""
    monkeypatch.setattr(module, "_ALONE_S", 0.0)
    begun, hang, apart = asyncio.Event(), asyncio.Event(), list[str]()

    async def scene(stage: Stage) -> None:
        wake = stage.fleet.wake

        async def hang_or_wake(model: Deployment) -> None:
            if model.name == "hang":
                begun.set()
                await hang.wait()
                stage.clock[0] += 25
                raise LoadFailed("it took too long")
            await wake(model)

        async def pass_time(delay_s: float) -> None:
            stage.clock[0] += delay_s
            await sleep(0)

        sleep = asyncio.sleep
        monkeypatch.setattr(module.asyncio, "sleep", pass_time)
        monkeypatch.setattr(stage.fleet, "wake", hang_or_wake)
        stage.fleet.devices.keep_apart = lambda model: apart.append(model.name)
        hung = asyncio.ensure_future(stage.residency.wake("hang", 1, caller="a"))
        await begun.wait()
        await stage.residency.wake("small", 1, caller="b")
        assert (stage.fleet.log, apart) == (["load small"], ["hang"])
        with pytest.raises(NotReady, match="memory_mb leaves 59 MiB"):
            await stage.residency.wake("large", 1, caller="b")
        hang.set()
        with pytest.raises(NotReady, match="it took too long") as caught:
            await hung
        assert caught.value.retry_after_s == 31, "as long as it took, with the time of the others"
        await stage.residency.wake("large", 1, caller="b")
        assert stage.fleet.residence("large") == "loaded"

    play(scene, {"hang": 40 * MB, "small": MB, "large": 70 * MB}, 100)


def test_a_load_that_waits_for_room_lets_others_begin(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nobody may leave for a large model, there may be room for a small one."""

    async def scene(stage: Stage) -> None:
        async def pass_time(delay_s: float) -> None:
            stage.clock[0] += delay_s
            await sleep(0)

        sleep = asyncio.sleep
        await stage.residency.wake("a", 1)
        monkeypatch.setattr(module.asyncio, "sleep", pass_time)
        waiting = asyncio.ensure_future(stage.residency.wake("large", 1))
        await stage.residency.wake("small", 1)
        assert not waiting.done()
        with pytest.raises(NotReady, match="large is not loaded"):
            await waiting

    play(scene, {"a": 60 * MB, "large": 60 * MB, "small": MB}, 100, min_residence_s=3600.0)


def test_a_model_with_hanging_requests_does_not_block_the_budget(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others leave instead of it."""
    monkeypatch.setattr(module, "_PATIENCE_S", 0.0)

    async def scene(stage: Stage) -> None:
        for name in "ab":
            await stage.residency.wake(name, 1)
            stage.clock[0] += 1
        sleep = stage.fleet.sleep

        async def hang_or_sleep(model: Deployment) -> None:
            if model.name == "a":
                await asyncio.Event().wait()
            await sleep(model)

        monkeypatch.setattr(stage.fleet, "sleep", hang_or_sleep)
        for _ in range(9):
            with suppress(NotReady):
                await stage.residency.wake("c", 1)
        assert stage.fleet.residence("a") == "unloading"
        assert stage.fleet.log == ["load a", "load b", "unload b", "load c"]

    play(scene, dict.fromkeys("abc", 40 * MB), 100)
