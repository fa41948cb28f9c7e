"""`azureml.data.data_reference`: a path in a data store, as scripts get it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, Self

from stoker_azure.sdk.labels import Shown

__all__ = ["DataPath", "DataReference"]


class _Store(Protocol):
    """As much of a data store as is needed here."""

    name: str

    def place(self, path: str | None) -> Path:
        """Where a path of the store is on this machine."""
        ...


class DataPath(Shown):
    """A path in a data store, as `resume_from` and pipelines take it.

    Args:
        datastore: The store.
        path_on_datastore: The path; a leading `/` means the store's root.
        name: A name for it.
    """

    def __init__(
        self,
        datastore: _Store | None = None,
        path_on_datastore: str | None = None,
        name: str | None = None,
    ) -> None:
        self.datastore = datastore
        self.path_on_datastore = path_on_datastore or ""
        self.name = name


class DataReference:
    """A path in a data store. Its text is the variable in which Azure's scripts find it.

    Args:
        datastore: The store.
        data_reference_name: Its name; by default one of the store's.
        path_on_datastore: The path; a leading `/` means the store's root.
        mode: `mount`, `download` or `upload`.
        path_on_compute: Where it was to be; not used, since a store of this machine is where it is.
        overwrite: Whether files may be replaced.
    """

    def __init__(
        self,
        datastore: _Store,
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
        """A path below this one."""
        joined = "/".join(part.strip("/") for part in (self.path_on_datastore, path or "") if part.strip("/"))
        return DataReference(
            self.datastore, data_reference_name or self.data_reference_name, joined, self.mode
        )

    def as_mount(self) -> Self:
        """Have the script find the folder."""
        return self._with("mount")

    def as_download(self, path_on_compute: str | None = None, overwrite: bool = False) -> Self:
        """Have the script find the folder; a store of this machine is not copied."""
        del path_on_compute, overwrite
        return self._with("download")

    def as_upload(self, path_on_compute: str | None = None, overwrite: bool = False) -> Self:
        """Have the script write to the folder."""
        del path_on_compute, overwrite
        return self._with("upload")

    def to_config(self) -> Self:
        """Its entry in `RunConfiguration.data_references`."""
        return self

    def to_path(self) -> Path:
        """Where it is on this machine."""
        return self.datastore.place(self.path_on_datastore)

    def _with(self, mode: str) -> Self:
        self.mode = mode
        return self
