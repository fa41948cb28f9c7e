"""The framework of a model, recognised by its files alone: no framework is imported."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, get_args

from msgspec import Struct

from stoker.deployment import library_of_booster
from stoker.errors import RepositoryError
from stoker.scripts.mlflow_folder import MLMODEL, MlflowFolder

Framework = Literal[
    "script", "tensorflow", "onnx", "torch", "mlflow", "torchserve", "sklearn", "tf1-checkpoint", "files"
]
"""Stoker's own scripts load `mlflow` (models of MLflow) and `torchserve` (archives). `sklearn` are pickles of
estimators. `files` are any files that an entry script loads; they are never recognised, their framework is given."""

FRAMEWORKS: tuple[Framework, ...] = get_args(Framework)
SERVED_ALONE: frozenset[Framework] = frozenset(
    {"script", "tensorflow", "onnx", "torch", "mlflow", "torchserve", "sklearn"}
)
"""The frameworks that can be served; entry scripts load the others."""

RUN_BY_SCRIPTS: frozenset[Framework] = frozenset({"script", "mlflow", "torchserve"})
"""The frameworks that an entry script serves, the user's or Stoker's."""

ENTRY_SCRIPT = "score.py"
_TRITON_SCRIPT = "model.py"
_TRITON_CLASS = b"TritonPythonModel"
_MOST_SCRIPT_BYTES = 1 << 20
ONNX_FILE = "model.onnx"
# Optimum puts the file there, below the folder with a Hugging Face model's configuration.
_OPTIMUM_FILE = f"onnx/{ONNX_FILE}"
_TORCH = (".pt2", ".pt", ".pth", ".ts", ".jit")
_PICKLES = (".joblib", ".pkl", ".pickle")
_BY_SUFFIX: Mapping[str, Framework] = {".onnx": "onnx", ".py": "script", **dict.fromkeys(_TORCH, "torch")}
_ARCHIVES = (".mar", ".tar.gz", ".tgz")
"""The endings of the names of TorchServe's archives."""
_ARCHIVE_MANIFEST = "MAR-INF/MANIFEST.json"


LOOKED_FOR = (
    f"an entry script ({ENTRY_SCRIPT}), a {_TRITON_SCRIPT} of Triton's Python backend, "
    "a SavedModel (saved_model.pb), "
    "an ONNX model (model.onnx, or one *.onnx), a model of PyTorch (model.pt2, model.pt, or "
    "one such file), a model of MLflow (MLmodel), an archive of TorchServe (*.mar, MAR-INF/), "
    "a model of scikit-learn, XGBoost or LightGBM (model.joblib, model.pkl, or one such file), "
    "a TensorFlow 1 checkpoint (one *.meta with its *.index)"
)


class Detected(Struct, frozen=True):
    """A recognised model file or folder.

    Attributes:
        path: The path that the runtime loads: the entry script, the `.onnx` file, the SavedModel's folder, the folder
            of MLflow, the pickle, or the `.meta` file of the checkpoint; for `files` the given path.
    """

    framework: Framework
    path: Path


def detect(path: Path, framework: Framework | None = None) -> Detected:
    """Recognise one model.

    Args:
        framework: The framework, for a path that could be of several ones.

    Raises:
        RepositoryError: The path holds no model, or several, or cannot be read.
    """
    if not path.exists():
        raise RepositoryError(f"{path} does not exist")
    check_folder(path)
    if framework == "files":
        return Detected(framework, path)
    found = find_models(path)
    if framework == "sklearn" and path.is_dir():
        # Without that setting a pickle may be a file of another model.
        found = [Detected(framework, file) for file in _pickles(path)]
    elif framework is not None:
        found = [model for model in found if model.framework == framework]
    elif found and found[0].framework == "script":
        # The other files belong to the entry script.
        found = found[:1]
    if len(found) == 1:
        _check_readable(found[0])
        return found[0]
    if not found:
        expected = f"a model of the framework {framework}" if framework else LOOKED_FOR
        if framework == "script":
            expected = f"{ENTRY_SCRIPT}, or {_TRITON_SCRIPT} with the class {_TRITON_CLASS.decode()}"
        hint = "" if framework else "; files that an entry script loads are registered with --framework files"
        raise RepositoryError(f"{path} holds no model; looked for {expected}{hint}")
    kinds = ", ".join(f"{model.framework} ({model.path.name})" for model in found)
    raise RepositoryError(f"{path} could be several models: {kinds}; give the path of the one that is meant")


def check_folder(path: Path) -> None:
    """Raise RepositoryError for a folder that cannot be read."""
    if path.is_dir() and not os.access(path, os.R_OK | os.X_OK):
        raise RepositoryError(f"the folder {path} cannot be read: permission denied")


def _check_readable(model: Detected) -> None:
    """Refuse files that libraries would refuse without a reason."""
    candidates = [model.path / name for name in _SAVED_MODEL_FILES] if model.path.is_dir() else [model.path]
    for path in candidates:
        if path.is_file() and not os.access(path, os.R_OK):
            raise RepositoryError(f"{path} cannot be read: permission denied")
    if model.framework != "script":
        try:
            os.fsencode(model.path).decode("utf-8")
        except UnicodeDecodeError:
            raise RepositoryError(
                f"{model.path} has bytes in its name that are no UTF-8, as its framework takes it; rename it"
            ) from None


def find_models(path: Path) -> list[Detected]:
    """Return all models that the file or the top level of the folder could be, an entry script first."""
    if path.is_dir():
        if (path / _ARCHIVE_MANIFEST).is_file():
            return [Detected("torchserve", path)]
        if (path / MLMODEL).is_file() and not _scripts(path):
            # MLmodel names the file of the model.
            return [_of_mlflow(path)]
        found = [Detected(framework, file) for framework, find in _FINDERS.items() for file in find(path)]
        return (
            found
            or [Detected("torch", file) for file in _torch_models(path)]
            or [Detected("sklearn", file) for file in _pickles(path)]
        )
    if path.suffix in _BY_SUFFIX:
        return [Detected(_BY_SUFFIX[path.suffix], path)]
    if is_archive(path):
        return [Detected("torchserve", path)]
    if path.name in _SAVED_MODEL_FILES:
        return [Detected("tensorflow", path.parent)]
    if path.suffix in _PICKLES or library_of_booster(path) is not None:
        return [Detected("sklearn", path)]
    return []


def find_archives(store: Path) -> list[Path]:
    """Return the archives of TorchServe in a folder: `.mar` files, and folders of unpacked ones."""
    if not store.is_dir():
        return []
    return sorted(
        entry
        for entry in store.iterdir()
        if (entry.suffix == _ARCHIVES[0] and entry.is_file()) or (entry / _ARCHIVE_MANIFEST).is_file()
    )


def is_archive(path: Path) -> bool:
    """Whether a path has the name of a file of TorchServe's archiver."""
    return path.name.endswith(_ARCHIVES)


_SAVED_MODEL_FILES = ("saved_model.pb", "saved_model.pbtxt")


def _scripts(folder: Path) -> list[Path]:
    script, of_triton = folder / ENTRY_SCRIPT, folder / _TRITON_SCRIPT
    if script.is_file():
        return [script]
    return [of_triton] if defines_triton_model(of_triton) else []


def defines_triton_model(script: Path) -> bool:
    """Whether a script holds the class of a model for Triton's Python backend."""
    try:
        if script.suffix != ".py" or not script.is_file():
            return False
        with script.open("rb") as file:
            return _TRITON_CLASS in file.read(_MOST_SCRIPT_BYTES)
    except OSError:
        return False


def _of_mlflow(folder: Path) -> Detected:
    model = MlflowFolder.read(folder)
    native = model.native
    if native is not None:
        return Detected(*native)
    if model.python_function or model.pickled_sklearn is not None:
        return Detected("mlflow", folder)
    raise RepositoryError(
        f"{folder} is a model of MLflow in the flavors {', '.join(model.flavors) or 'none'}; served are onnx, "
        "tensorflow, sklearn and python_function"
    )


def _saved_models(folder: Path) -> list[Path]:
    return [folder] if any((folder / name).is_file() for name in _SAVED_MODEL_FILES) else []


def _onnx_models(folder: Path) -> list[Path]:
    conventional, exported = folder / ONNX_FILE, folder / _OPTIMUM_FILE
    if conventional.is_file():
        return [conventional]
    found = sorted(path for path in folder.glob("*.onnx") if path.is_file())
    return [exported] if not found and exported.is_file() else found


def _torch_models(folder: Path) -> list[Path]:
    """Return the file with the usual name, else all."""
    found = sorted(path for path in folder.iterdir() if path.is_file() and path.suffix in _TORCH)
    return [path for path in found if path.stem == "model"] or found


def _pickles(folder: Path) -> list[Path]:
    """Return the pickle or booster with the usual name, else all; files beside folders may belong to these."""
    found = sorted(
        path
        for path in folder.iterdir()
        if path.is_file() and (path.suffix in _PICKLES or library_of_booster(path) is not None)
    )
    conventional = [path for path in found if path.stem == "model"]
    if conventional or any(entry.is_dir() and not entry.name.startswith("_") for entry in folder.iterdir()):
        return conventional
    return found


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(meta for meta in folder.glob("*.meta") if meta.with_suffix(".index").is_file())


_FINDERS: Mapping[Framework, Callable[[Path], list[Path]]] = {
    "script": _scripts,
    "tensorflow": _saved_models,
    "onnx": _onnx_models,
    "tf1-checkpoint": _checkpoints,
}
