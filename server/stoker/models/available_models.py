"""The models that settings name, with the versions that each has at this moment."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec import Struct

from stoker.errors import CorruptModel, InvalidSettings, OperatorError, RepositoryError, UnknownModel
from stoker.models.frameworks import SERVED_ALONE
from stoker.models.labels import stored_canary, stored_labels
from stoker.models.layouts import discover, find_versions, likely_name, read_archive
from stoker.models.repository import Repository
from stoker.models.sources import Broken, ModelSource, reading_model
from stoker.settings.choices import Adjustments
from stoker.settings.model import ModelSettings
from stoker.settings.names import checked_service, is_service_name, parse_reference
from stoker.settings.server import ServerSettings
from stoker.settings.traffic import Canary
from stoker.settings.versions import VersionPolicy, check_named
from stoker.settings.workspace import Workspace

EarlierLabels = Mapping[str, Mapping[str, int]]
"""The versions of labels in the server before this one, by the name of the model."""

# The settings of a server that a model's config.pbtxt may have too.
_FOR_ALL: Final = ("max_batch_rows", "max_delay_ms", "device")


class AvailableModel(Struct, frozen=True):
    """A model that can be served.

    Attributes:
        broken: Further versions that hold no model, for instance because they are still being written.
        base: The folder with all versions; None if the layout has none.
        error: The reason why it could not be found; then there are no versions.
        adjustments: Changes of the settings that a load request has made.
        find_again: Finds its present versions without looking at other models; none if it has been removed.
    """

    name: str
    settings: ModelSettings
    versions: tuple[int, ...]
    read: Callable[[int], ModelSource]
    broken: Mapping[int, OperatorError] = msgspec.field(default_factory=dict)
    base: Path | None = None
    error: OperatorError | None = None
    earlier_labels: Mapping[str, int] = msgspec.field(default_factory=dict)
    adjustments: Adjustments = msgspec.field(default_factory=Adjustments)
    find_again: Callable[[], AvailableModel] | None = None

    def adjusted(self, adjustments: Adjustments) -> AvailableModel:
        """Return the model with adjustments of its settings; called for a model without any."""
        return msgspec.structs.replace(
            self, settings=adjustments.over(self.settings), adjustments=adjustments
        )

    @property
    def policy(self) -> VersionPolicy:
        """Return the versions that the settings choose."""
        pinned = None if self.settings.registered is None else parse_reference(self.settings.registered)[1]
        return VersionPolicy.of(self.settings.versions if pinned is None else (pinned,))

    @property
    def likely_version(self) -> int:
        """The version for which an error is reported if the model could not be found."""
        return max((*self.versions, *self.broken, *self.policy.named), default=1)

    def labels(self) -> dict[str, int]:
        """Return the labels of the settings; labels beside the versions overrule them.

        They may name versions that were deleted, or that are still to come.
        """
        if self.error is not None:
            raise self.error
        labels = dict(self.settings.labels or {})
        if self.base is not None:
            labels.update(stored_labels(self.base))
        return labels

    def canary(self) -> Canary:
        """Return the weights of the labels beside the versions, or else those of the settings."""
        stored = None if self.base is None else stored_canary(self.base)
        return stored or Canary(
            self.settings.canary or {}, self.settings.canary_by or "", self.settings.shadow or {}
        )

    @property
    def all_versions(self) -> set[int]:
        """All versions, also those that hold no model at the moment."""
        return {*self.versions, *self.broken}

    @property
    def earlier(self) -> list[int]:
        """Versions older than the newest ones, if the policy chooses these, in descending order; else none."""
        if self.error is not None or self.policy.newest is None:
            return []
        chosen = self.policy.choose(self.all_versions)
        return [version for version in sorted(self.versions, reverse=True) if version < min(chosen)]

    def chosen_versions(self) -> list[int]:
        """Return the versions to serve from the start, ascending: those of the policy and all with labels.

        A label whose version has not come keeps its earlier version.
        """
        if self.error is not None:
            raise self.error
        versions = self.all_versions
        check_named(self.name, self.policy, versions)
        check_named(self.name, VersionPolicy(None, tuple((self.settings.labels or {}).values())), versions)
        labels = self.labels()
        waiting = {label for label, version in labels.items() if version not in versions}
        labelled = {
            *labels.values(),
            *(version for label, version in self.earlier_labels.items() if label in waiting),
        }
        return sorted({*self.policy.choose(versions), *versions.intersection(labelled)})

    def source(self, version: int) -> ModelSource:
        """Find one version."""
        if self.error is not None:
            raise self.error
        if version in self.broken:
            raise self.broken[version]
        if version not in self.versions:
            check_named(self.name, VersionPolicy(None, (version,)), self.versions)
        return msgspec.structs.replace(self.read(version), name=self.name)

    def fingerprint(self, version: int) -> str:
        """Return the fingerprint of the files of a version; see `ModelSource.fingerprint`.

        Raises:
            OSError: A file cannot be read.
        """
        return self.source(version).fingerprint()


def tries_earlier(settings: ServerSettings, models: Mapping[str, AvailableModel]) -> bool:
    """Whether a start serves an earlier version of a model if the newest cannot be loaded."""
    return settings.exit_on_error is not True and any(model.earlier for model in models.values())


def find_available_models(
    settings: ServerSettings, workspace: Workspace, earlier_labels: EarlierLabels = MappingProxyType({})
) -> dict[str, AvailableModel]:
    """Find the models that the settings name; without names, all registered models that can be served.

    One of several models that cannot be found does not hide the others: it is listed with its error.

    Returns:
        The models by name, in the order of the settings.
    """
    repository = Repository(workspace.models_dir)
    named = settings.models or _all_registered(repository)
    if not named:
        raise RepositoryError(
            f"nothing is registered in {workspace.models_dir} that can be served; serve a file (stoker serve "
            "model.onnx) or register a model first (stoker models register NAME PATH)"
        )
    alone = len(named) == 1 and settings.exit_on_error is not False
    of_server = _of_server(settings)
    found = []
    for settings_of_one in named:
        model = settings_of_one.over(settings.model_defaults)
        try:
            with reading_model(model.registered or str(model.path)):
                found += _find_all(model, repository, of_server)
        except OperatorError as error:
            if alone:
                raise
            found.append(_unfound(model, error))
    for name, count in Counter(entry.name for entry in found).items():
        if count > 1:
            raise InvalidSettings(f"two models would be served as {name!r}; give them different names")
    return {
        entry.name: msgspec.structs.replace(entry, earlier_labels=earlier_labels.get(entry.name, {}))
        for entry in found
    }


def left_out(settings: ServerSettings, workspace: Workspace) -> list[str]:
    """Return the registered models that are not served without being named: an entry script has to load them."""
    repository = Repository(workspace.models_dir)
    if settings.models:
        return []
    return [name for name in repository.names() if not _is_served(repository, name)]


def find_registered_model(settings: ServerSettings, workspace: Workspace, name: str) -> AvailableModel:
    """Find a registered model that the settings do not name."""
    model = ModelSettings(registered=name).over(settings.model_defaults)
    return _registered(model, Repository(workspace.models_dir))


def _all_registered(repository: Repository) -> tuple[ModelSettings, ...]:
    return tuple(
        ModelSettings(registered=name) for name in repository.names() if _is_served(repository, name)
    )


def _is_served(repository: Repository, name: str) -> bool:
    """Whether the newest version of a registered model is one to serve."""
    try:
        return repository.get(name).framework in SERVED_ALONE
    except UnknownModel:  # deleted meanwhile
        return False
    except CorruptModel:
        # Loading it raises the error; the other models are served.
        return True


def _of_server(settings: ServerSettings) -> ModelSettings:
    """Return the settings of the server that overrule a config.pbtxt, as settings of a model."""
    values = {name: getattr(settings, name) for name in _FOR_ALL}
    defaults = ServerSettings()
    return ModelSettings(**{name: one for name, one in values.items() if one != getattr(defaults, name)})


def _laid_over(config: ModelSettings, model: ModelSettings, of_server: ModelSettings) -> ModelSettings:
    """Merge the settings of a model with its config.pbtxt; the operator's settings win.

    The most rows are a limit: the lower one of the server and the file counts.
    """
    lowest = min(filter(None, (config.max_batch_rows, of_server.max_batch_rows)), default=None)
    limited = dataclasses.replace(config, max_batch_rows=config.max_batch_rows and lowest)
    return model.over(dataclasses.replace(of_server, max_batch_rows=None)).over(limited)


def _find_all(model: ModelSettings, repository: Repository, of_server: ModelSettings) -> list[AvailableModel]:
    if model.registered is not None:
        return [_registered(model, repository)]
    assert model.path is not None, "settings have checked that one of both is there"
    broken: Broken = {}
    # Group them once: a folder can hold hundreds of models.
    by_name: dict[str, dict[int, ModelSource]] = {}
    for source in discover(model.path, broken):
        by_name.setdefault(source.name, {})[source.version] = source
    errors: dict[str, dict[int, OperatorError]] = {}
    for (name, version), error in broken.items():
        errors.setdefault(name, {})[version] = error
    names = by_name.keys() | errors.keys()
    if model.name is not None and len(names) > 1:
        raise InvalidSettings(f"{model.path} holds {len(names)} models, one name does not fit them all")
    return [
        _found(model, name, by_name.get(name, {}), errors.get(name, {}), of_server) for name in sorted(names)
    ]


def _unfound(model: ModelSettings, error: OperatorError) -> AvailableModel:
    """Return a model that could not be found, under the name that it would have."""
    if model.name is not None:
        name = model.name
    elif model.registered is not None:
        name = model.registered.partition(":")[0]
    else:
        assert model.path is not None, "settings have checked that one of both is there"
        name = likely_name(model.path)
    if not is_service_name(name):
        raise error
    return AvailableModel(name, model, (), _read_none, error=error)


def _read_none(_: int) -> ModelSource:
    raise AssertionError("a model with an error has no versions")


def _registered(model: ModelSettings, repository: Repository) -> AvailableModel:
    assert model.registered is not None, "the caller has checked that it is registered"
    name, pinned = parse_reference(model.registered)
    if pinned is not None and model.versions is not None:
        raise InvalidSettings(
            f"{model.registered} names a version already: leave out versions, or the number"
        )
    versions = repository.versions(name)
    if pinned is not None or not versions:
        versions = [repository.get(name, pinned).version]
    own = _own_settings(repository, name, versions[-1])
    return AvailableModel(
        checked_service(name if model.name is None else model.name, "service"),
        model if own is None else model.over(own),
        tuple(versions),
        lambda version: _of_archive(ModelSource.of(repository.get(name, version))),
        base=repository.models_dir / name,
        find_again=lambda: _registered(model, repository),
    )


def _own_settings(repository: Repository, name: str, version: int) -> ModelSettings | None:
    """Return the settings in the files of a registered version; None if there are none."""
    try:
        return _of_archive(ModelSource.of(repository.get(name, version))).own_settings
    except OperatorError:
        # Loading it raises the error.
        return None


def _of_archive(source: ModelSource) -> ModelSource:
    """Add the settings of an archive of TorchServe."""
    if source.framework != "torchserve":
        return source
    archive = read_archive(source.path)
    return msgspec.structs.replace(source, own_settings=archive.own_settings, notes=archive.notes)


def _found(
    model: ModelSettings,
    name: str,
    by_version: dict[int, ModelSource],
    errors: dict[int, OperatorError],
    of_server: ModelSettings,
) -> AvailableModel:
    newest = max(by_version, default=None)
    base = next((source.base for source in by_version.values()), None)
    own = None if newest is None else by_version[newest].settings_of_files
    return AvailableModel(
        # A folder whose name is no model name is broken, under that name.
        name if model.name is None else checked_service(model.name, "service"),
        model if own is None else _laid_over(own, model, of_server),
        tuple(by_version),
        by_version.__getitem__,
        errors,
        base,
        find_again=None if base is None else lambda: _found_again(model, name, base, of_server),
    )


def _found_again(model: ModelSettings, name: str, base: Path, of_server: ModelSettings) -> AvailableModel:
    broken: Broken = {}
    by_version = {source.version: source for source in find_versions(base, name, broken)}
    errors = {version: error for (_, version), error in broken.items()}
    return _found(model, name, by_version, errors, of_server)
