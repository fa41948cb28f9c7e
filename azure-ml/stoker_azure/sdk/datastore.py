"""`azureml.data.data_reference`: a path in a data store, as scripts get it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

from tqdm import tqdm

from stoker.models.remote_stores import list_sizes
from stoker.settings.names import is_name, read_address
from stoker_azure.exceptions import UserErrorException
from stoker_azure.sdk.base import BaseWorkspace, Printable, none_in_workspace, raised_as
from stoker_azure.sdk.unoffered import with_unoffered_names
from stoker_base.trees import files_below
from stoker_runs.launch.stores import (
    DEFAULT_STORE,
    default_store,
    download_files,
    place_in_store,
    register_store,
    remote_store,
    set_default_store,
    store_names,
    store_root,
    stores_dir,
    unregister_store,
    upload_files,
)

__all__ = ["DEFAULT_STORE", "AzureBlobDatastore", "DataPath", "DataReference", "Datastore"]


@with_unoffered_names
class DataPath(Printable):
    """A path in a data store, as `resume_from` and pipelines take it.

    Args:
        path_on_datastore: The path; a leading `/` means the store's root.
    """

    def __init__(
        self,
        datastore: Datastore | None = None,
        path_on_datastore: str | None = None,
        name: str | None = None,
    ) -> None:
        self.datastore = datastore
        self.datastore_name = None if datastore is None else datastore.name
        self.path_on_datastore = path_on_datastore or ""
        self.name = name


@with_unoffered_names
class DataReference:
    """A path in a data store. Its text is the variable in which Azure's scripts find it.

    Args:
        data_reference_name: Its name; by default one of the store's.
        path_on_datastore: The path; a leading `/` means the store's root.
        mode: `mount`, `download` or `upload`.
        path_on_compute: Of an upload, the folder below `outputs/` that the script writes to.
        overwrite: Whether uploaded files replace those that are there.
    """

    def __init__(
        self,
        datastore: Datastore,
        data_reference_name: str | None = None,
        path_on_datastore: str | None = None,
        mode: str = "mount",
        path_on_compute: str | None = None,
        overwrite: bool = False,
    ) -> None:
        self.datastore = datastore
        self.path_on_datastore = path_on_datastore or ""
        self.data_reference_name = data_reference_name or datastore.name
        self.mode = mode
        self.path_on_compute = path_on_compute
        self.overwrite = overwrite

    def __str__(self) -> str:
        return f"$AZUREML_DATAREFERENCE_{self.data_reference_name}"

    def __repr__(self) -> str:
        return f"DataReference({self.datastore.name!r}, {self.path_on_datastore!r})"

    def path(self, path: str | None = None, data_reference_name: str | None = None) -> DataReference:
        """Return a reference to a path below this one."""
        joined = "/".join(part.strip("/") for part in (self.path_on_datastore, path or "") if part.strip("/"))
        return DataReference(
            self.datastore,
            data_reference_name or self.data_reference_name,
            joined,
            self.mode,
            self.path_on_compute,
            self.overwrite,
        )

    def as_mount(self) -> Self:
        """Let the script read the folder."""
        return self._with("mount")

    def as_download(self, path_on_compute: str | None = None, overwrite: bool = False) -> Self:
        """Let the script read the folder; a store of this machine is not copied."""
        del overwrite
        say_unused(path_on_compute)
        return self._with("download")

    def as_upload(self, path_on_compute: str | None = None, overwrite: bool = False) -> Self:
        """Copy what the script has written into the folder when the run has completed."""
        self.path_on_compute, self.overwrite = path_on_compute, overwrite
        return self._with("upload")

    def to_config(self) -> Self:
        """Return the entry for `RunConfiguration.data_references`."""
        return self

    def to_path(self) -> Path:
        """Return the path on this machine."""
        return self.datastore.place(self.path_on_datastore)

    def _with(self, mode: str) -> Self:
        self.mode = mode
        return self


def say_unused(path_on_compute: str | None) -> None:
    """Print that data that a script reads is at another path than was asked for."""
    if path_on_compute is not None:
        print(
            f"path_on_compute={path_on_compute!r} is not used: the script gets the path of the data as its argument "
            "and in environment variables"
        )


@with_unoffered_names
class Datastore:
    """A data store: a folder of the workspace, or another one that was registered.

    Args:
        name: Its name; the default store where none is given.

    Raises:
        UserErrorException: There is no such store.
    """

    def __init__(self, workspace: BaseWorkspace, name: str | None = None) -> None:
        name = name or default_store(workspace.local)
        folder = stores_dir(workspace.local) / name
        if name != DEFAULT_STORE and not (is_name(name) and folder.is_dir()):
            raise UserErrorException(
                none_in_workspace("DatastoreNotFound", "data store", name, Datastore.names(workspace))
            )
        self.workspace = workspace
        self.name = name
        self.datastore_type = "AzureBlob"
        self.container_name = name
        self.account_name = "local"
        self.root = store_root(workspace.local, name)
        self._remote = remote_store(workspace.local, name)
        if self._remote is not None:
            self.container_name = self._remote.address.partition("://")[2].partition("/")[0]
            self.account_name = self._remote.options.get("account_name", "")

    def __repr__(self) -> str:
        where = f"root={str(self.root)!r}" if self._remote is None else f"address={self._remote.address!r}"
        return f"Datastore(name={self.name!r}, {where})"

    @staticmethod
    def names(workspace: BaseWorkspace) -> list[str]:
        """Return the names of all stores."""
        return store_names(workspace.local)

    @staticmethod
    def get(workspace: BaseWorkspace, datastore_name: str) -> Datastore:
        """Find a store by its name.

        Raises:
            UserErrorException: There is none.
        """
        return Datastore(workspace, datastore_name)

    @staticmethod
    def get_default(workspace: BaseWorkspace) -> Datastore:
        """Return the default store."""
        return Datastore(workspace)

    @staticmethod
    def register_folder(workspace: BaseWorkspace, datastore_name: str, folder: str) -> Datastore:
        """Register a folder of this machine as a store.

        Raises:
            UserErrorException: There is no such folder, or the store cannot have this name.
        """
        with raised_as(UserErrorException):
            register_store(workspace.local, datastore_name, str(Path(folder).absolute()))
        return Datastore(workspace, datastore_name)

    @staticmethod
    def register_address(
        workspace: BaseWorkspace, datastore_name: str, address: str, **options: Any
    ) -> Datastore:
        """Register a folder of an object store or of another machine as a store, such as `s3://bucket/folder`.

        Args:
            options: What fsspec's file system takes besides: credentials, endpoints. They are kept for their owner
                alone.

        Raises:
            UserErrorException: It is no address, or the store cannot have this name.
        """
        if read_address(address) is None:
            raise UserErrorException(f"{address} is no address; write for instance s3://bucket/folder")
        with raised_as(UserErrorException):
            register_store(workspace.local, datastore_name, address, options)
        return Datastore(workspace, datastore_name)

    @staticmethod
    def register_azure_blob_container(
        workspace: BaseWorkspace,
        datastore_name: str,
        container_name: str,
        account_name: str,
        sas_token: str | None = None,
        account_key: str | None = None,
        protocol: str | None = None,
        endpoint: str | None = None,
        **others: Any,
    ) -> Datastore:
        """Register a container of Azure's Blob storage as a store.

        Args:
            endpoint: The domain of the storage, `core.windows.net` by default.
            others: `overwrite`, `create_if_not_exists` and what else Azure takes: not used.

        Raises:
            UserErrorException: The store cannot have this name, or the protocol is not https.
        """
        del others
        if protocol not in (None, "https"):
            raise UserErrorException(f"the protocol is https, not {protocol!r}")
        options: dict[str, Any] = {"account_name": account_name}
        if sas_token or account_key:
            options |= {"sas_token": sas_token} if sas_token else {"account_key": account_key}
        if endpoint:
            options["account_host"] = f"{account_name}.blob.{endpoint}"
        return Datastore.register_address(workspace, datastore_name, f"az://{container_name}", **options)

    @staticmethod
    def register_azure_data_lake_gen2(
        workspace: BaseWorkspace,
        datastore_name: str,
        filesystem: str,
        account_name: str,
        tenant_id: str | None = None,
        client_id: str | None = None,
        client_secret: str | None = None,
        **others: Any,
    ) -> Datastore:
        """Register a file system of Azure's Data Lake as a store.

        Raises:
            UserErrorException: The store cannot have this name.
        """
        del others
        given = {"tenant_id": tenant_id, "client_id": client_id, "client_secret": client_secret}
        options = {"account_name": account_name, **{name: value for name, value in given.items() if value}}
        return Datastore.register_address(workspace, datastore_name, f"abfs://{filesystem}", **options)

    def set_as_default(self) -> None:
        """Make this store the default."""
        with raised_as(UserErrorException):
            set_default_store(self.workspace.local, self.name)

    def unregister(self) -> None:
        """Remove the store from the workspace; its files stay."""
        unregister_store(self.workspace.local, self.name)

    def place(self, path: str | None) -> Path:
        """Return the place of a path of the store on this machine, to which files at an address are fetched.

        Args:
            path: The path; a leading `/` means the store's root.

        Raises:
            UserErrorException: The path leads out of the store, or the files cannot be fetched.
        """
        with raised_as(UserErrorException):
            place = place_in_store(self.workspace.local, self.name, path, tqdm.write)
        if place is None:
            raise UserErrorException(f"{path} leads out of the data store {self.name}")
        return place

    @property
    def is_remote(self) -> bool:
        """Whether the store is at an address, whose files are copied to this machine."""
        return self._remote is not None

    def has(self, path: str | None) -> bool:
        """Whether there is anything at a path of the store.

        Raises:
            UserErrorException: The path leads out of the store, or the store cannot be read.
        """
        address = None if self._remote is None else self._remote.address_of(path)
        if self._remote is None or address is None:
            return self.place(path).exists()
        with raised_as(UserErrorException):
            return bool(list_sizes(address, self._remote.options))

    def path(self, path: str | None = None, data_reference_name: str | None = None) -> DataReference:
        """Return a reference to a path of the store."""
        return DataReference(self, data_reference_name, path)

    def as_mount(self) -> DataReference:
        """Return a reference to the whole store."""
        return self.path().as_mount()

    def as_download(self, path_on_compute: str | None = None) -> DataReference:
        """Return a reference to the whole store."""
        return self.path().as_download(path_on_compute)

    def as_upload(self, path_on_compute: str | None = None) -> DataReference:
        """Return a reference to the whole store, into which what the script has written is copied."""
        return self.path().as_upload(path_on_compute)

    def upload(
        self,
        src_dir: str,
        target_path: str | None = None,
        overwrite: bool = False,
        show_progress: bool = True,
    ) -> DataReference:
        """Copy a folder into the store.

        Args:
            overwrite: Whether to replace files that are there; else they are skipped, and a line says so.
            show_progress: Whether to print a line for each file.

        Raises:
            UserErrorException: There is no such folder.
        """
        source = Path(src_dir)
        if not source.is_dir():
            raise UserErrorException(f"{src_dir} is no folder")
        files = sorted(file for file in files_below(source) if file.is_file())
        pairs = [(file, file.relative_to(source).as_posix()) for file in files]
        return self._upload(pairs, target_path, overwrite, show_progress)

    def upload_files(
        self,
        files: Sequence[str],
        relative_root: str | None = None,
        target_path: str | None = None,
        overwrite: bool = False,
        show_progress: bool = True,
    ) -> DataReference:
        """Copy files into the store, below their paths from `relative_root`, by default by their names alone."""
        pairs = [
            (
                Path(file),
                Path(file).relative_to(relative_root).as_posix() if relative_root else Path(file).name,
            )
            for file in files
        ]
        missing = [str(file) for file, _ in pairs if not file.is_file()]
        if missing:
            raise UserErrorException(f"there is no file {', '.join(missing)}")
        return self._upload(pairs, target_path, overwrite, show_progress)

    def download(
        self,
        target_path: str,
        prefix: str | None = None,
        overwrite: bool = False,
        show_progress: bool = True,
    ) -> int:
        """Copy files of the store to a folder, and return their number."""
        del show_progress
        target = Path(target_path) / (prefix or "").strip("/")
        with raised_as(UserErrorException):
            place = self.place(prefix)
            copies = list(download_files(place, target, overwrite=overwrite)) if place.exists() else []
        return sum(is_new for _, is_new in copies)

    def _upload(
        self, pairs: Iterable[tuple[Path, str]], target_path: str | None, overwrite: bool, show: bool
    ) -> DataReference:
        with raised_as(UserErrorException):
            self.workspace.local.create()
        listed = list(pairs)
        say = tqdm.write if show else _discard
        say(f"Uploading an estimated of {len(listed)} files")
        done = 0
        with (
            raised_as(UserErrorException),
            tqdm(total=len(listed), unit="file", disable=None if show else True, leave=False) as bar,
        ):
            uploads = upload_files(self.workspace.local, self.name, listed, target_path, overwrite=overwrite)
            for source, name, is_new in uploads:
                bar.update()
                if not is_new:
                    say(f"Target already exists. Skipping upload for {name}")
                    continue
                done += 1
                say(f"Uploaded {source}, {done} files out of an estimated total of {len(listed)}")
        say(f"Uploaded {done} files")
        return self.path(target_path)


AzureBlobDatastore = Datastore


def _discard(_line: str) -> None:
    """Say nothing."""
