"""`azureml.core.dataset`: names and versions for files of data stores."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

from tqdm import tqdm

from stoker.settings.workspace import Workspace as LocalWorkspace
from stoker_azure.exceptions import NotOffered, UserErrorException
from stoker_azure.sdk.base import BaseWorkspace, Printable, none_in_workspace, raised_as
from stoker_azure.sdk.datastore import DataPath, Datastore, say_unused
from stoker_azure.sdk.unoffered import NotAClass, with_unoffered_names
from stoker_base.trees import files_below
from stoker_runs.launch.inputs import (
    data_set_names,
    data_set_versions,
    fetch_files,
    fixed_part,
    is_web_address,
    register_data_set,
)

__all__ = [
    "AbstractDataset",
    "Dataset",
    "DatasetConsumption",
    "DatasetConsumptionConfig",
    "FileDataset",
    "FileDatasetFactory",
    "OutputFileDatasetConfig",
    "TabularDataset",
    "TabularDatasetFactory",
]

_NO_TABLES: Final = "make a Dataset.File of the files, and read them with pandas in the script"

_Path = Any
_Place = tuple[Datastore | None, str]
"""A store and a path in it, or None and an address of the web."""


class _Registered:
    """Finds registered data sets."""

    @staticmethod
    def get_by_name(workspace: BaseWorkspace, name: str, version: int | str = "latest") -> FileDataset:
        """Return a registered data set.

        Raises:
            UserErrorException: There is no such data set or version.
        """
        versions = data_set_versions(workspace.local, name)
        number = len(versions) if version == "latest" else int(version)
        if not 1 <= number <= len(versions):
            known = sorted(Dataset.get_all(workspace))
            label = name if version == "latest" else f"{name}:{version}"
            raise UserErrorException(none_in_workspace("DatasetNotFound", "data set", label, known))
        content = versions[number - 1]
        found = FileDataset(
            [(store and Datastore(workspace, store), path) for store, path in content["places"]]
        )
        found.name, found.version = name, number
        found.description, found.tags = content["description"], content["tags"]
        return found

    @staticmethod
    def get_by_id(workspace: BaseWorkspace, id: str) -> FileDataset:  # noqa: A002  # Azure's name
        """Return a registered data set by its `id`.

        Raises:
            UserErrorException: There is no such data set or version.
        """
        name, _, version = id.rpartition(":")
        if not version.isdecimal():
            name, version = id, "latest"
        return Dataset.get_by_name(workspace, name, version)

    @staticmethod
    def get_all(workspace: BaseWorkspace) -> dict[str, FileDataset]:
        """Return the latest version of each data set, by name."""
        return {name: Dataset.get_by_name(workspace, name) for name in data_set_names(workspace.local)}


@with_unoffered_names
class FileDataset(_Registered):
    """Files of data stores and of the web.

    Args:
        places: Stores and paths in them, which may have `*`, `?` and `**`; None and addresses, which are fetched when
            the files are needed.

    Attributes:
        name: Its name, once it is registered.
        version: Its version, once it is registered.
    """

    def __init__(self, places: Sequence[_Place]) -> None:
        self._places = list(places)
        self.name: str | None = None
        self.version: int | None = None
        self.description = ""
        self.tags: dict[str, str] = {}

    def __repr__(self) -> str:
        shown = ", ".join(
            path if store is None else f"{store.name}/{path.strip('/')}" for store, path in self._places
        )
        return f"FileDataset({shown}, name={self.name!r}, version={self.version!r})"

    @property
    def id(self) -> str | None:
        """`NAME:VERSION`, once it is registered."""
        return None if self.name is None else f"{self.name}:{self.version}"

    def register(
        self,
        workspace: BaseWorkspace,
        name: str,
        description: str | None = None,
        tags: dict[str, str] | None = None,
        create_new_version: bool = False,
    ) -> Self:
        """Save the data set in the workspace under a name; the same paths again are the same version.

        Raises:
            UserErrorException: The name has other paths, and `create_new_version` is false.
        """
        places = [(None if store is None else store.name, path) for store, path in self._places]
        with raised_as(UserErrorException):
            self.version = register_data_set(
                workspace.local, name, places, description or "", tags, create_new_version=create_new_version
            )
        self.name, self.description = name, description or ""
        self.tags = dict(tags or {})
        return self

    def as_named_input(self, name: str) -> DatasetConsumption:
        """Return the data set as an input with a name, by which the script finds it."""
        return DatasetConsumption(self, name)

    def as_mount(self, path_on_compute: str | None = None) -> DatasetConsumption:
        """Return the data set as an argument of the script: the path of a folder."""
        say_unused(path_on_compute)
        return DatasetConsumption(self, (self.name or "input").replace(" ", "_"))

    def as_download(self, path_on_compute: str | None = None) -> DatasetConsumption:
        """Return the data set as an argument of the script: the path of a folder."""
        return self.as_mount(path_on_compute)

    def as_hdfs(self) -> DatasetConsumption:
        """Return the data set as an argument of the script: the path of a folder."""
        return self.as_mount()

    def files(self) -> list[Path]:
        """Return the paths of all files on this machine."""
        found: list[Path] = []
        if any(store is None for store, _ in self._places):
            found += _files_in(self._fetched())
        for store, path in self._places:
            if store is None:
                continue
            fixed = fixed_part(path)
            start, pattern = store.place(fixed), path.strip("/")[len(fixed) :].lstrip("/")
            if pattern:
                found += sorted(file for file in start.glob(pattern) if file.is_file())
            else:
                found += _files_in(start)
        return found

    def _fetched(self) -> Path:
        """Fetch the files from the web, and return the file, or the folder with them."""
        addresses = [address for store, address in self._places if store is None]
        with raised_as(UserErrorException):
            return fetch_files(addresses, LocalWorkspace.find(), tqdm.write)

    def to_path(self) -> list[str]:
        """Return the paths of the files within the folder that would be mounted."""
        base = self._mounted_at()
        return [f"/{file.relative_to(base).as_posix()}" for file in self.files()]

    def folder(self) -> Path:
        """Return the folder that has the files; nothing is copied.

        Raises:
            UserErrorException: The files are in several folders, or the folder is missing.
        """
        bases = {_base(store, path) for store, path in self._places if store is not None}
        if any(store is None for store, _ in self._places):
            bases.add(self._fetched())
        if len(bases) != 1:
            raise UserErrorException(
                f"{self!r} is of {len(bases)} folders, and can be one folder only of one; make a data set of each"
            )
        (base,) = bases
        if not base.exists():
            raise UserErrorException(f"{self!r}: there is nothing in {base}; upload the data first")
        return base

    def _mounted_at(self) -> Path:
        """Return the folder that paths of files are relative to."""
        base = self.folder()
        return base.parent if base.is_file() else base

    def download(self, target_path: str | None = None, overwrite: bool = False, **_others: Any) -> list[str]:
        """Copy the files into a folder, and return the paths of the copies.

        Raises:
            UserErrorException: A copy exists.
        """
        base, place = self._mounted_at(), Path(target_path or ".")
        copied = []
        for file in self.files():
            target = place / file.relative_to(base)
            if target.exists() and not overwrite:
                raise UserErrorException(f"{target} is there already; download with overwrite=True")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
            copied.append(str(target.absolute()))
        return copied

    def mount(self, mount_point: str | None = None) -> _Mounted:
        """Return a context with the folder as `mount_point`; nothing needs to be mounted."""
        del mount_point
        return _Mounted(str(self.folder()))


class _Mounted:
    """The folder of a data set, as a context."""

    def __init__(self, mount_point: str) -> None:
        self.mount_point = mount_point

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""


class DatasetConsumption(Printable):
    """A data set as an input of a script.

    Attributes:
        name: The name by which the script finds it.
    """

    def __init__(self, dataset: FileDataset, name: str) -> None:
        self.dataset = dataset
        self.name = name

    def as_mount(self, path_on_compute: str | None = None) -> Self:
        """Return the same: the script gets the path of a folder."""
        say_unused(path_on_compute)
        return self

    as_download = as_hdfs = as_mount


DatasetConsumptionConfig = DatasetConsumption
AbstractDataset = FileDataset


@with_unoffered_names
class OutputFileDatasetConfig(Printable):
    """A folder of a data store that a script writes to.

    Args:
        name: The name by which the script finds it.
        destination: The store, and the path in it, which may have `{run-id}` and `{output-name}`; by default
            `dataset/{run-id}/{output-name}` of the default store.
        source: The folder below `outputs/` that the script writes to, if it does not take the path from its argument.

    Attributes:
        mode: `mount`: the script writes into the store, where it sees it. `upload`: what it has written is copied
            into the store when the run has completed.
        overwrite: Whether uploaded files replace those that are there.
    """

    def __init__(
        self,
        name: str | None = None,
        destination: tuple[Datastore, str] | None = None,
        source: str | None = None,
        partition_format: str | None = None,
    ) -> None:
        _refuse_partitions(partition_format)
        self.name = name or "output"
        self.destination = destination
        self.source = source
        self.mode = "mount"
        self.overwrite = True

    def as_mount(self, disable_metadata_cache: bool | None = False) -> Self:
        """Let the script write into the store."""
        del disable_metadata_cache
        self.mode, self.overwrite = "mount", True
        return self

    def as_upload(self, overwrite: bool = False, source_globs: Any = None) -> Self:
        """Copy what the script has written into the store when the run has completed.

        Raises:
            NotOffered: Only some of the files are to be copied.
        """
        if source_globs is not None:
            raise NotOffered(
                "source_globs is not offered: have the script write only those files to the folder"
            )
        self.mode, self.overwrite = "upload", overwrite
        return self


class FileDatasetFactory:
    """`Dataset.File`."""

    @staticmethod
    def from_files(
        path: _Path, validate: bool = True, partition_format: str | None = None, is_file: bool = False
    ) -> FileDataset:
        """Make a data set of files.

        Args:
            path: `(store, path)`, a `DataPath`, an address `https://…` of the web, or a list of them; a path in a
                store may have `*`, `?` and `**`.
            validate: Not used: the files may come later.

        Raises:
            UserErrorException: `path` is something else.
            NotOffered: A `partition_format` is given.
        """
        del validate, is_file
        _refuse_partitions(partition_format)
        several = path if isinstance(path, list) else [path]
        return FileDataset(
            [(None, one) if isinstance(one, str) and is_web_address(one) else _place(one) for one in several]
        )

    @staticmethod
    def upload_directory(
        src_dir: str,
        target: _Path,
        pattern: str | None = None,
        overwrite: bool = False,
        show_progress: bool = True,
    ) -> FileDataset:
        """Copy a folder into a store, and make a data set of it.

        Raises:
            NotOffered: Only some of the files are to be copied.
        """
        if pattern is not None:
            raise NotOffered(
                "pattern is not offered: copy the files into a folder of their own, or choose them by "
                "Dataset.File.from_files((store, 'folder/**/*.png'))"
            )
        store, path = _place(target)
        store.upload(src_dir, path, overwrite, show_progress)
        return FileDataset([(store, path)])


class TabularDatasetFactory(metaclass=NotAClass):
    """`Dataset.Tabular`."""

    INSTEAD = _NO_TABLES


class TabularDataset(metaclass=NotAClass):
    """A table."""

    INSTEAD = _NO_TABLES


@with_unoffered_names
class Dataset(_Registered):
    """Makes and finds data sets."""

    File = FileDatasetFactory
    Tabular = TabularDatasetFactory

    def __init__(self, *_arguments: Any, **_keywords: Any) -> None:
        raise NotOffered(
            "objects of Dataset are not offered: Dataset.File.from_files and Dataset.get_by_name return data sets"
        )

    @staticmethod
    def get(
        workspace: BaseWorkspace,
        name: str | None = None,
        id: str | None = None,  # noqa: A002  # Azure's name
    ) -> FileDataset:
        """Return the latest version of a data set, or the one with an `id`.

        Raises:
            UserErrorException: There is no such data set or version.
        """
        return Dataset.get_by_id(workspace, id or name or "")

    @staticmethod
    def list(workspace: BaseWorkspace) -> list[FileDataset]:
        """Return the latest version of each data set."""
        return [*Dataset.get_all(workspace).values()]


def _refuse_partitions(partition_format: str | None) -> None:
    if partition_format is not None:
        raise NotOffered(
            "partition_format is not offered: the script reads the names of the folders in the paths of its files"
        )


def _place(path: _Path) -> tuple[Datastore, str]:
    if isinstance(path, DataPath) and isinstance(path.datastore, Datastore):
        return path.datastore, path.path_on_datastore
    if isinstance(path, tuple) and len(path) == 2 and isinstance(path[0], Datastore):
        return path[0], str(path[1])
    raise UserErrorException(
        f"{path!r} is neither a path of a data store nor an address of the web: give (datastore, path) or "
        "'https://…'; other data is to be copied here, and uploaded to a store"
    )


def _files_in(place: Path) -> list[Path]:
    """Return the files of a folder, or the file itself."""
    if place.is_file():
        return [place]
    return sorted(file for file in files_below(place) if file.is_file()) if place.is_dir() else []


def _base(store: Datastore, path: str) -> Path:
    """Return the folder before the first pattern in a path."""
    return store.place(fixed_part(path))
