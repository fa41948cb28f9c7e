"""Data stores and data sets of a workspace, as far as a run needs them: which folder or file of this machine one is.

WORKSPACE/stores/NAME/             a store; `store.json` in it names another folder that is meant
WORKSPACE/azure/datasets/NAME.json the versions of a data set: stores and paths in them, null and addresses of the web
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from stoker.errors import InvalidSettings, SubmissionRefused
from stoker.names import is_name
from stoker.workspace import Workspace

__all__ = [
    "DEFAULT_STORE",
    "STORE_FILE",
    "checked_data_set_name",
    "data_set_place",
    "data_set_versions",
    "is_data_set_name",
    "is_of_web",
    "place_in",
    "store_names",
    "store_root",
    "stores_dir",
]

DEFAULT_STORE: Final = "workspaceblobstore"
"""The store that is always there."""
STORE_FILE: Final = "store.json"
"""The name of the file that says which folder a store is, where it is another one."""
_PATTERN: Final = frozenset("*?[")
_WEB: Final = re.compile(r"https?://", re.IGNORECASE)
_DATA_SET: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9 ._-]{0,98}[A-Za-z0-9._-])?", re.ASCII)


def stores_dir(workspace: Workspace) -> Path:
    """Where the stores are."""
    return workspace.root / "stores"


def store_names(workspace: Workspace) -> list[str]:
    """The names of all stores, in alphabetical order."""
    found = {path.name for path in stores_dir(workspace).glob("*") if is_name(path.name) and path.is_dir()}
    return sorted(found | {DEFAULT_STORE})


def store_root(workspace: Workspace, name: str) -> Path:
    """The folder of a store."""
    folder = stores_dir(workspace) / name
    file = folder / STORE_FILE
    return Path(json.loads(file.read_bytes())["folder"]) if file.is_file() else folder


def place_in(root: Path, path: str | None) -> Path | None:
    """Where a path of a store is; a leading `/` means its root. None where it leads out of it."""
    parts = [part for part in str(path or "").replace("\\", "/").split("/") if part not in ("", ".")]
    return None if ".." in parts else root.joinpath(*parts)


def is_of_web(where: str) -> bool:
    """Whether this is an address of the web, from which a file can be fetched."""
    return _WEB.match(where) is not None


def is_data_set_name(name: str) -> bool:
    """Whether a data set may have this name: as other names, and with spaces inside, as Azure's documents have it."""
    return _DATA_SET.fullmatch(name) is not None


def checked_data_set_name(name: str) -> str:
    """Return the name of a data set.

    Raises:
        InvalidSettings: It cannot be one.
    """
    if not is_data_set_name(name):
        raise InvalidSettings(
            f"{name!r} cannot be a data set name: it has to be 1 to 100 letters, digits, '.', '_', '-' or spaces, "
            "the first a letter or digit, the last no space"
        )
    return name


def data_set_versions(workspace: Workspace, name: str) -> list[dict[str, Any]]:
    """What is kept of the versions of a data set, the first one first; none where none is registered."""
    try:
        found: list[dict[str, Any]] = json.loads(
            (workspace.azure_dir / "datasets" / f"{name}.json").read_bytes()
        )
    except FileNotFoundError:
        return []
    return found


def data_set_place(
    workspace: Workspace, name: str, version: int | None, fetch: Callable[[Sequence[str]], Path]
) -> Path | None:
    """The folder or file that a registered data set is; None where none is registered under this name.

    Args:
        workspace: Where it is registered.
        name: Its name.
        version: Its version; the latest for None.
        fetch: Returns the file or folder with the files of addresses of the web.

    Raises:
        SubmissionRefused: It has no such version, or is of several places, which are not one folder.
    """
    versions = data_set_versions(workspace, name)
    if not versions:
        return None
    number = len(versions) if version is None else version
    if not 1 <= number <= len(versions):
        raise SubmissionRefused(f"the data set {name} has no version {number}; it has 1 to {len(versions)}")
    known = versions[number - 1]["places"]
    places = {_fixed(workspace, store, path) for store, path in known if store is not None}
    if web := [address for store, address in known if store is None]:
        places.add(fetch(web))
    if len(places) != 1:
        raise SubmissionRefused(f"the data set {name} is of {len(places)} folders; make a data set of each")
    return places.pop()


def _fixed(workspace: Workspace, store: str, path: str) -> Path | None:
    """The folder before the first part of a path that is a pattern."""
    parts = path.strip("/").split("/")
    fixed = next((number for number, part in enumerate(parts) if _PATTERN & set(part)), len(parts))
    return place_in(store_root(workspace, store), "/".join(parts[:fixed]))
