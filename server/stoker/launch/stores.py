"""Data stores and data sets of a workspace, as far as a run needs them: which folder or file of this machine one is.

WORKSPACE/stores/NAME/             a store; `store.json` in it names another folder that is meant
WORKSPACE/azure/datasets/NAME.json the versions of a data set: stores and paths in them
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from stoker.errors import SubmissionRefused
from stoker.names import is_name
from stoker.workspace import Workspace

__all__ = [
    "DEFAULT_STORE",
    "STORE_FILE",
    "data_set_place",
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


def data_set_place(workspace: Workspace, name: str, version: int | None) -> Path | None:
    """The folder or file that a registered data set is; None where none is registered under this name.

    Raises:
        SubmissionRefused: It has no such version, or is of several places, which are not one folder.
    """
    try:
        versions: list[dict[str, Any]] = json.loads(
            (workspace.azure_dir / "datasets" / f"{name}.json").read_bytes()
        )
    except FileNotFoundError:
        return None
    number = len(versions) if version is None else version
    if not 1 <= number <= len(versions):
        raise SubmissionRefused(f"the data set {name} has no version {number}; it has 1 to {len(versions)}")
    places = {_fixed(workspace, store, path) for store, path in versions[number - 1]["places"]}
    if len(places) != 1:
        raise SubmissionRefused(f"the data set {name} is of {len(places)} folders; make a data set of each")
    return places.pop()


def _fixed(workspace: Workspace, store: str, path: str) -> Path | None:
    """The folder before the first part of a path that is a pattern."""
    parts = path.strip("/").split("/")
    fixed = next((number for number, part in enumerate(parts) if _PATTERN & set(part)), len(parts))
    return place_in(store_root(workspace, store), "/".join(parts[:fixed]))
