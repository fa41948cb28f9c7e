"""Changing what is served while it is served: a version is loaded beside the others, takes over, and they leave.

Whatever is changed, requests find a version that is available: names and labels mean a new version from the moment in
which every frontend can score with it, and a version that is not wanted any more is unloaded when its last requests
are answered. A load that fails changes nothing but the state that is shown of its version, and one that hangs holds
up nothing but the other changes of its model.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakValueDictionary

from stoker.echo import cut
from stoker.errors import LoadFailed, LoadTimeout, NotReady, OperatorError, RequestError, UnknownService
from stoker.names import is_name
from stoker.supervisor.background import in_thread
from stoker.supervisor.catalogue import Catalogue, Model, Version
from stoker.versions import Standing, VersionPolicy, check_named

if TYPE_CHECKING:
    from pathlib import Path

    from stoker.control.frontend_messages import Route
    from stoker.metrics import MetricMemory
    from stoker.models.deployed import Deployed
    from stoker.models.offers import Offer

__all__ = ["Processes", "Rollout", "Stock"]

logger = logging.getLogger(__name__)

_UNLOADED: Final = "unloaded"
_UNREADABLE: Final = "unreadable"


class Processes(Protocol):
    """What loads and unloads models; see `fleet.Fleet`."""

    async def add(self, model: Deployed) -> None:
        """Load a model; raises OperatorError if that fails."""

    async def remove(self, model: Deployed) -> None:
        """Let it finish its requests, and unload it."""

    def publish(self, route: Route) -> None:
        """Tell frontends what a model's names mean from now on."""


class Stock(Protocol):
    """Where versions come from; see `stock.Stock`. All of it may block for long, on several threads."""

    def offers(self) -> Mapping[str, Offer]:
        """The models that the settings name, as they are now."""

    def offer(self, name: str) -> Offer:
        """One model; raises UnknownModel."""

    def take(self, offer: Offer, version: int, slot: int, number: int) -> Deployed:
        """Prepare a version to be loaded, and keep it from being deleted; raises OperatorError."""

    def put_back(self, number: int) -> None:
        """Let a version go that was taken."""


class Rollout:
    """What moves the versions of a catalogue through their lives: those of a model one change after the other.

    Attributes:
        bases: The folders with the versions of models, by name; None for a model without such a folder.
    """

    def __init__(self, catalogue: Catalogue, fleet: Processes, stock: Stock, memory: MetricMemory) -> None:
        self.bases: dict[str, Path | None] = {}
        self._catalogue = catalogue
        self._fleet = fleet
        self._stock = stock
        self._memory = memory
        self._published: dict[str, Route] = {}
        self._waiting: dict[str, Mapping[str, int]] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._listing = asyncio.Lock()
        self._numbers = itertools.count(1 + max((model.number for model in catalogue.served), default=-1))
        self._begun = False

    async def begin(
        self,
        offers: Mapping[str, Offer],
        failed: Mapping[int, OperatorError] = MappingProxyType({}),
    ) -> None:
        """Take note that everything of the start is loaded.

        Args:
            offers: The models of the settings.
            failed: By number why some could not be loaded; whatever is left of them is removed.
        """
        self.bases = {name: offer.base for name, offer in offers.items()}
        leaving = []
        for model in self._catalogue.models.values():
            for number, version in model.versions.items():
                error = None if version.served is None else failed.get(version.served.number)
                if version.served is not None and error is None:
                    version.enter("AVAILABLE")
                    continue
                if version.served is not None and error is not None:
                    leaving.append(version.served)
                    version.served = None
                    version.fail(error)
                    self._catalogue.release_slot(model.name, number)
                logger.error("%s version %d is not served: %s", model.name, number, version.standing.reason)
                version.failed = await _mark(offers.get(model.name), number)
            self._settle(model)
        # Now, so that what was broken at the start can be loaded again by whoever reads that it is.
        self._begun = True
        for deployed in leaving:
            await self._remove(deployed)

    async def load(self, name: str, policy: VersionPolicy | None = None, version: int | None = None) -> None:
        """Serve a model as its policy says now, and load anew what has changed in its files.

        Args:
            name: Name of the model.
            policy: Another policy than that of its settings.
            version: This one version in addition to those that are served.

        Raises:
            UnknownService: There is no such model.
            RequestError: It has no such version.
            LoadFailed: A version could not be loaded; what is served stays as it is.
            LoadTimeout: The same, if nothing but time was missing.
            NotReady: The server is starting.
        """
        async with self._exclusive(name):
            offer = await self._offer(name)
            if offer.error is not None:
                raise LoadFailed(f"failed to load '{name}', {offer.error}")
            there = offer.there
            try:
                check_named(name, policy or offer.policy, there)
                check_named(name, VersionPolicy(None, () if version is None else (version,)), there)
                labels = await in_thread(offer.labels)
            except OperatorError as error:
                raise RequestError(str(error)) from error
            known = self._catalogue.models.get(name)
            if version is not None:
                chosen = {version, *(known.chosen if known else ())}
            else:
                chosen = set((policy or offer.policy).choose(there))
            failed = await self._serve(offer, chosen, labels)
            if failed:
                late = all(isinstance(error, LoadTimeout) for error in failed.values())
                reasons = "; ".join(f"version {number}: {error}" for number, error in failed.items())
                raise (LoadTimeout if late else LoadFailed)(f"failed to load '{name}', {reasons}")

    async def unload(self, name: str, version: int | None = None) -> None:
        """Serve a model, or one of its versions, no longer; returns when its last requests have been answered.

        Raises:
            UnknownService: It is not served.
            RequestError: The version has a label.
            NotReady: The server is starting.
        """
        async with self._exclusive(name):
            model = self._catalogue.models.get(name)
            loaded = model is not None and (
                version in model.available if version is not None else model.wanted
            )
            if model is None or not loaded:
                shown = f"'{cut(name)}'" if version is None else f"'{cut(name)}' version {version}"
                raise UnknownService(f"failed to unload {shown}: it is not loaded")
            if version is None:
                await self._retire_all(model)
                return
            names = [*model.wished.items(), *model.labels.items()]
            label = next((label for label, number in names if number == version), None)
            if label is not None:
                raise RequestError(
                    f"failed to unload '{name}' version {version}: it has the label {label!r}; move that first"
                )
            model.chosen.discard(version)
            await self._retire_unwanted(model)

    async def follow(self, offer: Offer) -> None:
        """Let the labels of a model that is served mean what they should now; versions are loaded for that.

        Raises:
            RepositoryError: The file with the labels is malformed.
        """
        async with self._turn(offer.name):
            model = self._catalogue.models.get(offer.name)
            if model is not None and model.wanted:
                # Files that have changed are not loaded for it: nobody has said that they are complete.
                unserved = offer.there.difference(model.available)
                await self._serve(offer, model.chosen, await in_thread(offer.labels), unserved)

    async def refresh(self, offers: Mapping[str, Offer], settled: Collection[tuple[str, int]]) -> None:
        """Serve what the policies of these models say now; models that are not among them are unloaded.

        Args:
            offers: The models by name.
            settled: The versions whose files do not change just now: no others are loaded.
        """
        for name, offer in offers.items():
            if offer.error is not None:
                continue
            async with self._turn(name):
                model = self._catalogue.models.get(name)
                # A version that is served and that somebody is just replacing in its place is not gone.
                rewritten = set(offer.broken).intersection(model.available if model else ())
                chosen = set(offer.policy.choose({*offer.versions, *rewritten}))
                ready = [version for other, version in settled if other == name]
                try:
                    await self._serve(offer, chosen, await in_thread(offer.labels), ready, failed_too=False)
                except OperatorError as error:
                    logger.warning("%s", error)
        if any(offer.error is not None for offer in offers.values()):
            # Where nothing can be found just now, there may have been a folder of models.
            return
        for name, model in list(self._catalogue.models.items()):
            if name not in offers and model.wanted:
                logger.info("%s is not there any more", name)
                async with self._turn(name):
                    await self._retire_all(model)

    async def index(self, *, ready: bool) -> list[dict[str, str]]:
        """Return all models with their versions, as the model repository extension has them.

        Args:
            ready: Only those that are served.
        """
        if ready:
            return [entry for entry in self._catalogue.index() if entry["state"] == "READY"]
        try:
            # It needs no key, and reads the disk: however many ask, loads find threads.
            async with self._listing:
                offers = await in_thread(self._stock.offers)
        except (OperatorError, OSError) as error:
            logger.warning("the models cannot be listed: %s", error)
            return self._catalogue.index()
        return self._catalogue.index(offers)

    def _exclusive(self, name: str) -> asyncio.Lock:
        if not self._begun:
            raise NotReady("The server is starting.", retry_after_s=1)
        return self._turn(name)

    def _turn(self, name: str) -> asyncio.Lock:
        """What each change of a model takes; the changes of different models go on beside each other."""
        return self._turns.setdefault(name, asyncio.Lock())

    async def _offer(self, name: str) -> Offer:
        if not is_name(name):
            # 'digits:1' would be found, as a registered model with settings of its own.
            raise UnknownService(
                f"failed to load '{cut(name)}': no model can be called so, and versions have their own path"
            )
        try:
            return await in_thread(self._stock.offer, name)
        except OperatorError as error:
            raise UnknownService(f"failed to load '{name}', {error}") from error

    async def _serve(
        self,
        offer: Offer,
        chosen: Collection[int],
        labels: Mapping[str, int],
        settled: Collection[int] | None = None,
        *,
        failed_too: bool = True,
    ) -> dict[int, Exception]:
        """Load what is missing, switch, and retire what is not wanted; returns why versions could not be loaded.

        Args:
            offer: The model.
            chosen: The versions to serve, beside those with labels.
            labels: What the labels should mean.
            settled: The versions that may be loaded; None for all.
            failed_too: Whether those may that could not be loaded before, and whose files have not changed since.
        """
        model = self._catalogue.models.get(offer.name) or Model(offer.name)
        before = set(model.chosen)
        model.chosen = set(chosen)
        self._tell_of_waiting(model, model.wish(labels, offer.there))
        failed: dict[int, Exception] = {}
        # What a label goes on meaning may be served from files that are gone.
        for version in sorted(model.wanted.intersection(offer.there)):
            try:
                may_load = settled is None or version in settled
                if may_load and await self._is_missing(model, offer, version, failed_too=failed_too):
                    await self._load(model, offer, version)
            except (OperatorError, OSError) as error:
                logger.error("%s version %d cannot be loaded: %s", offer.name, version, error)  # noqa: TRY400
                failed[version] = error
        if missing := model.chosen.difference(model.available):
            # Then what was chosen before stays, until there is something that can take its place.
            model.chosen = (model.chosen - missing) | before
        if offer.name in self._catalogue.models:
            self.bases[offer.name] = offer.base
            await self._retire_unwanted(model)
        return failed

    def _tell_of_waiting(self, model: Model, waiting: Mapping[str, int]) -> None:
        """Say of each label that waits for its version what it means until then, once."""
        told, self._waiting[model.name] = self._waiting.get(model.name, {}), waiting
        for label, number in waiting.items():
            if told.get(label) != number:
                kept = model.wished.get(label)
                logger.warning(
                    "the label %r of %s %s: there is no version %d to load",
                    label,
                    model.name,
                    "means nothing" if kept is None else f"goes on meaning version {kept}",
                    number,
                )

    async def _is_missing(self, model: Model, offer: Offer, number: int, *, failed_too: bool) -> bool:
        """Whether a version is to be loaded: it is not served, or its files have changed."""
        version = model.versions.get(number)
        failed = None if version is None or failed_too else version.failed
        known = failed or (version.served.fingerprint if version and version.served else None)
        return known is None or known != await in_thread(offer.fingerprint, number)

    async def _load(self, model: Model, offer: Offer, number: int) -> None:
        slot = self._take_slot(model.name, number)
        self._catalogue.models[model.name] = model
        version = model.versions.setdefault(number, Version(Standing(slot)))
        old = version.served
        if old is None:
            version.enter("LOADING")
        self._publish(model)
        load_number = next(self._numbers)
        try:
            deployed = await in_thread(self._stock.take, offer, number, slot, load_number)
            logger.info("loading %s version %d", model.name, number)
            await self._fleet.add(deployed)
        except Exception as error:
            failure = error
            if not isinstance(error, OperatorError | OSError):
                logger.exception("loading %s version %d failed", model.name, number)
                failure = LoadFailed(f"an unexpected error, of which the log says more: {error!r}")
            await self._give_up(model, offer, number, failure)
            self._stock.put_back(load_number)
            if failure is error:
                raise
            raise failure from error
        version.enter("AVAILABLE")
        version.served, version.failed = deployed, None
        logger.info("%s version %d is available", model.name, number)
        self._settle(model)
        if old is not None:
            await self._remove(old)

    async def _give_up(self, model: Model, offer: Offer, number: int, error: Exception) -> None:
        """Take note that a version could not be loaded; where one of that number is served, it goes on."""
        version = model.versions[number]
        version.failed = await _mark(offer, number)
        version.fail(error)
        if version.served is None:
            self._catalogue.release_slot(model.name, number)
        self._publish(model)

    def _take_slot(self, name: str, number: int) -> int:
        known = self._catalogue.models.get(name)
        slot, forgotten = self._catalogue.slot_of(name, number)
        if forgotten is not None:
            self._publish(self._catalogue.models.get(forgotten) or Model(forgotten))
        if known is None or number not in known.versions:
            # Nobody writes it now: whoever had it is gone, and the next one begins with zeros.
            self._memory.clear_model(slot)
        return slot

    def _settle(self, model: Model) -> None:
        model.settle()
        self._publish(model)

    def _publish(self, model: Model) -> None:
        route = model.route()
        if self._published.get(model.name) != route:
            self._published[model.name] = route
            self._fleet.publish(route)

    async def _retire_all(self, model: Model) -> None:
        model.chosen, model.wished = set(), {}
        await self._retire_unwanted(model)

    async def _retire_unwanted(self, model: Model) -> None:
        model.settle()
        leaving = {}
        for number in model.unwanted:
            version = model.versions[number]
            assert version.served is not None, "what is available is served"
            leaving[number] = version.served
            version.leave()
        self._settle(model)
        for number, old in leaving.items():
            await self._remove(old)
            model.versions[number].enter("END", _UNLOADED)
            self._catalogue.release_slot(model.name, number)
            logger.info("%s version %d is unloaded", model.name, number)
            self._publish(model)

    async def _remove(self, old: Deployed) -> None:
        await self._fleet.remove(old)
        self._stock.put_back(old.number)


async def _mark(offer: Offer | None, number: int) -> str:
    """The fingerprint of a version that could not be loaded: while it stays so, there is no use in trying again."""
    try:
        return _UNREADABLE if offer is None else await in_thread(offer.fingerprint, number)
    except Exception:  # noqa: BLE001  # whatever it is, the version is given up
        return _UNREADABLE
