"""The versions of all models of a server, the state of each, and the versions that names and labels mean.

Pure bookkeeping: `rollout` changes the states, and frontends are told the result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec import Struct

from stoker.control.frontend_messages import Route, RoutedVersion
from stoker.deployment import Deployment
from stoker.errors import OperatorError
from stoker.metrics.layout import UNLOADED_SLOT
from stoker.models.available_models import AvailableModel
from stoker.settings.pipelines import VERSION, Pipeline
from stoker.settings.traffic import Canary
from stoker.settings.versions import DEFAULT_LABEL, ON_DEMAND, Residence, State, VersionStatus
from stoker.supervisor.metric_slots import Slots

_REASON_CHARS: Final = 500
_READY_STATES: Final = {
    "START": "LOADING",
    "LOADING": "LOADING",
    "AVAILABLE": "READY",
    "UNLOADING": "UNLOADING",
    "END": "UNAVAILABLE",
}


class Version(Struct):
    """One version of a model.

    Attributes:
        served: The load with which frontends score. While a changed version is being loaded again, the earlier one.
        load_s: How long it is expected to load if it is loaded on demand; 0 if nothing is known.
    """

    status: VersionStatus
    served: Deployment | None = None
    failed: str | None = None
    load_s: float = 0.0

    def enter(self, state: State, reason: str = "") -> None:
        """Enter a state without an error."""
        self.status = VersionStatus(self.status.slot, state, reason)

    def reside(self, residence: Residence, slot: int) -> None:
        """Record whether an available version is in memory, and its slot of the metrics."""
        reason = ON_DEMAND if residence == "unloaded" else ""
        self.status = VersionStatus(slot, "AVAILABLE", reason, residence=residence)

    def leave(self) -> None:
        """Enter UNLOADING: frontends do not score with it any more."""
        self.status, self.served = dataclasses.replace(self.status, state="UNLOADING"), None

    def fail(self, error: Exception) -> None:
        """Record a failed load; if an earlier load of the same version is served, it stays in use."""
        state = "END" if self.served is None else self.status.state
        code = error.code if isinstance(error, OperatorError) else OperatorError.code
        self.status = VersionStatus(self.status.slot, state, shown_reason(error), code)


def shown_reason(error: Exception) -> str:
    """The text of an error as shown in the reason for a version's state."""
    return str(error)[:_REASON_CHARS]


class Model(Struct):
    """The versions of one model.

    Attributes:
        versions: All versions that the server has had so far, by number.
        chosen: The versions that the policy or a request chose to be served.
        wished: The configured meaning of the labels.
        labels: Their present meaning: a label moves once its new version is available.
        default: The version for requests that name none; None if nothing is served.
        canary: The weights by which requests that name no version go to the versions with labels.
    """

    name: str
    versions: dict[int, Version] = msgspec.field(default_factory=dict)
    chosen: set[int] = msgspec.field(default_factory=set)
    wished: dict[str, int] = msgspec.field(default_factory=dict)
    labels: dict[str, int] = msgspec.field(default_factory=dict)
    default: int | None = None
    canary: Canary = msgspec.field(default_factory=Canary)

    @property
    def wanted(self) -> set[int]:
        """The versions that should be served: the chosen ones, and all that should have a label."""
        return self.chosen | set(self.wished.values())

    @property
    def unwanted(self) -> list[int]:
        """The versions to unload: not chosen and, after `settle`, without a label."""
        return sorted(set(self.available).difference(self.wanted, self.labels.values()))

    @property
    def available(self) -> list[int]:
        """The available versions, ascending."""
        return sorted(
            number for number, version in self.versions.items() if version.status.state == "AVAILABLE"
        )

    def wish(self, labels: Mapping[str, int], there: Collection[int]) -> dict[str, int]:
        """Set the meaning of the labels, which each take effect once their version is available.

        A label may be moved before its version exists: it then keeps its present meaning, unless that version is
        gone.

        Returns:
            The labels that wait for their version.
        """
        waiting = {label: number for label, number in labels.items() if number not in there}
        self.wished = {label: number for label, number in labels.items() if label not in waiting}
        for label, number in waiting.items():
            if self.labels.get(label, number) != number:
                self.wished[label] = self.labels[label]
        return waiting

    def settle(self) -> None:
        """Update labels and default as far as the versions that they should mean are available.

        A version that is served only because of a label (a canary, for example) never becomes the default for lack
        of another.
        """
        available = self.available
        meant = {label: self._meant(label, number) for label, number in sorted(self.wished.items())}
        self.labels = {label: number for label, number in meant.items() if number is not None}
        best = self.wished.get(DEFAULT_LABEL, max(self.chosen, default=None))
        if best in (available or self.versions):
            self.default = best
        elif self.default not in available:
            self.default = max(self.chosen.intersection(available), default=None)

    def _meant(self, label: str, wished: int) -> int | None:
        """The version that a label means now; None if it means none."""
        available, before = self.available, self.labels.get(label)
        if wished in available or before in available:
            return wished if wished in available else before
        # At the start frontends know a version before it is loaded: callers get "not ready" rather than "unknown".
        version = self.versions.get(wished)
        coming = version is not None and version.status.state == "LOADING" and version.served is not None
        return wished if coming else None

    @property
    def shares(self) -> dict[str, int]:
        """The weights of versions by number, without labels whose version is not available or whose weight is 0."""
        shares: dict[str, int] = {}
        for number, weight in self._amounts(self.canary.weights):
            shares[str(number)] = shares.get(str(number), 0) + weight
        return shares

    def _amounts(self, by_label: Mapping[str, int]) -> Iterator[tuple[int, int]]:
        """The available versions of the labels with their configured weights, except 0."""
        for label, amount in by_label.items():
            number = self.meant_by(label)
            if amount and number in self.available:
                yield number, amount

    def meant_by(self, label: str) -> int | None:
        """The version that a label means now; `default` means the default if there is no label of that name."""
        return self.labels.get(label, self.default if label == DEFAULT_LABEL else None)

    def named(self, version: int | None, label: str | None) -> int | None:
        """The version for a number, which may not exist, for a label, or for neither."""
        if version is not None:
            return version
        return self.default if label is None else self.labels.get(label)

    def predecessor(self, number: int) -> int | None:
        """Return the available version that another one will replace once it is available; None if there is none.

        It may be an earlier load of the same version.
        """
        available = self.available
        if number in available:
            return number
        if (
            self.wished.get(DEFAULT_LABEL, max(self.chosen, default=None)) == number
            and self.default in available
        ):
            return self.default
        moved = (self.labels.get(label) for label, wish in self.wished.items() if wish == number)
        return next((old for old in moved if old in available), None)

    def route(self) -> Route:
        """Return the message for frontends."""
        return Route(
            self.name,
            self.default,
            self.labels,
            versions=tuple(
                RoutedVersion(
                    number,
                    version.status,
                    version.served.number if version.served else None,
                    version.load_s,
                )
                for number, version in sorted(self.versions.items())
            ),
            shares=self.shares,
            by=self.canary.by,
            shadows={str(number): percent for number, percent in self._amounts(self.canary.shadow)},
        )

    def index(self) -> Iterator[dict[str, str]]:
        """Return one entry per version, in the form of the model repository extension."""
        for number, version in sorted(self.versions.items()):
            entry = {
                "name": self.name,
                "version": str(number),
                "state": _READY_STATES["END" if version.status.waits else version.status.shown_state],
            }
            reason = version.status.reason
            yield {**entry, "reason": reason} if reason else entry


class Catalogue:
    """All models of a server.

    Attributes:
        only: The model that is meant where a path names none.
        pipelines: The slots of pipelines in the metrics, by name.
    """

    def __init__(
        self,
        models: Sequence[Deployment],
        available: Mapping[str, AvailableModel] = MappingProxyType({}),
        broken: Mapping[tuple[str, int], OperatorError] = MappingProxyType({}),
        pipelines: Sequence[Pipeline] = (),
    ) -> None:
        """Create it with the versions that are loaded at the start.

        Args:
            available: By model which of its versions are served only because of a label.
            broken: Further versions by name and number that should be loaded, and why they are not.
        """
        self.models: dict[str, Model] = {}
        self._slots = Slots()
        for deployed in models:
            model = self.models.setdefault(deployed.name, Model(deployed.name))
            if deployed.on_demand:
                version = model.versions[deployed.version] = Version(VersionStatus(UNLOADED_SLOT), deployed)
                version.reside("unloaded", UNLOADED_SLOT)
                model.chosen.add(deployed.version)
                continue
            self._slots.keep(deployed.name, deployed.version, deployed.slot)
            # Frontends have the services of all versions from the start, and refuse requests until they are loaded.
            model.versions[deployed.version] = Version(VersionStatus(deployed.slot, "LOADING"), deployed)
            model.chosen.add(deployed.version)
        for (name, number), error in broken.items():
            model = self.models.setdefault(name, Model(name))
            slot, _ = self.slot_of(name, number)
            model.versions[number] = Version(VersionStatus(slot))
            model.versions[number].fail(error)
            model.chosen.add(number)
            self.release_slot(name, number)
        for name, model in self.models.items():
            if name in available and available[name].error is None:
                model.chosen = set(available[name].policy.choose(model.chosen))
                model.labels = dict(available[name].earlier_labels)
                model.wish(available[name].labels(), available[name].all_versions)
                model.canary = available[name].canary()
            model.settle()
        self._pipelines = tuple(pipelines)
        self.pipelines = {
            pipeline.name: self._slots.acquire(pipeline.name, VERSION)[0] for pipeline in pipelines
        }
        self.only = next(iter(self.models)) if len(self.models) == 1 and not pipelines else None

    @property
    def served(self) -> list[Deployment]:
        """All versions that frontends score with, or will score with once they are loaded."""
        versions = (version for model in self.models.values() for version in model.versions.values())
        return [version.served for version in versions if version.served is not None]

    @property
    def labels(self) -> dict[str, dict[str, int]]:
        """The present meaning of the labels of each model."""
        return {name: model.labels for name, model in self.models.items()}

    def index(self, available: Mapping[str, AvailableModel] = MappingProxyType({})) -> list[dict[str, str]]:
        """Return an entry per version, and one per model without any, in the form of the model repository extension.

        Args:
            available: By model further versions that could be loaded.
        """
        entries = [entry for model in self.models.values() for entry in model.index()]
        entries += [self._entry(pipeline) for pipeline in self._pipelines]
        for name, model in available.items():
            if name not in self.models:
                entries.append({"name": name})
                continue
            for version in {*model.versions, *model.broken}.difference(self.models[name].versions):
                entry = {"name": name, "version": str(version), "state": "UNAVAILABLE"}
                broken = model.broken.get(version)
                entries.append(entry if broken is None else {**entry, "reason": shown_reason(broken)})
        return sorted(entries, key=lambda entry: (entry["name"], int(entry.get("version", 0))))

    def _entry(self, pipeline: Pipeline) -> dict[str, str]:
        """A pipeline's entry in the index: served while the models of all of its steps are."""
        entry = {"name": pipeline.name, "version": str(VERSION), "state": "READY"}
        for step in pipeline.steps:
            model = self.models.get(step.model)
            if model is None or model.named(step.version, step.label) not in model.available:
                reason = f"step {step.name}: the model {step.model} is not served"
                return {**entry, "state": "UNAVAILABLE", "reason": reason}
        return entry

    def slot_of(self, name: str, version: int) -> tuple[int, str | None]:
        """Return the slot for a version that is to be loaded, and the model that has lost one, if any.

        The version that has lost its slot is removed.
        """
        slot, loser = self._slots.acquire(name, version)
        if loser is None:
            return slot, None
        lost_name, lost_version = loser
        model = self.models.get(lost_name)
        lost = None if model is None else model.versions.get(lost_version)
        if model is None or lost is None or lost.served is not None:
            # It is loaded on demand, and has no slot until then.
            return slot, None
        del model.versions[lost_version]
        if not model.versions:
            del self.models[lost_name]
        return slot, lost_name

    def has_slot(self, name: str, version: int) -> bool:
        """Whether a version has kept the slot that it had, with its counters."""
        return self._slots.has(name, version)

    def reserve_unloaded_slot(self) -> None:
        """Keep the slot that models share while they are not loaded."""
        self._slots.keep("", 0, UNLOADED_SLOT)

    def release_slot(self, name: str, version: int) -> None:
        """Record that a version was unloaded, or could not be loaded."""
        self._slots.release(name, version)
