"""A server that loads and unloads versions, whose processes and models are puppets."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from stoker.control.frontend_messages import Route
from stoker.deployment import Deployment
from stoker.errors import LoadFailed, LoadTimeout, OperatorError, RepositoryError, UnknownModel
from stoker.metrics.memory import MetricMemory
from stoker.models.available_models import AvailableModel
from stoker.models.sources import ModelSource
from stoker.settings.model import ModelSettings
from stoker.settings.traffic import Parity
from stoker.supervisor.catalogue import Catalogue
from stoker.supervisor.repository_poller import RepositoryPoller
from stoker.supervisor.rollout import Rollout
from stoker.takeover.comparison import Comparison


@dataclass
class Hang:
    """A model that hangs while it is loaded: it says when it does, and the test says when its time is up."""

    begun: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)


class PuppetFleet:
    """Processes that load what they are ordered to, and log it.

    Attributes:
        log: What happened, in order.
        broken: Versions that cannot be loaded.
        hanging: The models that hang while they are loaded, by name.
        routes: The last route that frontends got, by model.
        comparison: What comes of comparing two versions.
    """

    def __init__(self) -> None:
        self.log: list[str] = []
        self.broken: set[int] = set()
        self.hanging: dict[str, Hang] = {}
        self.routes: dict[str, Route] = {}
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
        if self.routes.get(route.name) == route:
            return
        self.routes[route.name] = route
        line = f"{route.name} is {route.default}"
        if line not in self.log[-1:]:
            self.log.append(line)

    def happened(self) -> list[str]:
        """Return the events since the last call."""
        log, self.log = self.log, []
        return log

    def states(self, name: str = "digits") -> dict[int, str]:
        """The states that frontends know of."""
        return {version.version: version.status.state for version in self.routes[name].versions}


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
        keys: The keys of services, which are never changed here.
    """

    base: Path
    files: dict[tuple[str, int], str]
    policies: dict[str, Any] = field(default_factory=dict)
    broken: set[tuple[str, int]] = field(default_factory=set)
    away: bool = False
    held: set[int] = field(default_factory=set)
    parity: Parity = field(default_factory=Parity)
    keys: Any = field(default_factory=lambda: SimpleNamespace(poll=lambda: None, generation=0))

    def update_mirrors(self) -> None:
        pass

    def find_models(self) -> dict[str, AvailableModel]:
        if self.away:
            raise RepositoryError("the folder is away")
        return {name: self._find_model(name) for name in dict.fromkeys(name for name, _ in self.files)}

    def find_model(self, name: str) -> AvailableModel:
        if name not in self.find_models():
            raise UnknownModel(f"no model {name!r}")
        return self.find_models()[name]

    def prepare(self, entry: AvailableModel, version: int, slot: int, number: int) -> Deployment:
        self.held.add(number)
        return dataclasses.replace(
            self.deployed(entry.name, version, slot, number), adjustments=entry.adjustments
        )

    def release(self, number: int) -> None:
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

    def _find_model(self, name: str) -> AvailableModel:
        versions = {version for model, version in self.files if model == name}
        broken = {version for model, version in self.broken if model == name}
        folder = self.base / name
        folder.mkdir(exist_ok=True)
        settings = ModelSettings(path=folder, versions=self.policies.get(name))
        reasons: dict[int, OperatorError] = {version: RepositoryError("half") for version in broken}
        return AvailableModel(
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
