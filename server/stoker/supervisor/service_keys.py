"""The keys that callers of a server's services need: given by the operator, read from a folder, or made."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from stoker.errors import InvalidSettings
from stoker.keys.keyring import AdminKey, Keyring, Keys
from stoker.keys.mounted import KeysFolder
from stoker.settings.server import ServerSettings
from stoker.settings.traffic import keys_owner
from stoker.settings.workspace import Workspace, foreign_writers


class ServiceKeys:
    """The keys of all services of a server."""

    def __init__(self, settings: ServerSettings, workspace: Workspace) -> None:
        """Check who may write the keys, if callers need any.

        Raises:
            InvalidSettings: Somebody else may write them, or they are given twice.
        """
        self._settings, self._workspace = settings, workspace
        self._folder = _keys_folder(settings, workspace)
        if settings.auth or settings.token_auth:
            _check_private(settings, workspace)

    def poll(self) -> None:
        """Read the operator's folder of keys again if it has changed."""
        if self._folder is not None:
            self._folder.reload_if_changed()

    @property
    def generation(self) -> int:
        """The generation of the keys in that folder; 0 if there is no folder or no keys."""
        return 0 if self._folder is None else self._folder.generation

    def find_primary(self, names: Iterable[str]) -> dict[str, str]:
        """Return the primary keys of services by their names; only where callers need keys."""
        given = Keys.from_operator(self._settings.primary_key, self._settings.secondary_key)
        mounted = given if self._folder is None else self._folder.keys
        return {name: (mounted or self._stored(name)).primary for name in names}

    def _stored(self, name: str) -> Keys:
        return Keyring(self._workspace.keys_dir, keys_owner(self._settings.endpoint, name)).show()

    def provide_for_admin(self) -> None:
        """Create the admin key; if the workspace is not writable, there is none."""
        settings = self._settings
        if settings.admin_key is not None or not (settings.auth or settings.token_auth):
            return
        with suppress(OSError):
            self._workspace.create()
            if self._folder is not None and self._folder.has_admin_key:
                self._folder.provide_admin_key()
            else:
                AdminKey(self._workspace.keys_dir).ensure()
        _check_keys_dir(self._workspace)

    def provide(self, name: str) -> None:
        """Make the keys of a service, unless the operator gives them."""
        settings = self._settings
        owner = keys_owner(settings.endpoint, name)
        keyring = Keyring(self._workspace.keys_dir, owner)
        given = Keys.from_operator(settings.primary_key, settings.secondary_key)
        takes_made_keys = given is None and (settings.auth or settings.token_auth)
        if not (takes_made_keys or settings.token_auth):
            return
        try:
            self._workspace.create()
            if self._folder is not None:
                self._folder.provide(owner)
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
