"""Changing what is served without an interruption: a version is loaded beside the others, then replaces them.

At every moment requests find an available version: names and labels mean a new version only once every frontend can
score with it, and an unwanted version is unloaded after its last requests are answered. A failed load changes
nothing except the state that is shown of its version. A load that hangs delays only the other changes of its model.

See decision 15.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final
from weakref import WeakValueDictionary

from stoker.deployment import Deployment
from stoker.errors import (
    LoadFailed,
    LoadTimeout,
    NotReady,
    OperatorError,
    ParityFailed,
    RequestError,
    UnknownService,
    cut,
)
from stoker.metrics.memory import MetricMemory
from stoker.models.available_models import AvailableModel
from stoker.models.labels import change_labels
from stoker.settings.choices import Adjustments
from stoker.settings.names import is_service_name
from stoker.settings.traffic import Canary
from stoker.settings.versions import DEFAULT_LABEL, VersionPolicy, check_named
from stoker.supervisor.background import in_thread
from stoker.supervisor.catalogue import Catalogue, Model
from stoker.supervisor.events import Events
from stoker.supervisor.fleet import Fleet
from stoker.supervisor.residency import Residency
from stoker.supervisor.stock import Stock
from stoker.supervisor.version_manager import VersionManager

logger = logging.getLogger(__name__)


_NONE: Final = Adjustments()


class Rollout:
    """Changes the versions of a catalogue: for each model one change after the other.

    Attributes:
        bases: The folders with the versions of models, by name; None for a model without one.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        fleet: Fleet,
        stock: Stock,
        memory: MetricMemory,
        events: Events | None = None,
        residency: Residency | None = None,
    ) -> None:
        self.bases: dict[str, Path | None] = {}
        self._catalogue = catalogue
        self._stock = stock
        self.events = Events() if events is None else events
        self._manager = VersionManager(catalogue, fleet, stock, memory, self.events, residency)
        self._residency = residency
        self._waiting: dict[str, Mapping[str, int]] = {}
        self._stored: dict[str, Canary] = {}
        """The weights that were last read from files: those set by the API since then stay until the files change."""
        self._adjustments: dict[str, Adjustments] = {}
        """The settings of the last load request of a model, which its further versions are loaded with too."""
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._listing = asyncio.Lock()
        self._begun = False

    async def begin(
        self,
        available: Mapping[str, AvailableModel],
        failed: Mapping[int, OperatorError] = MappingProxyType({}),
    ) -> None:
        """Record that the models of the start are loaded.

        Args:
            failed: By number why some versions could not be loaded; their remains are removed.
        """
        self.bases = {name: entry.base for name, entry in available.items()}
        self._stored = {name: model.canary for name, model in self._catalogue.models.items()}
        leaving = await self._manager.begin(available, failed)
        # Recorded now, so that a caller who reads that a version is broken can load it again.
        self._begun = True
        for deployed in leaving:
            await self._manager.remove(deployed)

    async def serve_earlier(self, available: Mapping[str, AvailableModel]) -> list[Deployment]:
        """Serve earlier versions of models of which nothing could be loaded at the start; returns them.

        As while the server runs: a newest version that is still being written does not end the one before.
        """
        found = []
        for name, entry in available.items():
            model = self._catalogue.models.get(name)
            if model is not None and any(version.served for version in model.versions.values()):
                continue
            for number in entry.earlier:
                async with self._turn(name):
                    failed = await self._serve(entry, {number}, await in_thread(entry.labels))
                served = self._catalogue.models[name].versions[number].served
                if served is not None and number not in failed:
                    logger.warning("%s: version %d is served until a newer one can be", name, number)
                    found.append(served)
                    break
        return found

    async def load(
        self,
        name: str,
        policy: VersionPolicy | None = None,
        version: int | None = None,
        adjustments: Adjustments = _NONE,
    ) -> None:
        """Serve the versions of a model that its policy names now, and load changed files again.

        Args:
            policy: A policy instead of the one in its settings.
            version: A single version, in addition to those that are served.
            adjustments: Settings of batching for all versions until the next such request; versions that are served
                with other settings are loaded again. Not used for a single version.

        Raises:
            UnknownService: There is no such model.
            RequestError: The model has no such version.
            LoadFailed: A version could not be loaded; what is served stays as it is.
            LoadTimeout: As LoadFailed, where the time limit was the only reason.
            NotReady: The server is starting.
        """
        async with self._exclusive(name):
            if version is not None:
                adjustments = self._adjustments.get(name, _NONE)
            entry = (await self._find_model(name)).adjusted(adjustments)
            if entry.error is not None:
                raise LoadFailed(f"failed to load '{name}', {entry.error}")
            there = entry.all_versions
            try:
                check_named(name, policy or entry.policy, there)
                check_named(name, VersionPolicy(None, () if version is None else (version,)), there)
                labels = await in_thread(entry.labels)
            except OperatorError as error:
                raise RequestError(str(error)) from error
            known = self._catalogue.models.get(name)
            if version is not None:
                chosen = {version, *(known.chosen if known else ())}
            else:
                chosen = set((policy or entry.policy).choose(there))
            failed = await self._serve(entry, chosen, labels)
            if failed:
                reasons = "; ".join(f"version {number}: {error}" for number, error in failed.items())
                alike = (kind for kind in (LoadTimeout, ParityFailed) if _all_are(kind, failed.values()))
                raise next(alike, LoadFailed)(f"failed to load '{name}', {reasons}")
            self._adjustments[name] = adjustments
            if (model := self._catalogue.models.get(name)) is not None:
                await self._manager.wake(model, model.wanted if version is None else [version])

    async def wake(self, name: str, version: int, timeout_s: float, caller: str) -> None:
        """Load a version that is loaded on demand, unless it is in memory; see `Residency.wake`."""
        if not self._begun or self._residency is None:
            raise NotReady("The server is starting.", retry_after_s=1)
        await self._residency.wake(name, version, timeout_s, caller)

    async def unload(self, name: str, version: int | None = None) -> None:
        """Unload a model or one of its versions, and return when its last requests have been answered.

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
                await self._manager.retire_all(model)
                return
            names = [*model.wished.items(), *model.labels.items()]
            label = next((label for label, number in names if number == version), None)
            if label is not None:
                raise RequestError(
                    f"failed to unload '{name}' version {version}: it has the label {label!r}; move that first"
                )
            model.chosen.discard(version)
            await self._manager.retire_unwanted(model)

    async def shift(self, name: str, canary: Canary) -> None:
        """Set the weights by which requests that name no version are divided.

        Raises:
            UnknownService: It is not served.
            RequestError: The model does not have one of the labels.
            NotReady: The server is starting.
        """
        async with self._exclusive(name):
            model = self._catalogue.models.get(name)
            if model is None or not model.available:
                raise UnknownService(f"failed to shift '{cut(name)}': it is not loaded")
            named = (*canary.weights, *canary.shadow)
            unknown = [label for label in named if model.meant_by(label) is None]
            if unknown:
                has = ", ".join(model.labels) or "none"
                raise RequestError(f"failed to shift '{name}': it has no label {unknown[0]!r}; it has {has}")
            self._shift(model, canary)
            self._manager.settle(model)

    async def set_default(self, name: str, version: int) -> None:
        """Give a served version the label `default`, beside its files: it stays the default after a restart.

        Raises:
            UnknownService: It is not served.
            RequestError: The label cannot be written.
            NotReady: The server is starting.
        """
        async with self._exclusive(name):
            model = self._catalogue.models.get(name)
            if model is None or version not in model.available:
                raise UnknownService(
                    f"'{cut(name)}' version {version} is not loaded: it cannot be the default"
                )
            entry = (await self._find_model(name)).adjusted(self._adjustments.get(name, _NONE))
            if entry.base is None:
                # Its only version.
                return
            try:
                await in_thread(change_labels, entry.base, {DEFAULT_LABEL: version})
                labels = await in_thread(entry.labels)
            except (OperatorError, OSError) as error:
                raise RequestError(f"the default of '{name}' cannot be changed: {error}") from error
            await self._serve(entry, model.chosen, labels, settled=())

    async def move(self, deployed: Deployment) -> None:
        """Load a served version again, from the same files, in another process; it takes over from itself.

        Raises:
            LoadFailed: It could not be loaded, or its files have changed; what is served stays as it is.
        """
        async with self._exclusive(deployed.name):
            model = self._catalogue.models.get(deployed.name)
            version = None if model is None else model.versions.get(deployed.version)
            served = None if version is None else version.served
            if model is None or served is None or served.number != deployed.number:
                return
            entry = (await self._find_model(deployed.name)).adjusted(
                self._adjustments.get(deployed.name, _NONE)
            )
            if await in_thread(entry.fingerprint, deployed.version) != deployed.fingerprint:
                raise LoadFailed("its files have changed")
            await self._manager.load(model, entry, deployed.version)

    def roll_back(self, model: Model, label: str, number: int, reason: str) -> None:
        """Set the weight of a label to zero because its version fails or is slow; at once, even during a load."""
        weights = {name: 0 if name == label else weight for name, weight in model.canary.weights.items()}
        model.canary = dataclasses.replace(model.canary, weights=weights)
        self._manager.roll_back(model, number, f"the label {label} gets no requests any more: {reason}")

    async def follow(self, entry: AvailableModel) -> None:
        """Update the labels of a served model, and load the versions that they need.

        Raises:
            RepositoryError: The file with the labels is malformed.
        """
        async with self._turn(entry.name):
            model = self._catalogue.models.get(entry.name)
            if model is not None and model.wanted:
                # Files that have changed are not loaded again here: nobody has said that they are complete.
                unserved = entry.all_versions.difference(model.available)
                adjusted = entry.adjusted(self._adjustments.get(entry.name, _NONE))
                await self._serve(adjusted, model.chosen, await in_thread(entry.labels), unserved)

    async def refresh(
        self, available: Mapping[str, AvailableModel], settled: Collection[tuple[str, int]]
    ) -> None:
        """Serve what the policies of these models say now; models that are not in `available` are unloaded."""
        for name, entry in available.items():
            if entry.error is not None:
                continue
            async with self._turn(name):
                model = self._catalogue.models.get(name)
                # A served version whose files are being replaced in place at the moment is not gone.
                rewritten = set(entry.broken).intersection(model.available if model else ())
                chosen = set(entry.policy.choose({*entry.versions, *rewritten}))
                ready = [version for other, version in settled if other == name]
                try:
                    adjusted = entry.adjusted(self._adjustments.get(name, _NONE))
                    await self._serve(
                        adjusted, chosen, await in_thread(entry.labels), ready, failed_too=False
                    )
                except OperatorError as error:
                    logger.warning("%s", error)
        if any(entry.error is not None for entry in available.values()):
            # Where a folder cannot be read now, its models may still be there, so nothing is unloaded.
            return
        for name, model in list(self._catalogue.models.items()):
            if name not in available and model.wanted:
                logger.info("%s is not there any more", name)
                async with self._turn(name):
                    await self._manager.retire_all(model)

    async def index(self, *, ready: bool) -> list[dict[str, str]]:
        """Return all models with their versions, in the form of the model repository extension."""
        if ready:
            return [entry for entry in self._catalogue.index() if entry["state"] == "READY"]
        try:
            # Needs no key and reads the disk, so it is limited: however many callers ask, loads still find threads.
            async with self._listing:
                available = await in_thread(self._stock.find_models)
        except (OperatorError, OSError) as error:
            logger.warning("the models cannot be listed: %s", error)
            return self._catalogue.index()
        return self._catalogue.index(available)

    def _exclusive(self, name: str) -> asyncio.Lock:
        if not self._begun:
            raise NotReady("The server is starting.", retry_after_s=1)
        return self._turn(name)

    def _turn(self, name: str) -> asyncio.Lock:
        """Return the lock for changes of a model; different models are changed concurrently."""
        return self._turns.setdefault(name, asyncio.Lock())

    async def _find_model(self, name: str) -> AvailableModel:
        if not is_service_name(name):
            # The name 'digits:1' would be found as a registered model with settings of its own.
            raise UnknownService(
                f"failed to load '{cut(name)}': no model can be called so, and versions have their own path"
            )
        try:
            return await in_thread(self._stock.find_model, name)
        except OperatorError as error:
            raise UnknownService(f"failed to load '{name}', {error}") from error

    async def _serve(
        self,
        entry: AvailableModel,
        chosen: Collection[int],
        labels: Mapping[str, int],
        settled: Collection[int] | None = None,
        *,
        failed_too: bool = True,
    ) -> dict[int, Exception]:
        """Load what is missing, switch, and retire what is not wanted; returns why versions could not be loaded.

        Args:
            chosen: The versions to serve, in addition to those with labels.
            failed_too: Whether to load versions again that failed before and whose files have not changed since.
        """
        model = self._catalogue.models.get(entry.name) or Model(entry.name)
        before = set(model.chosen)
        model.chosen = set(chosen)
        self._warn_of_waiting_labels(model, model.wish(labels, entry.all_versions))
        stored = await in_thread(entry.canary)
        if self._stored.get(entry.name, model.canary) != stored:
            self._shift(model, stored)
        self._stored[entry.name] = stored
        failed: dict[int, Exception] = {}
        # A label may keep its old meaning although the files of that version are gone.
        for version in sorted(model.wanted.intersection(entry.all_versions)):
            try:
                may_load = settled is None or version in settled
                if may_load and await self._is_missing(model, entry, version, failed_too=failed_too):
                    await self._manager.load(model, entry, version)
            except (OperatorError, OSError) as error:
                logger.error("%s version %d cannot be loaded: %s", entry.name, version, error)  # noqa: TRY400
                failed[version] = error
        if missing := model.chosen.difference(model.available):
            # The versions chosen before stay until a new one can replace them.
            model.chosen = (model.chosen - missing) | before
        if entry.name in self._catalogue.models:
            self.bases[entry.name] = entry.base
            await self._manager.retire_unwanted(model)
        return failed

    def _shift(self, model: Model, canary: Canary) -> None:
        model.canary = canary
        logger.info("%s: the requests that name no version go by weights: %s", model.name, canary)
        self.events.note(model.name, None, "weights", str(canary))

    def _warn_of_waiting_labels(self, model: Model, waiting: Mapping[str, int]) -> None:
        """Log once for each label that waits for its version what it means until then."""
        logged, self._waiting[model.name] = self._waiting.get(model.name, {}), waiting
        for label, number in waiting.items():
            if logged.get(label) != number:
                kept = model.wished.get(label)
                logger.warning(
                    "the label %r of %s %s: there is no version %d to load",
                    label,
                    model.name,
                    "means nothing" if kept is None else f"goes on meaning version {kept}",
                    number,
                )

    async def _is_missing(
        self, model: Model, entry: AvailableModel, number: int, *, failed_too: bool
    ) -> bool:
        """Whether a version has to be loaded: it is not served, or with other settings, or from changed files."""
        version = model.versions.get(number)
        if version is not None and version.served and version.served.adjustments != entry.adjustments:
            return True
        failed = None if version is None or failed_too else version.failed
        known = failed or (version.served.fingerprint if version and version.served else None)
        return known is None or known != await in_thread(entry.fingerprint, number)


def _all_are(kind: type[Exception], errors: Iterable[Exception]) -> bool:
    return all(isinstance(error, kind) for error in errors)
