"""`azureml.opendatasets`: MNIST, of a folder or a mirror; other classes say what to do instead."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from stoker_azure.exceptions import NotOffered, UserErrorException
from stoker_azure.sdk.base import BaseWorkspace
from stoker_azure.sdk.dataset import Dataset, FileDataset
from stoker_azure.sdk.datastore import Datastore
from stoker_azure.sdk.unoffered import NotAClass
from stoker_runs.launch.inputs import is_web_address

__all__ = ["MNIST"]

VARIABLE: Final = "STOKER_OPEN_DATASETS"
"""Variable with the folder or the address of the web that has `mnist/`."""

_FILES: Final = (
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
)
_STORE: Final = "opendatasets"
_INSTEAD: Final = (
    "download the data into a folder, and make a data set of it: Dataset.File.from_files((store, path))"
)


class MNIST:
    """The images of digits."""

    @staticmethod
    def get_file_dataset(enable_telemetry: bool = True) -> FileDataset:
        """Return the four files, of `mnist/` in the folder or at the address in the variable `STOKER_OPEN_DATASETS`.

        Raises:
            NotOffered: The variable is not set.
            UserErrorException: The folder does not have the files.
        """
        del enable_telemetry
        where = os.environ.get(VARIABLE, "")
        if not where:
            raise NotOffered(
                f"MNIST is not downloaded from Azure: set {VARIABLE} to a folder with mnist/{_FILES[-1]}.gz and the "
                "three other files, or to the address of a mirror, https://…"
            )
        if is_web_address(where):
            return Dataset.File.from_files([f"{where.rstrip('/')}/mnist/{name}.gz" for name in _FILES])
        folder = Path(where).expanduser() / "mnist"
        missing = [name for name in _FILES if not any(folder.glob(f"{name}*"))]
        if missing:
            raise UserErrorException(f"{VARIABLE}: {folder} has no {missing[0]}.gz")
        store = Datastore.register_folder(BaseWorkspace(), _STORE, str(folder))
        return Dataset.File.from_files((store, "*-ubyte*"))

    @staticmethod
    def get_tabular_dataset(*_arguments: Any, **_keywords: Any) -> Any:
        """Raise `NotOffered`."""
        raise NotOffered(
            "MNIST.get_tabular_dataset is not offered: MNIST.get_file_dataset() has the files; read them with numpy"
        )


def __getattr__(name: str) -> Any:
    """Other data sets."""
    if name.startswith("_") or not name[0].isupper():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return NotAClass(name, (), {"INSTEAD": _INSTEAD, "__module__": __name__})
