"""Models on demand: loaded when a request comes, unloaded to make room.

A version that is not in memory is available all the same: names and labels mean it, and frontends have its service,
whose requests wait. Unloading it loses nothing: frontends finish the requests that its device processes have, and let
later ones wait until it is loaded again.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Final

from stoker.deployment import Deployment
from stoker.errors import (
    InvalidSettings,
    LoadFailed,
    ModelTooLarge,
    NotReady,
    StokerError,
    UnknownService,
    cut,
)
from stoker.metrics.layout import SUPERVISOR_PAGE, UNLOADED_SLOT
from stoker.metrics.memory import MetricMemory
from stoker.residency.footprints import HOST, Footprint, Footprints, file_bytes, process_bytes
from stoker.residency.policy import ModelUse, choose_evicted
from stoker.residency.turns import Load, LoadTurns, choose_before
from stoker.settings.versions import Residence
from stoker.supervisor.background import in_thread
from stoker.supervisor.backoff import Backoff
from stoker.supervisor.catalogue import Catalogue, Model, Version, shown_reason
from stoker.supervisor.device_memory import DeviceMemory, process_memory
from stoker.supervisor.events import Events
from stoker.supervisor.fleet import Fleet
from stoker.supervisor.model_uses import Key, ModelUses, Use
from stoker.supervisor.stock import Stock
from stoker.system.wording import format_count

logger = logging.getLogger(__name__)

_PATIENCE_S: Final = 5.0
"""How long a load waits for models that may not leave yet."""
_LOOK_S: Final = 0.1
_ALONE_S: Final = 3.0
"""After that a load is slow, and the next one begins beside it."""
_MOST_RELEASE_LOOKS: Final = 10
_LEAST_BYTES: Final = 1 << 20


class Residency:
    """Loads and unloads the versions of models that are loaded on demand, within a budget of memory per device.

    Attributes:
        device_memory: The budgets, and what is used of them.
    """

    def __init__(
        self,
        device_memory: DeviceMemory,
        catalogue: Catalogue,
        fleet: Fleet,
        stock: Stock,
        memory: MetricMemory,
        events: Events,
        footprints: Footprints,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create it; nothing is loaded yet.

        Args:
            memory: The metrics, which count the requests to each model.
        """
        self.device_memory = device_memory
        self._catalogue, self._fleet, self._stock, self._memory = catalogue, fleet, stock, memory
        self._page = memory.page(SUPERVISOR_PAGE)
        self._events, self._clock_s = events, clock_s
        self._uses = ModelUses(footprints, memory, clock_s)
        self._loads: dict[Key, tuple[asyncio.Task[None], Load]] = {}
        self._slow: dict[Load, tuple[Deployment, int]] = {}
        """Loads beside which others have begun, with the bytes that they are expected to take."""
        self._evictions: dict[Key, asyncio.Task[None]] = {}
        self._kept: Counter[Key] = Counter()
        """Versions that stay although they could leave."""
        self._turns: dict[str, LoadTurns] = {}
        """By place: models are loaded one after the other, unless a load is slow."""
        catalogue.reserve_unloaded_slot()

    async def wake(self, name: str, number: int, timeout_s: float = math.inf, caller: str = "") -> None:
        """Load a version unless it is loaded; returns when every frontend can score with it.

        Args:
            timeout_s: How long the request waits that asks for it.
            caller: Whose request it is: callers take turns.

        Raises:
            UnknownService: There is no such version.
            NotReady: It could not be loaded, there is no room for it now, or the loads before it take too long.
            ModelTooLarge: There will never be room for it.
        """
        key = (name, number)
        if key not in self._loads:
            self._check_queue(key, timeout_s, caller)
            load = Load(name, {caller})
            task = asyncio.get_running_loop().create_task(self._wake(key, load))
            self._loads[key] = task, load
            task.add_done_callback(lambda ended: self._end_load(key, ended))
        task, load = self._loads[key]
        load.callers.add(caller)
        # One that stops waiting must not end the load that others wait for.
        await asyncio.shield(task)

    async def add(self, model: Model, number: int, deployed: Deployment) -> Deployment:
        """Load a version that frontends do not know yet, or load it anew; returns it as it was loaded."""
        with self.keep(model.name, number):
            self._fleet.frontends.serve(deployed)
            try:
                return await self._load((model.name, number), deployed, Load(model.name, {""}))
            except Exception as error:
                await self._fleet.remove(deployed)
                if isinstance(error, NotReady | ModelTooLarge):
                    raise LoadFailed(str(error)) from error
                raise

    @contextmanager
    def keep(self, name: str, number: int) -> Iterator[None]:
        """Let a version stay: another load takes over from it, or is compared with it."""
        self._kept[name, number] += 1
        try:
            yield
        finally:
            self._kept[name, number] -= 1
            if not self._kept[name, number]:
                del self._kept[name, number]

    async def make_room(self, deployed: Deployment) -> None:
        """Unload others until there is room for a model that is always loaded.

        Raises:
            LoadFailed: They may not leave now.
        """
        await self.device_memory.measure(deployed.devices)
        footprint = self._uses.footprints.find(deployed, self._place(deployed))
        try:
            async with self._turn_with_room(deployed, footprint, Load(deployed.name, {""})):
                return
        except NotReady as error:
            raise LoadFailed(str(error)) from error

    async def remove(self, deployed: Deployment) -> None:
        """Unload a version that no route names any more, once it is neither being loaded nor unloaded."""
        key = (deployed.name, deployed.version)
        await self._settled(key)
        await self._fleet.remove(deployed)
        version = self._version(key)
        if version is None or version.served is None:
            self._uses.forget(key)

    def _check_queue(self, key: Key, timeout_s: float, caller: str) -> None:
        """Refuse a load that would begin too late: loads that nobody waits for any more would delay all others."""
        pending = (
            (load.caller or min(load.callers), min(_ALONE_S, self._expected_s(other)))
            for other, (_, load) in self._loads.items()
            if load not in self._slow
        )
        before = choose_before(pending, caller)
        before_s = sum(before)
        if before_s and before_s + self._expected_s(key) > timeout_s:
            raise NotReady(
                f"{key[0]} is not loaded, and loads of {format_count(len(before), 'other model')} come first.",
                retry_after_s=math.ceil(before_s),
            )

    def _expected_s(self, key: Key) -> float:
        version = self._version(key)
        deployed = None if version is None else version.served
        return 0.0 if deployed is None else self._use(key, deployed).footprint.load_s

    def _end_load(self, key: Key, ended: asyncio.Task[None]) -> None:
        del self._loads[key]
        if not ended.cancelled():
            # Frontends that asked may have gone.
            ended.exception()

    async def _settled(self, key: Key) -> None:
        """Wait until a version is neither being loaded nor unloaded."""
        while tasks := [
            task for task in (self._loads.get(key, (None,))[0], self._evictions.get(key)) if task
        ]:
            await asyncio.wait(tasks)

    async def _wake(self, key: Key, load: Load) -> None:
        version, deployed = await self._find_settled(key)
        while version.status.residence == "loaded":
            # A process of it may be restarting, and it may be chosen to leave before it is back.
            is_leaving = partial(_is_leaving, version, deployed)
            await self._fleet.joined(deployed, is_leaving)
            if not is_leaving():
                return
            version, deployed = await self._find_settled(key)
        model, use = self._catalogue.models[key[0]], self._use(key, deployed)
        if use.error and self._clock_s() < use.retry_s:
            raise self._not_loaded(key, use)
        try:
            loaded = await self._load(key, deployed, load)
        except Exception as error:
            self._note_failure(model, key, use, error)
            raise
        use.error, use.backoff = "", Backoff()
        self._uses.count_waiting(key, use)
        if version.served is deployed:
            version.served = loaded
            self._reside(model, version, "loaded", loaded.slot)

    async def _find_settled(self, key: Key) -> tuple[Version, Deployment]:
        """Find a version that is loaded on demand, once it is not being unloaded."""
        if (leaving := self._evictions.get(key)) is not None:
            await asyncio.wait({leaving})
        version = self._version(key)
        deployed = None if version is None else version.served
        if version is None or deployed is None or not deployed.on_demand:
            raise UnknownService(f"'{cut(key[0])}' version {key[1]} is not served")
        return version, deployed

    def _note_failure(self, model: Model, key: Key, use: Use, error: Exception) -> None:
        """Record that a version could not be loaded; raises NotReady unless there was only no room for it."""
        version = self._version(key)
        if version is not None and version.served is not None:
            self._reside(model, version, "unloaded", UNLOADED_SLOT)
        if isinstance(error, NotReady | ModelTooLarge):
            return
        now_s, use.error = self._clock_s(), shown_reason(error)
        # A load that hung must not take a place again at once.
        use.retry_s = now_s + max(use.backoff.delay_s(0.0), now_s - use.begun_s)
        if isinstance(error, StokerError | OSError):
            logger.error("%s version %d cannot be loaded: %s", *key, error)
        else:
            logger.exception("loading %s version %d failed", *key)
        self._events.note(*key, "load_failed", use.error)
        raise self._not_loaded(key, use) from error

    def _not_loaded(self, key: Key, use: Use) -> NotReady:
        wait_s = max(1, math.ceil(use.retry_s - self._clock_s()))
        return NotReady(f"{key[0]} could not be loaded: {use.error}", retry_after_s=wait_s)

    async def _load(self, key: Key, deployed: Deployment, load: Load) -> Deployment:
        """Load a version when it is its turn; returns it with its slot of the metrics."""
        use, places = self._use(key, deployed), self._places(deployed)
        use.begun_s = self._clock_s()
        await self.device_memory.measure(deployed.devices)
        if places != self._places(deployed):
            use.footprint = self._uses.footprints.find(deployed, self._place(deployed))
        self._check_size(deployed, use.footprint)
        if use.verified != deployed.number:
            # Beside the loads of others: it reads all files.
            await in_thread(self._stock.verify, deployed)
            use.verified = deployed.number
        async with self._turn_with_room(deployed, use.footprint, load) as turns:
            return await self._load_now(key, deployed, use, load, turns)

    async def _load_now(
        self, key: Key, deployed: Deployment, use: Use, load: Load, turns: LoadTurns
    ) -> Deployment:
        slot = await self._take_slot(key)
        loaded = dataclasses.replace(deployed, slot=slot)
        version = self._version(key)
        if version is not None and version.served is deployed:
            self._reside(self._catalogue.models[key[0]], version, "loading", slot)
        self._uses.begin_slot(use, slot)
        await self.device_memory.measure()
        before = {place: self.device_memory.used(place) for place in {*self._places(deployed), HOST}}
        joins, begun_s = self._fleet.devices.has_room_for(deployed), self._clock_s()
        use.begun_s = begun_s
        try:
            with self._stepping_aside(load, loaded, use, turns):
                await self._fleet.wake(loaded)
        except Exception:
            if version is None or version.status.residence != "loaded":
                self._catalogue.release_slot(*key)
            raise
        now_s = self._clock_s()
        await self.device_memory.measure()
        packed, known, place = self._fleet.devices.find_packed(loaded), use.footprint, self._place(deployed)
        size_bytes = self._measure_size(loaded, load, known, before, joins=joins)
        load_s = now_s - begun_s
        if packed is not None:
            # The process may have been started for it: the next time it is there.
            load_s = min(load_s, packed.load.load_s + packed.load.warm_up_s)
        # A load that something held up once must not keep the model in memory.
        load_s = (known.load_s + load_s) / 2 if known.measured else load_s
        use.footprint = Footprint(size_bytes, load_s, known.measured or load.is_alone or place == HOST)
        use.since_s = use.last_used_s = now_s
        if use.footprint.measured:
            self._uses.footprints.keep(deployed, place, use.footprint)
        self._page.note_load(now_s - begun_s)
        if version is not None:
            version.load_s = use.footprint.load_s
        logger.info(
            "loaded %s version %d on demand in %.3g s: %.4g MB of %s memory",
            *key, now_s - begun_s, size_bytes / 1e6, _kind(place),
        )  # fmt: skip
        self._note_used()
        return loaded

    def _measure_size(
        self, loaded: Deployment, load: Load, known: Footprint, before: dict[str, int], *, joins: bool
    ) -> int:
        """Return the memory that a load has taken.

        Args:
            before: What was used before it, by place.
            joins: Whether no process was started for it.
        """
        packed, place = self._fleet.devices.find_packed(loaded), self._place(loaded)
        if place != HOST:
            if not load.is_alone:
                # Other loads have grown too.
                return known.size_bytes
            grown_bytes = max(
                self.device_memory.used(one) - before.get(one, 0) for one in self._places(loaded)
            )
            # A process that was started for several models has taken more than this one needs beside others.
            shared_bytes = process_bytes(place) if packed is not None and not joins else 0
            # Others may have given memory back meanwhile. Half: weights may be smaller on the device.
            return max(_LEAST_BYTES, grown_bytes - shared_bytes, file_bytes(loaded) // 2)
        if packed is None:
            return max(_LEAST_BYTES, self._own_bytes(loaded))
        # Others in its process may have taken memory meanwhile, and it may have been given what one left behind.
        known_bytes = known.size_bytes if known.measured else 0
        return max(_LEAST_BYTES, packed.load.memory_bytes, file_bytes(loaded), known_bytes)

    def _own_bytes(self, deployed: Deployment) -> int:
        """The host memory of the processes that a model has for itself."""
        return sum(
            process_memory(process)
            for process in self._fleet.devices.processes
            if not process.group.packs
            and HOST in self.device_memory.places_in(process)
            and any(model.number == deployed.number for model in process.group.models)
        )

    @asynccontextmanager
    async def _turn(self, deployed: Deployment, load: Load) -> AsyncIterator[LoadTurns]:
        turns, begun = self._turns.setdefault(self._place(deployed), LoadTurns()), asyncio.Event()
        load.begin = begun.set
        turns.request(load)
        try:
            await begun.wait()
            yield turns
        finally:
            self._slow.pop(load, None)
            turns.end(load)

    @asynccontextmanager
    async def _turn_with_room(
        self, deployed: Deployment, footprint: Footprint, load: Load
    ) -> AsyncIterator[LoadTurns]:
        """Have the turn once there is room; while others may not leave, other loads have theirs.

        Raises:
            NotReady: Others may not leave now.
        """
        until_s = self._clock_s() + _PATIENCE_S
        while True:
            async with self._turn(deployed, load) as turns:
                try:
                    await self._make_room(deployed, footprint)
                except NotReady:
                    if self._clock_s() >= until_s:
                        raise
                else:
                    yield turns
                    return
            await asyncio.sleep(_LOOK_S)

    @contextmanager
    def _stepping_aside(self, load: Load, deployed: Deployment, use: Use, turns: LoadTurns) -> Iterator[None]:
        """Let the next load begin if this one turns out to be slow, or at once if it failed or hung before."""

        def step_aside() -> None:
            self._slow[load] = deployed, use.footprint.size_bytes
            self._fleet.devices.keep_apart(deployed)
            turns.step_aside(load)

        later = asyncio.get_running_loop().call_later(0 if use.error else _ALONE_S, step_aside)
        try:
            yield
        finally:
            later.cancel()

    def _check_size(self, deployed: Deployment, footprint: Footprint) -> None:
        """Refuse a model that does not fit into the whole budget: loads of others must not wait for it."""
        place = self._place(deployed)
        # Guesses of what its process takes do not count where others share it.
        known = footprint.measured or not self._fleet.devices.packs(deployed)
        size_bytes = footprint.size_bytes if known else file_bytes(deployed)
        needed_bytes = _load_bytes(deployed, size_bytes, place)
        budget_bytes = min(map(self.device_memory.budget, self._places(deployed)))
        if needed_bytes > budget_bytes:
            raise ModelTooLarge(
                f"{deployed.name} version {deployed.version} cannot be loaded: it needs about {needed_bytes >> 20} "
                f"MiB of {_kind(place)} memory, and memory_mb is {budget_bytes >> 20} MiB"
            )

    async def _make_room(self, deployed: Deployment, footprint: Footprint) -> None:
        """Unload others until there is room for a model.

        Raises:
            NotReady: Others may not leave now.
        """
        devices = self._fleet.devices
        places, place = self._places(deployed), self._place(deployed)
        reason = f"to make room for {deployed.name} version {deployed.version}"
        while True:
            await self.device_memory.measure()
            size_bytes = self._expected_bytes(deployed, footprint, place)
            needed_bytes = _load_bytes(deployed, size_bytes, place)
            missing = max(self._missing_bytes(one, size_bytes, needed_bytes) for one in places)
            if missing <= 0:
                return
            # One that leaves a full process makes room in it, so that no other process is started.
            joins = devices.packs(deployed) and not devices.has_room_for(deployed)
            if await self._evict(1 if joins else missing, places, "room", reason):
                continue
            raise NotReady(
                f"{deployed.name} is not loaded: it needs about {needed_bytes >> 20} MiB of {_kind(place)} "
                f"memory, and memory_mb leaves {max(0, needed_bytes - missing) >> 20} MiB",
                retry_after_s=math.ceil(_PATIENCE_S),
            )

    def _missing_bytes(self, place: str, size_bytes: int, needed_bytes: int) -> int:
        """The memory that has to be freed before a model that needs so many bytes for its load can stay."""
        used_bytes = self.device_memory.used(place)
        for deployed, slow_bytes in self._slow.values():
            if place in self._places(deployed):
                own_bytes = self._own_bytes(deployed) if place == HOST else 0
                used_bytes += max(0, slow_bytes - own_bytes)
        # The next load takes memory that unloaded models have left in a process; only half, because it is in pieces.
        held_bytes = used_bytes - self._left_bytes() // 2 if place == HOST else used_bytes
        return max(held_bytes + needed_bytes, used_bytes + size_bytes) - self.device_memory.budget(place)

    async def _take_slot(self, key: Key) -> int:
        """Return the slot of the metrics for a version; the counters that it had before go on."""
        known = self._catalogue.has_slot(*key)
        while True:
            try:
                slot, forgotten = self._catalogue.slot_of(*key)
                break
            except InvalidSettings as error:
                if not await self._evict(1, (), "slots", "no slot of the metrics is free"):
                    raise NotReady(str(error), retry_after_s=math.ceil(_PATIENCE_S)) from error
        if forgotten is not None:
            self._fleet.publish((self._catalogue.models.get(forgotten) or Model(forgotten)).route())
        if not known:
            self._memory.clear_model(slot)
        return slot

    async def _evict(self, missing_bytes: int, places: Collection[str], reason: str, why: str) -> bool:
        """Unload the models that are missed least; False if those that may leave do not have so many bytes.

        Args:
            places: The places whose memory is needed; empty for any.
        """
        now_s = self._clock_s()
        uses = {use.name: (key, use) for key, use in self._find_uses(places)}
        victims = choose_evicted((use for _, use in uses.values()), missing_bytes, now_s)
        if not victims:
            return False
        for name in victims:
            key, use = uses[name]
            logger.info("unloading %s version %d %s: %s", *key, why, use.explain(now_s))
            self._events.note(*key, "evicted", f"{why}: {use.explain(now_s)}")
            self._page.count_eviction(reason)
            self._begin_eviction(key)
        used_bytes = {place: self.device_memory.used(place) for place in places if place != HOST}
        # Others leave instead of one whose last requests take longer.
        tasks = [task for name in victims if (task := self._evictions.get(uses[name][0]))]
        await asyncio.wait(tasks, timeout=_PATIENCE_S)
        await self._wait_for_release(used_bytes, sum(uses[name][1].bytes for name in victims) // 2)
        self._note_used()
        return True

    async def _wait_for_release(self, used_bytes: dict[str, int], freed_bytes: int) -> None:
        """Wait up to a second until less memory of GPUs is used: drivers free it after a process has ended."""
        for _ in range(_MOST_RELEASE_LOOKS if used_bytes else 0):
            await self.device_memory.measure()
            if any(
                self.device_memory.used(place) <= used - freed_bytes for place, used in used_bytes.items()
            ):
                return
            await asyncio.sleep(_LOOK_S)

    def _begin_eviction(self, key: Key) -> None:
        version = self._version(key)
        assert version is not None, "it is in memory"
        # Now, so that nobody else chooses it.
        self._reside(self._catalogue.models[key[0]], version, "unloading", version.status.slot)
        task = self._evictions[key] = asyncio.get_running_loop().create_task(self._unload(key, version))
        task.add_done_callback(lambda _: self._evictions.pop(key, None))

    async def _unload(self, key: Key, version: Version) -> None:
        deployed = version.served
        assert deployed is not None, "it is in memory"
        await self._fleet.sleep(deployed)
        self._catalogue.release_slot(*key)
        if version.served is deployed:
            version.served = dataclasses.replace(deployed, slot=UNLOADED_SLOT)
            self._fleet.frontends.update(version.served)
            self._reside(self._catalogue.models[key[0]], version, "unloaded", UNLOADED_SLOT)

    def _reside(self, model: Model, version: Version, residence: Residence, slot: int) -> None:
        version.reside(residence, slot)
        self._fleet.publish(model.route())

    def _loaded_versions(self) -> Iterator[tuple[Key, Version, Deployment]]:
        """The versions in memory that are loaded on demand."""
        for model in self._catalogue.models.values():
            for number, version in model.versions.items():
                deployed = version.served
                if deployed is not None and deployed.on_demand and version.status.residence == "loaded":
                    yield (model.name, number), version, deployed

    def _find_uses(self, places: Collection[str]) -> Iterator[tuple[Key, ModelUse]]:
        """The uses of such versions that are available, in any of these places."""
        for key, version, deployed in self._loaded_versions():
            is_elsewhere = places and self._places(deployed).isdisjoint(places)
            if version.status.state == "AVAILABLE" and not is_elsewhere:
                use = self._use(key, deployed)
                self._uses.learn(key, use, version.status.slot)
                leased = key in self._kept or self._keeps_state(deployed)
                yield key, self._uses.describe(key, use, deployed.min_residence_s, leased=leased)

    def _keeps_state(self, deployed: Deployment) -> bool:
        return any(replica.signature.keeps_state for replica in self._fleet.devices.replicas.of(deployed))

    async def check(self) -> bool:
        """Learn the rates of requests, and unload models if too much memory is used; to be called every second."""
        places: set[str] = set()
        for key, version, deployed in self._loaded_versions():
            places.update(self._places(deployed))
            self._uses.learn(key, self._use(key, deployed), version.status.slot)
        await self.device_memory.measure()
        used_bytes = self._note_used()
        for place in places:
            turns = self._turns.setdefault(place, LoadTurns())
            excess_bytes = used_bytes.get(place, 0) - self.device_memory.budget(place)
            # A load makes room itself.
            if not turns.is_taken and excess_bytes > 0:
                await self._evict(excess_bytes, (place,), "budget", "more memory is used than memory_mb")
        return True

    async def save_footprints(self) -> bool:
        """Write what was measured into the workspace; for every few seconds."""
        await in_thread(self._uses.footprints.save)
        return True

    def _use(self, key: Key, deployed: Deployment) -> Use:
        return self._uses.provide(key, deployed, self._place(deployed))

    def _expected_bytes(self, deployed: Deployment, footprint: Footprint, place: str) -> int:
        """The memory that a model will take, with the process that is started for it if none has room."""
        devices = self._fleet.devices
        if devices.has_room_for(deployed):
            return footprint.size_bytes if footprint.measured else file_bytes(deployed)
        if devices.packs(deployed) and footprint.measured:
            return footprint.size_bytes + process_bytes(place)
        return footprint.size_bytes

    def _left_bytes(self) -> int:
        """Host memory that unloaded models have left in processes of several models."""
        left_bytes = 0
        for process in self._fleet.devices.processes:
            packs = process.group.packs and HOST in self.device_memory.places_in(process)
            if packs and process.base_bytes is not None:
                models = [replica.model for replica in self._fleet.devices.replicas.in_group(process.group)]
                uses = [self._uses.find((model.name, model.version)) for model in models]
                taken = sum(use.footprint.size_bytes for use in uses if use is not None)
                left_bytes += max(0, process_memory(process) - process.base_bytes - taken)
        return left_bytes

    def _note_used(self) -> dict[str, int]:
        """Note for the metrics how much memory is used; returns it by place."""
        used_bytes = self.device_memory.used_by_place()
        budget_bytes = sum(map(self.device_memory.budget, used_bytes))
        on_gpus = any(place != HOST for place in used_bytes)
        self._page.set_model_memory(budget_bytes, sum(used_bytes.values()), on_gpus=on_gpus)
        return used_bytes

    def _places(self, deployed: Deployment) -> set[str]:
        return self.device_memory.places_of(deployed)

    def _place(self, deployed: Deployment) -> str:
        """The place that a model is known by, if it has replicas in several: a GPU rather than the host."""
        return min(self._places(deployed))

    def _version(self, key: Key) -> Version | None:
        model = self._catalogue.models.get(key[0])
        return None if model is None else model.versions.get(key[1])


def _is_leaving(version: Version, deployed: Deployment) -> bool:
    """Whether a version that was in memory is not any more, or not for long."""
    return version.served is not deployed or version.status.residence != "loaded"


def _load_bytes(deployed: Deployment, size_bytes: int, place: str) -> int:
    """The memory that the load of a model of this size needs."""
    # A runtime has its file in host memory beside the weights that it makes of it.
    return size_bytes + (file_bytes(deployed) if place == HOST else 0)


def _kind(place: str) -> str:
    return "host" if place == HOST else "GPU"
