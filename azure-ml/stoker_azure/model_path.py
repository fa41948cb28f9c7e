"""Where the files of a model are: `Model.get_model_path` of Azure's SDK, as entry scripts call it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from stoker_azure.exceptions import ModelNotFoundException, WebserviceException

_CACHE: Final = "azureml-models"
# Of .../NAME/VERSION, and of .../NAME/VERSION/files in Stoker's own repository.
_TAIL_PARTS: Final = 3


def find_model_path(model_name: str, version: int | None = None) -> str:
    """Find the files of a model on this machine.

    Looked at in this order, relative to `AML_APP_ROOT` where it is set, else to the working directory:

    1. `azureml-models/NAME/VERSION`, which holds one file or folder: that one;
    2. `NAME` in the working directory;
    3. the folder `AZUREML_MODEL_DIR` itself if its path ends in `NAME/VERSION`; `NAME/VERSION` in it; `NAME`
       in it. A version folder that holds one file or folder stands for that one.

    Args:
        version: Its version; without one the highest that is there.

    Returns:
        Path of a file or a folder; relative where Azure's is.

    Raises:
        ModelNotFoundException: There is none.
        WebserviceException: An argument has the wrong type, or a folder of 1. holds several things.
    """
    if version is not None and not isinstance(version, int):
        raise WebserviceException("version should be an int")
    if not isinstance(model_name, str):
        raise WebserviceException(f"model_name should be a str, not {type(model_name).__name__}")
    cache = Path(os.environ.get("AML_APP_ROOT", "")) / _CACHE
    if (cached := _version_folder(cache / model_name, version)) is not None:
        return str(_only_entry_of(cached))
    if Path(model_name).exists():
        return model_name
    for path in _in_model_dir(model_name, version):
        return str(path)
    raise ModelNotFoundException(
        f"Model {model_name} not found in cache at {cache} or in current working directory {Path.cwd()} "
        f"or below AZUREML_MODEL_DIR ({os.environ.get('AZUREML_MODEL_DIR') or 'not set'})."
    )


def _in_model_dir(name: str, version: int | None) -> Iterator[Path]:
    root = os.environ.get("AZUREML_MODEL_DIR")
    if not root or not (folder := Path(root)).is_dir():
        return
    if _is_version_of(folder, name, version):
        yield _only_entry(folder) or folder
    if (found := _version_folder(folder / name, version)) is not None:
        yield _only_entry(found) or found
    if (folder / name).exists():
        yield folder / name


def _is_version_of(folder: Path, name: str, version: int | None) -> bool:
    tail = folder.absolute().parts[-_TAIL_PARTS:]
    return any(
        parent == name and child.isdecimal() and version in (None, int(child))
        for parent, child in itertools.pairwise(tail)
    )


def _version_folder(folder: Path, version: int | None) -> Path | None:
    """Return the folder of a version, by default of the highest one."""
    if not folder.is_dir():
        return None
    if version is None:
        versions = [int(entry.name) for entry in folder.iterdir() if entry.name.isdecimal()]
        if not versions:
            return None
        version = max(versions)
    found = folder / str(version)
    return found if found.exists() else None


def _only_entry(folder: Path) -> Path | None:
    entries = list(folder.iterdir()) if folder.is_dir() else []
    return entries[0] if len(entries) == 1 else None


def _only_entry_of(folder: Path) -> Path:
    entry = _only_entry(folder)
    if entry is None:
        found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else "a file"
        raise WebserviceException(f"Dir {folder} can contain only 1 file or folder. Found {found}")
    return entry
