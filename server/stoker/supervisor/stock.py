"""The versions of models that a server can load: found on disk, verified, and held while they are served."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import NamedTuple, Self

import msgspec

from stoker.deployment import Deployment
from stoker.errors import OperatorError
from stoker.models.available_models import (
    AvailableModel,
    EarlierLabels,
    find_available_models,
    find_registered_model,
)
from stoker.models.deployments import deploy, deploy_all, environment_of, is_on_demand
from stoker.models.mirrors import Mirror
from stoker.models.mlflow_serving import ENTRY_SCRIPT
from stoker.models.sources import Broken
from stoker.settings.server import ServerSettings
from stoker.settings.workspace import Workspace, foreign_writers
from stoker.supervisor.service_keys import ServiceKeys

logger = logging.getLogger(__name__)


class FirstModels(NamedTuple):
    """The models that a server starts with.

    Attributes:
        deployments: The versions that are prepared.
        available: The models that the settings name, by name.
        broken: By name and version why others cannot be served.
    """

    deployments: Sequence[Deployment]
    available: Mapping[str, AvailableModel] = MappingProxyType({})
    broken: Mapping[tuple[str, int], OperatorError] = MappingProxyType({})


class Stock:
    """The versions that a server can load.

    All methods may block for long, and may be called on any thread, for several versions at once.

    Attributes:
        keys: The keys of the services, which are made for each version that is prepared.
    """

    def __init__(
        self,
        settings: ServerSettings,
        workspace: Workspace,
        say: Callable[[str], None],
        earlier_labels: EarlierLabels = MappingProxyType({}),
        mirrors: Sequence[Mirror] = (),
    ) -> None:
        """Prepare models of settings and a workspace.

        Args:
            earlier_labels: The labels of the server that this one replaces, by model.
            mirrors: The files of other machines that the settings name.
        """
        self._settings = settings
        self._workspace = workspace
        self._say = say
        self._earlier_labels = earlier_labels
        self._mirrors = mirrors
        self._mirror_troubles: dict[str, str] = {}
        self._leases: dict[int, ExitStack] = {}
        self._first = ExitStack()
        self._looking, self._looks = threading.Lock(), itertools.count(1)
        self._found: tuple[int, dict[str, AvailableModel]] = (0, {})
        self.keys = ServiceKeys(settings, workspace)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._first.close()
        for leases in self._leases.values():
            leases.close()

    @property
    def footprints_file(self) -> Path:
        """The file of the workspace with the memory that models take."""
        return self._workspace.run_dir / "footprints.json"

    def prepare_first(
        self, available: Mapping[str, AvailableModel], broken: Broken | None = None
    ) -> list[Deployment]:
        """Prepare the versions that the settings ask for; see `stoker.models.deployments.deploy_all`."""
        models = []
        for model in deploy_all(available, self._settings, self._workspace, self._first, broken):
            try:
                models.append(self._equipped(model))
            except OperatorError as error:
                if broken is None:
                    raise
                broken[model.name, model.version] = error
        self._warn_of_writers(models)
        names = [model.name for model in models]
        for name in dict.fromkeys((*names, *(pipeline.name for pipeline in self._settings.pipelines))):
            self.keys.provide(name)
        return models

    def _warn_of_writers(self, models: Sequence[Deployment]) -> None:
        """Warn of files that others may write, and that this server runs or trusts."""
        workspace = self._workspace
        places = {
            workspace.root: "the workspace",
            workspace.models_dir: "the folder of the registered models",
        }
        for model in models:
            if model.path != ENTRY_SCRIPT:
                places[model.path] = f"the model {model.name}"
            places.setdefault(model.model_dir, f"the folder of the model {model.name}")
        for place, noun in places.items():
            if writers := foreign_writers(place):
                logger.warning(
                    "%s may write %s, %s, and so have code run by this server: chmod go-w %s",
                    writers, noun, place, place,
                )  # fmt: skip

    def update_mirrors(self) -> None:
        """Fetch changed files from the stores of models that are at addresses.

        If a store cannot be read, the files of the last time stay, and one warning says why.
        """
        for mirror in self._mirrors:
            trouble = ""
            try:
                mirror.update(logger.info)
            except (OperatorError, OSError) as error:
                trouble = str(error)
                if self._mirror_troubles.get(mirror.shown) != trouble:
                    logger.warning("%s; the files of the last time are used", trouble)
            self._mirror_troubles[mirror.shown] = trouble

    def find_models(self) -> dict[str, AvailableModel]:
        """Return the models that the settings name, as they are now; see `find_available_models`.

        Threads that ask at once share a look that began after they asked: it takes a while for hundreds of models.
        """
        request = next(self._looks)
        with self._looking:
            if self._found[0] < request:
                began = next(self._looks)
                self._found = (
                    began,
                    find_available_models(self._settings, self._workspace, self._earlier_labels),
                )
            return self._found[1]

    def find_model(self, name: str) -> AvailableModel:
        """Return one model: from the settings, or registered in the workspace.

        Where the last look has found it, only its own folder is read: others may be hundreds.

        Raises:
            RepositoryError: There is none.
        """
        known = self._found[1].get(name)
        if known is not None and known.find_again is not None:
            # If it is gone, the look at all says what there is instead.
            with suppress(OperatorError):
                found = known.find_again()
                if found.all_versions:
                    return msgspec.structs.replace(found, earlier_labels=known.earlier_labels)
        return self.find_models().get(name) or find_registered_model(self._settings, self._workspace, name)

    def is_on_demand(self, entry: AvailableModel) -> bool:
        """Whether a model is loaded when it is asked for; see `stoker.models.deployments.is_on_demand`."""
        return is_on_demand(entry.name, entry.settings, self._settings)

    def prepare(self, entry: AvailableModel, version: int, slot: int, number: int) -> Deployment:
        """Prepare a version to be loaded, and protect it from being deleted until it is released."""
        with ExitStack() as leases:
            deployed = deploy(entry, version, slot, number, self._settings, self._workspace, leases)
            equipped = self._equipped(deployed)
            for note in equipped.notes:
                logger.info("%s", note)
            self.keys.provide(entry.name)
            self._leases[number] = leases.pop_all()
        return equipped

    def verify(self, model: Deployment) -> None:
        """Verify the files of a registered version, which `prepare` leaves to loads on demand."""
        if "registered" not in model.origin:
            return
        registered = self.find_model(model.name).source(model.version).registered
        if registered is not None:
            registered.verify()

    def release(self, number: int) -> None:
        """Release the version that was prepared with this number."""
        leases = self._leases.pop(number, None)
        if leases is not None:
            leases.close()

    def _equipped(self, model: Deployment) -> Deployment:
        """The model with its virtual environment, which is built now if it does not exist yet."""
        environment = environment_of(model)
        if environment is None:
            return model
        name = model.name
        prepared = environment.prepared(
            self._workspace, model.framework, lambda line: self._say(f"  packages {name}: {line}")
        )
        return dataclasses.replace(
            model, interpreter=prepared.interpreter, environment_lines=tuple(prepared.lines())
        )
