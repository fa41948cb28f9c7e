"""Fetches the files of addresses in settings, so that their paths are on this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stoker.errors import OperatorError
from stoker.models.mirrors import Mirror, mirrors_dir
from stoker.settings.names import read_address
from stoker.settings.server import ServerSettings
from stoker.settings.workspace import Workspace
from stoker.system.durable import private_folder

logger = logging.getLogger(__name__)


def fetch_path(
    path: Path,
    workspace: Workspace,
    say: Callable[[str], None] = lambda _: None,
    progress: Callable[[int, int], object] | None = None,
    options: Mapping[str, Any] | None = None,
    *,
    earlier_too: bool = False,
) -> tuple[Path, Mirror | None]:
    """Return where the files of a path are on this machine, and their mirror; None for a path of this machine.

    Args:
        path: A path, or an address as `Path` writes it.
        say: Called with a line if files are fetched.
        progress: Called with the bytes fetched so far, and the bytes to fetch.
        options: Further options of fsspec's file system: credentials, endpoints.
        earlier_too: Whether the files of the last time are used, with a warning, if the store cannot be read.

    Raises:
        OperatorError: The files cannot be fetched.
    """
    address = read_address(path)
    if address is None:
        return path, None
    mirror = Mirror(address, private_folder(mirrors_dir(workspace.create())), options)
    try:
        mirror.update(say, progress)
    except OperatorError as error:
        if not (earlier_too and mirror.digests):
            raise
        logger.warning("%s; the files of the last time are used", error)
    return mirror.path, mirror


def fetch_models(
    settings: ServerSettings, workspace: Workspace, say: Callable[[str], None], leases: contextlib.ExitStack
) -> tuple[ServerSettings, list[Mirror]]:
    """Return settings whose paths are all on this machine, and the mirrors of those that were addresses.

    Args:
        leases: Receives the leases that keep the files from being removed, also for those of the next address.

    Raises:
        OperatorError: The files of an address cannot be fetched, and never were.
        CorruptModel: A file of a pushed version has changed since its registration.
    """
    # Imported here: fetching data needs no models.
    from stoker.models.registered import find_version

    mirrors = []
    models = []
    for model in settings.models:
        changes: dict[str, Any] = {}
        for setting in ("path", "model_dir"):
            given = getattr(model, setting)
            if given is None:
                continue
            # The files beside a script come with it; a server of the web does not list them.
            has_folder = (read_address(given) or "http").partition(":")[0] not in ("http", "https")
            script = given.name if setting == "path" and given.suffix == ".py" and has_folder else ""
            changes[setting], mirror = fetch_path(
                given.parent if script else given, workspace, say, earlier_too=True
            )
            if mirror is not None:
                changes[setting] /= script
                leases.callback(os.close, mirror.hold())
                mirrors.append(mirror)
                if setting == "model_dir" and (pushed := find_version(mirror.path)) is not None:
                    pushed.verify()
                    changes[setting] = pushed.files_dir
        models.append(dataclasses.replace(model, **changes))
    return (dataclasses.replace(settings, models=tuple(models)) if mirrors else settings), mirrors
