"""Data stores of a workspace: folders of this machine, and addresses.

WORKSPACE/stores/NAME/             a store; `store.json` in it names another folder that is meant, or an address
WORKSPACE/stores/NAME.secret       what fsspec needs besides the address of that store: credentials, endpoints
WORKSPACE/stores/.default          the name of the default store, where it is not `workspaceblobstore`
"""

from __future__ import annotations

import functools
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from stoker.errors import InvalidSettings
from stoker.models.fetching import fetch_path
from stoker.models.remote_stores import list_sizes
from stoker.models.remote_writing import open_for_writing
from stoker.settings.names import checked_name, did_you_mean, is_name, read_address
from stoker.settings.workspace import Workspace
from stoker.system.durable import private_folder, replace_file
from stoker_base.trees import Tree, files_below

DEFAULT_STORE: Final = "workspaceblobstore"
"""The store that is always there."""
STORE_FILE: Final = "store.json"
"""The name of the file that says which folder a store is, where it is another one."""
_OPTIONS_SUFFIX: Final = ".secret"
_DEFAULT: Final = ".default"
_CHUNK_BYTES: Final = 1 << 20


def stores_dir(workspace: Workspace) -> Path:
    """Return the folder of the data stores."""
    return workspace.root / "stores"


def store_names(workspace: Workspace) -> list[str]:
    """The names of all stores, in alphabetical order."""
    found = {path.name for path in stores_dir(workspace).glob("*") if is_name(path.name) and path.is_dir()}
    return sorted(found | {DEFAULT_STORE})


def store_root(workspace: Workspace, name: str) -> Path:
    """The folder of a store of this machine."""
    return Path(_store_facts(workspace, name).get("folder") or stores_dir(workspace) / name)


def _store_facts(workspace: Workspace, name: str) -> dict[str, Any]:
    file = stores_dir(workspace) / name / STORE_FILE
    return dict(json.loads(file.read_bytes())) if file.is_file() else {}


@dataclass(frozen=True, slots=True)
class RemoteStore:
    """A data store at an address.

    Attributes:
        options: What fsspec's file system takes besides: credentials, endpoints. They are in no output.
    """

    address: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def address_of(self, path: str | None) -> str | None:
        """Return the address of a path of the store; None if it leads out of the store."""
        place = resolve_in_store(Path("/"), path)
        return None if place is None else f"{self.address}{place.as_posix() if place != Path('/') else ''}"


def remote_store(workspace: Workspace, name: str) -> RemoteStore | None:
    """Return a store at an address; None if it is a folder of this machine."""
    address = _store_facts(workspace, name).get("address")
    if address is None:
        return None
    secret = stores_dir(workspace) / f"{name}{_OPTIONS_SUFFIX}"
    return RemoteStore(address, json.loads(secret.read_bytes()) if secret.is_file() else {})


def register_store(
    workspace: Workspace, name: str, where: str, options: Mapping[str, Any] | None = None
) -> None:
    """Register a folder of this machine or an address as a data store; one of that name is replaced.

    Raises:
        InvalidSettings: The store cannot have this name, or there is no such folder.
    """
    checked_name(name, "data store")
    address = read_address(where)
    if address is None and not Path(where).is_dir():
        raise InvalidSettings(f"{where} is no folder")
    if address is not None and address.startswith(("http://", "https://")):
        raise InvalidSettings(
            f"a data store is a folder, and an address of the web is a single file; name it where it is used: "
            f"stoker submit --input NAME={address.partition('?')[0]}"
        )
    facts = {"folder": str(Path(where).absolute())} if address is None else {"address": address.rstrip("/")}
    stores = private_folder(stores_dir(workspace.create()))
    secret = stores / f"{name}{_OPTIONS_SUFFIX}"
    if options:
        replace_file(secret, json.dumps(dict(options)).encode())
    else:
        secret.unlink(missing_ok=True)
    replace_file(private_folder(stores / name) / STORE_FILE, json.dumps(facts).encode() + b"\n")


def unregister_store(workspace: Workspace, name: str) -> None:
    """Forget a store; its files stay."""
    (stores_dir(workspace) / name / STORE_FILE).unlink(missing_ok=True)
    (stores_dir(workspace) / f"{name}{_OPTIONS_SUFFIX}").unlink(missing_ok=True)


def place_in_store(
    workspace: Workspace, name: str, path: str | None, say: Callable[[str], None] = lambda _: None
) -> Path | None:
    """Return where a path of a store is on this machine; None if it leads out of the store.

    What is at an address is fetched, if it is new or has changed.

    Raises:
        OperatorError: The files cannot be fetched, and never were.
    """
    store = remote_store(workspace, name)
    if store is None:
        return resolve_in_store(store_root(workspace, name), path)
    address = store.address_of(path)
    return None if address is None else fetch_address(address, workspace, say, store.options)


def fetch_address(
    address: str, workspace: Workspace, say: Callable[[str], None], options: Mapping[str, Any] | None = None
) -> Path:
    """Return what is at an address, on this machine; it is fetched if it is new or has changed.

    Raises:
        OperatorError: It cannot be fetched, and never was.
    """
    return fetch_path(Path(address), workspace, say, options=options, earlier_too=True)[0]


def resolve_in_store(root: Path, path: str | None) -> Path | None:
    """Return a path in a store; a leading `/` means its root. None if it leads out of the store."""
    parts = [part for part in str(path or "").replace("\\", "/").split("/") if part not in ("", ".")]
    return None if ".." in parts else root.joinpath(*parts)


def default_store(workspace: Workspace) -> str:
    """Return the name of the default store."""
    file = stores_dir(workspace) / _DEFAULT
    return file.read_text(encoding="utf-8") if file.is_file() else DEFAULT_STORE


def set_default_store(workspace: Workspace, name: str) -> None:
    """Make a store the default."""
    checked_store(workspace, name)
    replace_file(private_folder(stores_dir(workspace.create())) / _DEFAULT, name.encode())


def checked_store(workspace: Workspace, name: str) -> str:
    """Return the name of a store.

    Raises:
        InvalidSettings: There is none of this name.
    """
    names = store_names(workspace)
    if name not in names:
        hint = did_you_mean(name, names, f"there are: {', '.join(names)}")
        raise InvalidSettings(f"there is no data store {name!r}; {hint}")
    return name


def upload_files(
    workspace: Workspace,
    store: str,
    files: Sequence[tuple[Path, str]],
    folder: str | None = None,
    *,
    overwrite: bool = False,
) -> Iterator[tuple[Path, str, bool]]:
    """Copy files into a store, one at each step.

    Args:
        files: The files, and their names in the folder.
        folder: A folder of the store; its root for None.
        overwrite: Whether to replace files that are there; else they are skipped.

    Yields:
        Each file, its name in the store, and whether it was copied.

    Raises:
        OperatorError: A name leads out of the store, a file cannot be read, or the store cannot be written.
    """
    remote = remote_store(workspace, store)
    names = [_name_in_store(folder, name, store) for _, name in files]
    there = _names_there(workspace, store, remote, folder, names)
    if remote is not None:
        write = open_for_writing(remote.address, remote.options)
    else:
        tree = Tree(private_folder(store_root(workspace.create(), store)))
        write = functools.partial(_copy_into, tree)
    for (source, _), name in zip(files, names, strict=True):
        is_new = overwrite or name not in there
        if is_new:
            write(name, source)
            there.add(name)
        yield source, name, is_new


def _name_in_store(folder: str | None, name: str, store: str) -> str:
    place = resolve_in_store(Path(), f"{folder or ''}/{name}")
    if place is None:
        raise InvalidSettings(f"{folder} leads out of the data store {store}")
    return place.as_posix()


def _names_there(
    workspace: Workspace, store: str, remote: RemoteStore | None, folder: str | None, names: Sequence[str]
) -> set[str]:
    """The names of files of the store that are there already."""
    if remote is None:
        root = store_root(workspace, store)
        return {name for name in names if (root / name).exists()}
    base = _name_in_store(folder, "", store)
    below = list_sizes(remote.address_of(base) or remote.address, remote.options)
    return {(Path(base) / name).as_posix() for name in below}


def _copy_into(tree: Tree, name: str, source: Path) -> None:
    """Copy a file into a store at once: runs write into the store too, and links of theirs are not followed.

    Raises:
        InvalidSettings: The file cannot be read or written.
    """
    staged = f"{name.rpartition('/')[0]}/.{os.urandom(8).hex()}.part".lstrip("/")
    try:
        tree.make_parents(name)
        copy = tree.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            with source.open("rb") as content, os.fdopen(copy, "wb") as file:
                shutil.copyfileobj(content, file, _CHUNK_BYTES)
            tree.move(staged, tree, name)
        except OSError:
            tree.remove(staged)
            raise
    except OSError as error:
        raise InvalidSettings(
            f"{source} cannot be put into the store: {error.filename}: {error.strerror}"
        ) from error


def download_files(place: Path, target: Path, *, overwrite: bool = False) -> Iterator[tuple[Path, bool]]:
    """Copy a file or the files of a folder to a folder, one at each step.

    Yields:
        Each copy, and whether it was made; one that was there is skipped, unless `overwrite`.

    Raises:
        InvalidSettings: There is nothing at the place.
    """
    if not place.exists():
        raise InvalidSettings(f"there is nothing in {place}")
    files = [place] if place.is_file() else sorted(file for file in files_below(place) if file.is_file())
    for file in files:
        copy = target / (file.name if file == place else file.relative_to(place))
        is_new = overwrite or not copy.exists()
        if is_new:
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
        yield copy, is_new
