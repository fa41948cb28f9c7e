"""The versions of models that a server can load: found on disk, verified, locked, and given keys."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from stoker.deployment import Deployment
from stoker.errors import InvalidSettings, OperatorError
from stoker.keys.keyring import AdminKey, Keyring, Keys
from stoker.keys.mounted import KeysFolder
from stoker.models.available_models import AvailableModel, Meant, find_available_models, find_registered_model
from stoker.models.deployments import deploy, environment_of, is_on_demand, resolve
from stoker.models.mlflow_serving import ENTRY_SCRIPT
from stoker.models.remote_files import Mirror
from stoker.models.sources import Broken
from stoker.settings.server import ServerSettings
from stoker.settings.traffic import keys_owner
from stoker.settings.workspace import Workspace, foreign_writers

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

logger = logging.getLogger(__name__)


class Stock:
    """The versions that a server can load.

    All methods may block for long, and may be called on any thread, for several versions at once.
    """

    def __init__(
        self,
        settings: ServerSettings,
        workspace: Workspace,
        say: Callable[[str], None],
        meant: Meant = MappingProxyType({}),
        mirrors: Sequence[Mirror] = (),
    ) -> None:
        """Prepare models of settings and a workspace.

        Args:
            meant: What labels meant in the server that this one replaces, by model.
            mirrors: The files of other machines that the settings name.
        """
        self._settings = settings
        self._workspace = workspace
        self._say = say
        self._meant = meant
        self._mirrors = mirrors
        self._mirror_troubles: dict[str, str] = {}
        self._leases: dict[int, ExitStack] = {}
        self._first = ExitStack()
        self._looking, self._looks = threading.Lock(), itertools.count(1)
        self._found: tuple[int, dict[str, AvailableModel]] = (0, {})
        self._keys_folder = _keys_folder(settings, workspace)
        if settings.auth or settings.token_auth:
            _check_private(settings, workspace)

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

    def prepare_first(self, broken: Broken | None = None) -> list[Deployment]:
        """Prepare what the settings ask for; see `stoker.models.deployments.resolve`."""
        models = []
        for model in resolve(self._settings, self._workspace, self._first, broken, self._meant):
            try:
                models.append(self._equipped(model))
            except OperatorError as error:
                if broken is None:
                    raise
                broken[model.name, model.version] = error
        self._warn_of_writers(models)
        names = [model.name for model in models]
        for name in dict.fromkeys((*names, *(pipeline.name for pipeline in self._settings.pipelines))):
            self._provide_keys(name)
        return models

    def _warn_of_writers(self, models: Sequence[Deployment]) -> None:
        """Warn of what others may write, and this server runs or trusts."""
        workspace = self._workspace
        places = {
            workspace.root: "the workspace",
            workspace.models_dir: "the folder of the registered models",
        }
        for model in models:
            if model.path != ENTRY_SCRIPT:
                places[model.path] = f"the model {model.name}"
            places.setdefault(model.model_dir, f"the folder of the model {model.name}")
        for place, what in places.items():
            if writers := foreign_writers(place):
                logger.warning(
                    "%s may write %s, %s, and so have code run by this server: chmod go-w %s",
                    writers, what, place, place,
                )  # fmt: skip

    def update_mirrors(self) -> None:
        """Fetch what has changed in the stores of models that are at addresses.

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
        asked = next(self._looks)
        with self._looking:
            if self._found[0] < asked:
                began = next(self._looks)
                self._found = began, find_available_models(self._settings, self._workspace, self._meant)
            return self._found[1]

    def find_model(self, name: str) -> AvailableModel:
        """Return one model: from the settings, or registered in the workspace.

        Where the last look has found it, only its own folder is read: others may be hundreds.

        Raises:
            RepositoryError: There is none.
        """
        known = self._found[1].get(name)
        if known is not None and known.again is not None:
            # If it is gone, the look at all says what there is instead.
            with suppress(OperatorError):
                found = known.again()
                if found.there:
                    return dataclasses.replace(found, meant=known.meant)
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
            self._provide_keys(entry.name)
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

    def poll_keys(self) -> None:
        """Read the operator's folder of keys again if it has changed."""
        if self._keys_folder is not None:
            self._keys_folder.reload_if_changed()

    @property
    def keys_generation(self) -> int:
        """The generation of the keys in that folder; 0 if there is no folder or no keys."""
        return 0 if self._keys_folder is None else self._keys_folder.generation

    def primary_keys(self, names: Iterable[str]) -> dict[str, str]:
        """Return the primary keys of services by their names; only where callers need keys."""
        given = Keys.from_operator(self._settings.primary_key, self._settings.secondary_key)
        mounted = given if self._keys_folder is None else self._keys_folder.keys
        return {name: (mounted or self._stored_keys(name)).primary for name in names}

    def _stored_keys(self, name: str) -> Keys:
        return Keyring(self._workspace.keys_dir, keys_owner(self._settings.endpoint, name)).show()

    def provide_admin_key(self) -> None:
        """Create the admin key; if the workspace is not writable, there is none."""
        settings = self._settings
        if settings.admin_key is not None or not (settings.auth or settings.token_auth):
            return
        with suppress(OSError):
            self._workspace.create()
            if self._keys_folder is not None and self._keys_folder.has_admin_key:
                self._keys_folder.provide_admin_key()
            else:
                AdminKey(self._workspace.keys_dir).ensure()
        _check_keys_dir(self._workspace)

    def _provide_keys(self, name: str) -> None:
        settings = self._settings
        owner = keys_owner(settings.endpoint, name)
        keyring = Keyring(self._workspace.keys_dir, owner)
        given = Keys.from_operator(settings.primary_key, settings.secondary_key)
        takes_made_keys = given is None and (settings.auth or settings.token_auth)
        if not (takes_made_keys or settings.token_auth):
            return
        try:
            self._workspace.create()
            if self._keys_folder is not None:
                self._keys_folder.provide(owner)
                return
            if takes_made_keys:
                keyring.ensure()
            if settings.token_auth:
                keyring.ensure_signing_secret()
        except OSError as error:
            raise InvalidSettings(
                f"the keys of {name} cannot be kept in {self._workspace.keys_dir}: {error.strerror}; choose another "
                "workspace with --workspace, or give keys as STOKER_PRIMARY_KEY and STOKER_SECONDARY_KEY"
            ) from error


def _keys_folder(settings: ServerSettings, workspace: Workspace) -> KeysFolder | None:
    folder = settings.keys_dir
    if folder is None or not (settings.auth or settings.token_auth):
        return None
    if settings.primary_key or settings.secondary_key:
        where = settings.keys_file or " and ".join(settings.given_keys)
        raise InvalidSettings(f"keys come from {where} and from keys_dir {folder}; leave one out")
    return KeysFolder(folder, workspace.keys_dir, signs=settings.token_auth)


def _check_private(settings: ServerSettings, workspace: Workspace) -> None:
    """Raise InvalidSettings if somebody else may write the keys: whoever can is let in, and may lock others out."""
    # The folder of a mounted Secret is open to all and cannot be written; its files are not open.
    mounted = [] if settings.keys_dir is None else settings.keys_dir.glob("*")
    named = [Path(settings.keys_file)] if settings.keys_file else []
    for path in (*named, *mounted, workspace.keys_dir, *workspace.keys_dir.glob("*")):
        writers = foreign_writers(path) if path == workspace.keys_dir or not path.is_dir() else ""
        if writers:
            raise InvalidSettings(
                f"{path} holds keys, and {writers} may write it: take that away (chmod go-w {path}), or keep keys "
                "elsewhere, with --workspace or --keys-dir"
            )


def _check_keys_dir(workspace: Workspace) -> None:
    try:
        os.close(os.open(workspace.keys_dir / "generation", os.O_RDONLY | os.O_CLOEXEC))
    except FileNotFoundError:
        return
    except OSError as error:
        raise InvalidSettings(
            f"the workspace {workspace.root} cannot be used ({error.strerror}: {error.filename}); give it to the "
            f"user that runs the server, who has the id {os.geteuid()}, or name another one with --workspace"
        ) from error
