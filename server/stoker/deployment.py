"""From settings to the list of servables: which models, which version, on which slot."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from stoker.errors import InvalidSettings, RepositoryError
from stoker.layouts import ModelSource, discover
from stoker.metrics import MODEL_SLOTS
from stoker.names import checked_name
from stoker.repository import Repository
from stoker.servable import Servable
from stoker.settings import ModelSettings, ServerSettings
from stoker.workspace import Workspace

__all__ = ["Deployed", "resolve"]


@dataclasses.dataclass(frozen=True, slots=True)
class Deployed:
    """A servable with its batching settings and its place.

    Attributes:
        servable: What the device process loads.
        slot: Its slot in the metrics.
        max_delay_ms: How long its rows may wait for company.
    """

    servable: Servable
    slot: int
    max_delay_ms: float


def resolve(settings: ServerSettings, workspace: Workspace, leases: ExitStack) -> list[Deployed]:
    """Find the models that the settings name; with none named, every registered model in its newest version.

    Registered versions are verified against their checksums, and held so that they cannot be deleted
    meanwhile.

    Args:
        settings: The server's settings.
        workspace: Where registered models are.
        leases: Receives what holds the registered versions.

    Raises:
        RepositoryError: A model is unknown, ambiguous, or has changed since it was registered.
        InvalidSettings: Two models would have the same service name, or there are too many.
    """
    repository = Repository(workspace.models_dir)
    wanted = settings.models or _all_registered(repository)
    if not wanted:
        raise RepositoryError(
            f"nothing is registered in {workspace.models_dir}; serve a file (stoker serve model.onnx) or register "
            "a model first (stoker models register NAME PATH)"
        )
    found = [(model, source) for model in wanted for source in _sources(model, repository)]
    names = [source.name for _, source in found]
    for name in names:
        if names.count(name) > 1:
            raise InvalidSettings(f"two models would be served as {name!r}; give them different names")
    if len(names) > MODEL_SLOTS:
        raise InvalidSettings(f"at most {MODEL_SLOTS} models can be served at once, {len(names)} were named")
    for _, source in found:
        if source.registered is not None:
            leases.enter_context(source.registered.hold())
            source.registered.verify()
    return [_deployed(model, source, slot, settings) for slot, (model, source) in enumerate(found)]


def _all_registered(repository: Repository) -> tuple[ModelSettings, ...]:
    names = dict.fromkeys(registered.name for registered in repository.list())
    return tuple(ModelSettings(registered=name) for name in names)


def _sources(model: ModelSettings, repository: Repository) -> Sequence[ModelSource]:
    if model.registered is not None:
        sources = [ModelSource.of(repository.resolve(model.registered))]
    else:
        assert model.path is not None, "settings have checked that one of both is there"
        newest = {source.name: source for source in discover(model.path)}
        sources = list(newest.values())
    if model.name is None:
        return sources
    if len(sources) > 1:
        raise InvalidSettings(f"{model.path} holds {len(sources)} models, one name does not fit them all")
    return [dataclasses.replace(sources[0], name=checked_name(model.name, "service"))]


def _deployed(model: ModelSettings, source: ModelSource, slot: int, settings: ServerSettings) -> Deployed:
    max_batch_rows = model.max_batch_rows or source.max_batch_rows or settings.max_batch_rows
    max_delay_ms = settings.max_delay_ms if model.max_delay_ms is None else model.max_delay_ms
    model_dir = model.model_dir if model.model_dir is not None else source.model_dir
    if not model_dir.is_dir():
        raise InvalidSettings(f"the model folder {model_dir} is not a directory")
    servable = Servable(
        name=source.name,
        version=source.version,
        framework=source.framework,
        path=_absolute(source.path),
        model_dir=_absolute(model_dir),
        max_batch_rows=max_batch_rows,
        max_body_bytes=settings.max_body_bytes,
    )
    return Deployed(servable, slot, max_delay_ms)


def _absolute(path: Path) -> Path:
    return path.absolute()
