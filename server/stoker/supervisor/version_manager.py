"""Loads and unloads single versions: tells processes and notes states in the catalogue, in the right order.

`rollout` decides which versions are loaded.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from typing import Final

from stoker.deployment import Deployment
from stoker.errors import LoadFailed, OperatorError, ParityFailed
from stoker.metrics.layout import SUPERVISOR_PAGE, UNLOADED_SLOT
from stoker.metrics.memory import MetricMemory
from stoker.models.available_models import AvailableModel
from stoker.settings.versions import VersionStatus
from stoker.supervisor.background import in_thread
from stoker.supervisor.catalogue import Catalogue, Model, Version, shown_reason
from stoker.supervisor.events import Events
from stoker.supervisor.fleet import Fleet
from stoker.supervisor.parity import prove
from stoker.supervisor.residency import Residency
from stoker.supervisor.stock import Stock

logger = logging.getLogger(__name__)

_UNLOADED: Final = "unloaded"
_UNREADABLE: Final = "unreadable"


class VersionManager:
    """Loads and unloads versions of models; the caller lets those of a model change one after the other."""

    def __init__(
        self,
        catalogue: Catalogue,
        fleet: Fleet,
        stock: Stock,
        memory: MetricMemory,
        events: Events,
        residency: Residency | None = None,
    ) -> None:
        """Create it for the versions of the catalogue.

        Args:
            memory: The metrics, whose slots are cleared before another version gets them.
            residency: Loads models on demand; None if all models are loaded at once.
        """
        self._residency = residency
        self._catalogue = catalogue
        self._fleet = fleet
        self._stock = stock
        self._memory = memory
        self._page = memory.page(SUPERVISOR_PAGE)
        self._events = events
        self._numbers = itertools.count(1 + max((model.number for model in catalogue.served), default=-1))

    async def begin(
        self, available: Mapping[str, AvailableModel], failed: Mapping[int, OperatorError]
    ) -> list[Deployment]:
        """Record the outcome for the versions that were loaded at the start.

        Returns:
            The failed ones. Parts of them may be left, so they are to be removed.
        """
        leaving = []
        for model in self._catalogue.models.values():
            for number, version in model.versions.items():
                if version.served is not None and version.served.on_demand:
                    continue
                error = None if version.served is None else failed.get(version.served.number)
                if version.served is not None and error is None:
                    version.enter("AVAILABLE")
                    self._events.note(model.name, number, "available")
                    continue
                if version.served is not None and error is not None:
                    leaving.append(version.served)
                    version.served = None
                    version.fail(error)
                    self._catalogue.release_slot(model.name, number)
                logger.error("%s version %d is not served: %s", model.name, number, version.status.reason)
                version.failed = await _mark(available.get(model.name), number)
            self.settle(model)
        return leaving

    async def load(self, model: Model, entry: AvailableModel, number: int) -> None:
        """Load a version beside all others, and let it take the place of one of its number.

        Raises:
            OSError: Its files cannot be read.
        """
        on_demand = self._residency is not None and self._stock.is_on_demand(entry)
        slot = UNLOADED_SLOT if on_demand else self._acquire_slot(model.name, number)
        self._catalogue.models[model.name] = model
        version = model.versions.setdefault(number, Version(VersionStatus(slot)))
        old = version.served
        if old is None:
            version.enter("LOADING")
        self._publish(model)
        load_number = next(self._numbers)
        try:
            deployed = await in_thread(self._stock.prepare, entry, number, slot, load_number)
            logger.info("loading %s version %d", model.name, number)
            deployed = await self._add(model, number, deployed)
            await self._prove(model, number, deployed)
        except Exception as error:
            failure = error
            if not isinstance(error, OperatorError | OSError):
                logger.exception("loading %s version %d failed", model.name, number)
                failure = LoadFailed(f"an unexpected error, of which the log says more: {error!r}")
            await self._give_up(model, entry, number, failure)
            self._stock.release(load_number)
            if failure is error:
                raise
            raise failure from error
        version.status = VersionStatus(deployed.slot, "AVAILABLE")
        version.served, version.failed = deployed, None
        logger.info("%s version %d is available", model.name, number)
        self._events.note(model.name, number, "available")
        self.settle(model)
        if old is not None:
            await self.remove(old)

    async def _add(self, model: Model, number: int, deployed: Deployment) -> Deployment:
        """Load a version beside all others; returns it with its slot."""
        if self._residency is None:
            await self._fleet.add(deployed)
        elif deployed.on_demand:
            return await self._residency.add(model, number, deployed)
        else:
            await self._residency.make_room(deployed)
            await self._fleet.add(deployed)
        return deployed

    async def _prove(self, model: Model, number: int, deployed: Deployment) -> None:
        """Unload a version again that may not take over; raises ParityFailed then."""
        predecessor = model.predecessor(number)
        old = None if predecessor is None else model.versions[predecessor].served
        if old is None:
            return
        try:
            with ExitStack() as compared:
                if self._residency is not None and old.on_demand and deployed.parity.mode != "off":
                    compared.enter_context(self._residency.keep(old.name, old.version))
                    await self._residency.wake(old.name, old.version)
                await prove(old, deployed, self._fleet, self._events, self._page)
        except Exception:
            await self._fleet.remove(deployed)
            raise

    async def _give_up(self, model: Model, entry: AvailableModel, number: int, error: Exception) -> None:
        """Record that a version could not be loaded; where one of that number is served, it goes on."""
        version = model.versions[number]
        version.failed = await _mark(entry, number)
        version.fail(error)
        if not isinstance(error, ParityFailed):
            self._events.note(model.name, number, "load_failed", shown_reason(error))
        if version.served is None:
            self._catalogue.release_slot(model.name, number)
        self._publish(model)

    async def wake(self, model: Model, numbers: Collection[int]) -> None:
        """Load those of these versions that are loaded on demand and are not in memory."""
        for number in sorted(numbers):
            version = model.versions.get(number)
            if self._residency is not None and version is not None and version.status.waits:
                await self._residency.wake(model.name, number)

    def _acquire_slot(self, name: str, number: int) -> int:
        known = self._catalogue.models.get(name)
        slot, forgotten = self._catalogue.slot_of(name, number)
        if forgotten is not None:
            self._publish(self._catalogue.models.get(forgotten) or Model(forgotten))
        if known is None or number not in known.versions:
            # Nobody writes it now: its earlier version is gone, and the next one begins with zeros.
            self._memory.clear_model(slot)
        return slot

    def settle(self, model: Model) -> None:
        """Update the meaning of the names of a model, as far as its versions are available, and tell frontends."""
        before = model.default
        model.settle()
        if model.default not in (None, before):
            text = "" if before is None else f"it takes over from version {before}"
            self._events.note(model.name, model.default, "default", text)
        self._publish(model)

    def _publish(self, model: Model) -> None:
        self._fleet.publish(model.route())

    def roll_back(self, model: Model, number: int, reason: str) -> None:
        """Tell frontends of the weights of a model, and everybody why a version has lost its own."""
        self._page.model(model.versions[number].status.slot).count_decision("rolled_back")
        self._events.tell(logging.ERROR, model.name, number, "rolled_back", reason)
        self._publish(model)

    async def retire_all(self, model: Model) -> None:
        """Unload all versions of a model."""
        model.chosen, model.wished = set(), {}
        await self.retire_unwanted(model)

    async def retire_unwanted(self, model: Model) -> None:
        """Unload the versions that are not chosen and have no label; returns when they are unloaded."""
        model.settle()
        leaving = {}
        for number in model.unwanted:
            version = model.versions[number]
            assert version.served is not None, "what is available is served"
            leaving[number] = version.served
            version.leave()
        self.settle(model)
        for number, old in leaving.items():
            await self.remove(old)
            model.versions[number].enter("END", _UNLOADED)
            self._catalogue.release_slot(model.name, number)
            logger.info("%s version %d is unloaded", model.name, number)
            self._events.note(model.name, number, "unloaded")
            self._publish(model)

    async def remove(self, old: Deployment) -> None:
        """Unload a version to which no request is sent any more, and let its files go."""
        if self._residency is not None and old.on_demand:
            await self._residency.remove(old)
        else:
            await self._fleet.remove(old)
        self._stock.release(old.number)


async def _mark(entry: AvailableModel | None, number: int) -> str:
    """The fingerprint of a version that could not be loaded: while it stays so, there is no use in trying again."""
    try:
        return _UNREADABLE if entry is None else await in_thread(entry.fingerprint, number)
    except Exception:  # noqa: BLE001  # whatever it is, the version is given up
        return _UNREADABLE
