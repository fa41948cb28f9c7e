"""Models of Keras are read by the version that has saved them: 2, which is the package `tf_keras`, or 3, `keras`.

A run has the Keras that its conda file asks for, and the script that has submitted it one of both. So `load_model` of
one hands a model of the other over to it, where it is installed.
"""

from __future__ import annotations

import functools
import json
import os
import zipfile
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Final

READERS: Final[Mapping[str, str]] = MappingProxyType(
    {"tf_keras": "tf_keras.src.saving.saving_api", "keras": "keras.src.saving.saving_api"}
)
"""The module of each package that defines `load_model`, from which its other modules import it."""
SAVED_BY: Final = "saved_by"
"""The attribute of an exception that has the package which is not installed, and has saved the model."""
_HDF5: Final = b"\x89HDF\r\n\x1a\n"
_FIRST_OF_KERAS_3: Final = 3


def keras_of(path: str | os.PathLike[str]) -> str | None:
    """Return the package that has saved a model, `tf_keras` or `keras`; None if the files do not tell."""
    place = Path(path)
    try:
        if place.is_dir():
            return "tf_keras" if (place / "saved_model.pb").is_file() else None
        version = _version_in_zip(place) if zipfile.is_zipfile(place) else _version_in_hdf5(place)
        return "keras" if int(version.partition(".")[0]) >= _FIRST_OF_KERAS_3 else "tf_keras"
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def _version_in_zip(place: Path) -> str:
    with zipfile.ZipFile(place) as archive, archive.open("metadata.json") as member:
        return str(json.loads(member.read(1 << 16))["keras_version"])


def _version_in_hdf5(place: Path) -> str:
    with place.open("rb") as file:
        if file.read(len(_HDF5)) != _HDF5:
            return ""
    # Imported here: Keras, which is being asked, has imported it.
    h5py = import_module("h5py")
    with h5py.File(place, "r") as opened:
        return str(opened.attrs["keras_version"])


def hand_over(reader: ModuleType) -> None:
    """Let `load_model` of one of the modules in `READERS` hand models of the other version over to it."""
    own_load = vars(reader)["load_model"]
    own = reader.__name__.partition(".")[0]

    @functools.wraps(own_load)
    def load_model(filepath: Any, *arguments: Any, **keywords: Any) -> Any:
        saved_by = keras_of(filepath) if isinstance(filepath, str | os.PathLike) else None
        if saved_by in (None, own):
            return own_load(filepath, *arguments, **keywords)
        if find_spec(str(saved_by)) is None:
            try:
                return own_load(filepath, *arguments, **keywords)
            except Exception as error:
                vars(error)[SAVED_BY] = saved_by
                raise
        return import_module(f"{saved_by}.saving").load_model(filepath, *arguments, **keywords)

    vars(reader)["load_model"] = load_model
