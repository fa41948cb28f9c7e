"""Data of runs: data sets of a workspace, files at addresses, and what `NAME=PATH` means.

WORKSPACE/stores/.web/DIGEST/HOST/PATH    several files of the web that are one input
WORKSPACE/azure/datasets/NAME.json the versions of a data set: stores and paths in them, null and addresses of the web

`stoker.models.mirrors` fetches the files of an address once. The store is asked each time whether it has changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final
from urllib.parse import urlsplit

from stoker.errors import InvalidSettings
from stoker.settings.names import did_you_mean, name_from_file, read_address
from stoker.settings.workspace import Workspace
from stoker.system.durable import locked, private_folder, replace_file
from stoker_runs.errors import SubmissionRefused
from stoker_runs.launch.stores import fetch_address, place_in_store, store_names, stores_dir
from stoker_runs.targets.definitions import KUBERNETES, Target

_NEW_VERSION: Final = "register it with create_new_version=True or --new-version"
_PATTERN: Final = frozenset("*?[")
_WEB: Final = re.compile(r"https?://", re.IGNORECASE)
_DATA_SET: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9 ._-]{0,98}[A-Za-z0-9._-])?", re.ASCII)


def is_web_address(where: str) -> bool:
    """Whether this is an address of the web, from which a file can be fetched."""
    return _WEB.match(where) is not None


def is_data_set_name(name: str) -> bool:
    """Whether a data set may have this name: as other names, and with spaces inside, as Azure's documents have it."""
    return _DATA_SET.fullmatch(name) is not None


def checked_data_set_name(name: str) -> str:
    """Return the name of a data set."""
    if not is_data_set_name(name):
        raise InvalidSettings(
            f"{name!r} cannot be a data set name: it has to be 1 to 100 letters, digits, '.', '_', '-' or spaces, "
            "the first a letter or digit, the last no space"
        )
    return name


def data_set_versions(workspace: Workspace, name: str) -> list[dict[str, Any]]:
    """Return the registered versions of a data set, the oldest first."""
    try:
        found: list[dict[str, Any]] = json.loads(
            (workspace.azure_dir / "datasets" / f"{name}.json").read_bytes()
        )
    except FileNotFoundError:
        return []
    return found


def register_data_set(
    workspace: Workspace,
    name: str,
    places: Sequence[tuple[str | None, str]],
    description: str = "",
    tags: Mapping[str, str] | None = None,
    *,
    create_new_version: bool = False,
) -> int:
    """Save a data set under a name, and return its version; the same places again are the same version.

    Args:
        places: Stores and paths in them; None and addresses.

    Raises:
        InvalidSettings: The name is none, or has other places and `create_new_version` is false.
    """
    checked_data_set_name(name)
    folder = private_folder(workspace.create().azure_dir / "datasets")
    content = {
        "places": [list(place) for place in places],
        "description": description,
        "tags": dict(tags or {}),
    }
    with locked(folder / ".lock"):
        versions = data_set_versions(workspace, name)
        if versions and versions[-1]["places"] == content["places"]:
            return len(versions)
        if versions and not create_new_version:
            raise InvalidSettings(f"there is a data set {name!r} of other paths already; {_NEW_VERSION}")
        versions.append(content)
        replace_file(folder / f"{name}.json", json.dumps(versions, indent=2).encode() + b"\n")
    return len(versions)


def data_set_path(
    workspace: Workspace, name: str, version: int | None, fetch: Callable[[Sequence[str]], Path]
) -> Path | None:
    """Return the folder or file of a registered data set; None if there is no such data set.

    Args:
        version: Its version; the latest for None.
        fetch: Fetches web addresses, and returns the file or folder with their content.

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
    places = {
        place_in_store(workspace, store, fixed_part(path)) for store, path in known if store is not None
    }
    if web := [address for store, address in known if store is None]:
        places.add(fetch(web))
    if len(places) != 1:
        raise SubmissionRefused(f"the data set {name} is of {len(places)} folders; make a data set of each")
    return places.pop()


def fixed_part(path: str) -> str:
    """Return the folder before the first part of a path that is a pattern."""
    parts = path.strip("/").split("/")
    fixed = next((number for number, part in enumerate(parts) if _PATTERN & set(part)), len(parts))
    return "/".join(parts[:fixed])


_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,99}", re.ASCII)
_MODES: Final = (":mount", ":download")


def split_named(option: str, text: str) -> tuple[str, str]:
    """Split `NAME=WHERE` of an option."""
    name, equals, where = text.partition("=")
    if not equals or not where:
        raise InvalidSettings(f"{option} {text}: expected NAME=PATH, such as digits=data/mnist")
    return name, where


def checked_input_name(name: str) -> str:
    """Return the name of an input or an output.

    Raises:
        InvalidSettings: It cannot be that of a variable.
    """
    if _VARIABLE.fullmatch(name) is None:
        raise InvalidSettings(
            f"{name!r} cannot be the name of an input or output: letters, digits, '_' and '-' will do"
        )
    return name


def find_input(
    name: str,
    where: str,
    workspace: Workspace,
    base: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> str:
    """Return the absolute path of what an input names.

    In this order: an address of the web or of an object store, which is fetched; a file or folder; a registered data
    set, `NAME` or `NAME:VERSION`; a path in a data store, `STORE/PATH`.

    Args:
        name: The input's name, by which the script finds it.
        where: The data as the user writes it; a suffix `:mount` or `:download` is ignored.
        base: Folder of relative paths; by default the current folder.

    Raises:
        InvalidSettings: The name cannot be that of a variable.
        SubmissionRefused: There is nothing of the kind; the message has the nearest name.
    """
    checked_input_name(name)
    if read_address(where):
        return str(fetch_address(where, workspace, say))
    for mode in _MODES:
        where = where.removesuffix(mode)
    path = (base or Path.cwd()) / Path(where).expanduser()
    if path.exists():
        return str(path.resolve())
    place = _path_of_data_set(where, workspace, say) or _path_in_store(where, workspace, say)
    if place is not None and place.exists():
        return str(place)
    if place is not None:
        raise SubmissionRefused(f"the input {name}: there is nothing in {place}; upload the data first")
    known = [*data_set_names(workspace), *store_names(workspace)]
    hint = did_you_mean(where.partition(":")[0].partition("/")[0], known, f"there are: {', '.join(known)}")
    raise SubmissionRefused(
        f"the input {name}: {where} is no file, folder, data set or path of a store; {hint}"
    )


def data_set_names(workspace: Workspace) -> list[str]:
    """The names of all data sets, in alphabetical order."""
    return sorted(
        file.stem for file in (workspace.azure_dir / "datasets").glob("*.json") if is_data_set_name(file.stem)
    )


def _path_of_data_set(where: str, workspace: Workspace, say: Callable[[str], None]) -> Path | None:
    name, _, version = where.partition(":")
    if not is_data_set_name(name) or (version and version != "latest" and not version.isdecimal()):
        return None
    number = int(version) if version.isdecimal() else None

    def fetch(addresses: Sequence[str]) -> Path:

        return fetch_files(addresses, workspace, say)

    return data_set_path(workspace, name, number, fetch)


def _path_in_store(where: str, workspace: Workspace, say: Callable[[str], None]) -> Path | None:
    store, _, path = where.partition("/")
    return place_in_store(workspace, store, path, say) if store in store_names(workspace) else None


def hold_inputs(inputs: Mapping[str, str], workspace: Workspace) -> list[int]:
    """Keep fetched files of inputs from being removed while one of the returned descriptors is open somewhere."""
    if not inputs:
        return []
    # Imported here: few runs have files of stores.
    from stoker.models.mirrors import hold_files

    return hold_files(inputs.values(), workspace)


def check_inputs(inputs: Mapping[str, str], target: Target, workspace: Workspace) -> None:
    """Make sure that a run finds its data.

    Nodes of a cluster see the workspace, and so what is on its file system.

    Raises:
        SubmissionRefused: There is nothing at a path, or runs of the target get no files of this machine.
    """
    for name, path in inputs.items():
        if not Path(path).exists():
            raise SubmissionRefused(f"the input {name}: there is nothing in {path}")
    if target.is_cluster:
        for name, path in inputs.items():
            if not _is_seen(Path(path), target, workspace.root):
                raise SubmissionRefused(
                    f"the input {name} is in {path}, which the nodes of {target.name} may not see; put it into a "
                    "data store of the workspace: stoker stores upload"
                )
    elif inputs and not target.takes_inputs:
        raise SubmissionRefused(
            f"the compute target {target.name} gets no files of this machine, as the inputs "
            f"{', '.join(sorted(inputs))} are; put the data into the source folder, or copy it there and give its "
            "path as an argument"
        )


def _is_seen(path: Path, target: Target, root: Path) -> bool:
    """Whether nodes of a cluster see a path: what their pods mount, or all of the workspace's file system."""
    if target.type == KUBERNETES:
        return path.is_relative_to(target.mounted_folder(root))
    is_beside = root.exists() and path.stat().st_dev == root.stat().st_dev
    return is_beside or path.is_relative_to(root)


def fetch_files(addresses: Sequence[str], workspace: Workspace, say: Callable[[str], None]) -> Path:
    """Return the file of the only address, or a folder with the files of all, each below its host and path.

    Raises:
        OperatorError: One cannot be fetched, and never was.
        SubmissionRefused: Two would be one file.
    """
    files = {address: fetch_address(address, workspace, say) for address in addresses}
    if len(files) == 1:
        return next(iter(files.values()))
    names: dict[Path, str] = {}
    for address, file in files.items():
        if file.is_dir():
            raise SubmissionRefused(
                f"{address} is a folder, and one of several places; make a data set of each"
            )
        parts = urlsplit(address)
        place = Path(
            name_from_file(parts.netloc), *map(name_from_file, PurePosixPath(parts.path).parts[1:-1])
        )
        if (other := names.setdefault(place / file.name, address)) != address:
            raise SubmissionRefused(
                f"{other} and {address} would be one file of a folder; make a data set of each"
            )
    key = hashlib.sha256("\n".join(sorted(addresses)).encode()).hexdigest()[:16]
    together = private_folder(stores_dir(workspace.create()) / ".web")
    folder = together / key
    with locked(together / f".{key}.lock"):
        for name, address in names.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            staged = (folder / name).with_name(f".{name.name}.part")
            staged.unlink(missing_ok=True)
            os.link(files[address], staged)
            # Of two names of one file rename takes none away.
            staged.replace(folder / name)
            staged.unlink(missing_ok=True)
    return folder
