"""The models in a folder that is served as it is: Stoker's own layout, Triton's and TensorFlow Serving's.

PATH/model.onnx, PATH/saved_model.pb, PATH/score.py         one model, version 1
PATH/NAME.onnx, PATH/NAME.pt2                               several files, each one model, version 1
PATH/MLmodel                                                one model in MLflow's format
PATH/NAME.mar, PATH/NAME/MAR-INF/MANIFEST.json              archives of TorchServe, packed or not; also one by itself
PATH/1/saved_model.pb                                       TensorFlow Serving's base path: one model
PATH/NAME/1/saved_model.pb                                  the same for several models
PATH/NAME/1/model.onnx, PATH/NAME/1/model.savedmodel/       Triton's, with or without config.pbtxt
PATH/model-settings.json, PATH/NAME/model-settings.json     MLServer's, also in PATH/NAME/VERSION
PATH/NAME/config.pbtxt with ensemble_scheduling             no model, but a pipeline of others; see `ensembles`
PATH/manifest.json                                          a registered version, as `stoker models push` sends it
PATH/NAME/1/manifest.json                                   registered models, a name, or one version
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from stoker.errors import InvalidSettings, RepositoryError
from stoker.models.ensembles import is_ensemble
from stoker.models.frameworks import (
    LOOKED_FOR,
    Detected,
    check_folder,
    defines_triton_model,
    detect,
    find_archives,
    find_models,
)
from stoker.models.mlserver import is_model_folder, read_model_folder
from stoker.models.registered import MANIFEST, find_version
from stoker.models.repository import Repository
from stoker.models.sources import Broken, ModelSource, reading_model
from stoker.models.triton_config import CONFIG_FILE, TritonConfig, read_triton_config
from stoker.settings.names import checked_service, name_from_file, name_from_path
from stoker.system.extensions import require_extension

_VERSION = re.compile(r"[0-9]{1,18}", re.ASCII)
_SINGLE_FILES = ("onnx", "torch")
# Advice for files that cannot be served, by their endings.
_KERAS = 'export it as a SavedModel (model.export("saved_model"))'
_ARCHIVE = "unpack it"
_SERVING = "give it as --model-config-file, if it is TensorFlow Serving's"
_HINTS = {
    ".yaml": "serve a deployment file with --config",
    ".yml": "serve a deployment file with --config",
    **dict.fromkeys((".keras", ".h5", ".hdf5"), _KERAS),
    **dict.fromkeys((".config",), _SERVING),
    **dict.fromkeys((".zip", ".tar", ".gz", ".bz2", ".xz"), _ARCHIVE),
}


def discover(path: Path, broken: Broken | None = None) -> list[ModelSource]:
    """Find the models that `stoker serve PATH` serves.

    Args:
        path: A model file or a folder in one of the layouts above.
        broken: Receives the errors of versions that hold no model, for instance because they are still being written,
            and of registered ones whose manifests cannot be read; without it the first error is raised.

    Returns:
        Every version of every model: names in alphabetical order, and the newest version of each last.
    """
    if not path.exists():
        raise RepositoryError(f"{path} does not exist")
    check_folder(path)
    # Links keep the name that the operator gave them; `..` has none.
    path = path.resolve() if ".." in path.parts else path.absolute()
    strict = broken is None
    broken = {} if broken is None else broken
    found = _registered(path, broken)
    if not found and not broken:
        found = _files(path, broken) or _single(path) or _in_folder(_layout(path, broken))
    if strict and broken:
        raise next(iter(broken.values()))
    if not found and not broken and path.is_file():
        hint = _HINTS.get(path.suffix.lower(), "")
        raise RepositoryError(
            f"{path} is no file that Stoker loads by itself (score.py, *.onnx, saved_model.pb, "
            "*.pkl, *.joblib): "
            f"{hint}{hint and ', or '}write a score.py whose init() loads it"
        )
    if not found and not broken:
        raise RepositoryError(
            f"nothing to serve in {path}; looked for {LOOKED_FOR}, for numbered versions of such a model "
            "(1/saved_model.pb), for a repository of such models as Triton and TensorFlow Serving have it "
            "(NAME/1/model.onnx), and for registered models"
        )
    return sorted(found, key=lambda source: (source.name, source.version))


def find_versions(base: Path, name: str, broken: Broken) -> list[ModelSource]:
    """Find the versions of one model in its folder, without looking at the models beside it.

    Args:
        base: `ModelSource.base` of a version that `discover` has found.
        broken: As in `discover`.
    """
    return _in_folder(_registered(base, broken) or _versions(base, name, broken))


def _in_folder(sources: Iterable[ModelSource]) -> list[ModelSource]:
    return [msgspec.structs.replace(source, in_folder_of_models=True) for source in sources]


def _registered(path: Path, broken: Broken) -> list[ModelSource]:
    if not path.is_dir():
        return []
    if (pushed := find_version(path)) is not None:
        return [ModelSource.of(pushed)]
    if (path / MANIFEST).is_file() and _VERSION.fullmatch(path.name):
        registered = Repository(path.parent.parent).get(path.parent.name, int(path.name))
        return [ModelSource.of(registered)]
    if any(path.glob(f"*/{MANIFEST}")):
        return _in_folder(map(ModelSource.of, Repository(path.parent).list(path.name, broken)))
    if any(path.glob(f"*/*/{MANIFEST}")):
        return _in_folder(map(ModelSource.of, Repository(path).list(broken=broken)))
    return []


def _single(path: Path) -> list[ModelSource]:
    """Find the path itself as one model; a folder `NAME/3` is version 3 of NAME."""
    if path.is_file() and any(model.framework == "tensorflow" for model in find_models(path)):
        # A saved_model.pb stands for its folder.
        path = path.parent
    if is_model_folder(path):
        return [read_model_folder(path)]
    name = name_from_path(path, is_folder=path.is_dir())
    version = path.is_dir() and _VERSION.fullmatch(path.name)
    config = read_triton_config(path.parent) if version else None
    if config is None and not find_models(path):
        return []
    if version:
        return [_version(name, int(path.name), path, config)]
    detected = _servable(detect(path))
    if detected.framework == "torchserve":
        return [read_archive(detected.path)]
    return [ModelSource(name, 1, detected.framework, detected.path)]


def _files(path: Path, broken: Broken) -> list[ModelSource]:
    """Find the models of a folder with one in each of several files; none if it may have another layout."""
    together = find_models(path) if path.is_dir() else []
    if len(together) < 2 or any(model.framework not in _SINGLE_FILES for model in together):
        return []
    folders = [path, *_subfolders(path)]
    if any(_VERSION.fullmatch(folder.name) or _numbered(folder) for folder in folders):
        return []
    found: dict[str, ModelSource] = {}
    for file in sorted(path.iterdir()):
        for model in find_models(file) if file.is_file() else ():
            if model.framework in _SINGLE_FILES:
                name = name_from_file(file.stem)
                if name in found:
                    problem = f"{found[name].path} and {file} would both be called {name}; rename one of them"
                    broken[name, 1] = RepositoryError(problem)
                found[name] = ModelSource(name, 1, model.framework, file)
    return [source for name, source in found.items() if (name, 1) not in broken]


def read_archive(path: Path) -> ModelSource:
    """Return an archive of TorchServe, packed or not, as a source with its name and settings."""
    source: ModelSource = require_extension("torchserve").read_source(path)
    return source


def likely_name(path: Path) -> str:
    """Return the likely name of a model that cannot be found at a path now."""
    path = path.resolve()
    return name_from_path(path, is_folder=path.is_dir() or not path.suffix)


def _layout(path: Path, broken: Broken) -> list[ModelSource]:
    """Find the models of a base path with numbered versions, or of a folder of such base paths."""
    own = _versions(path, name_from_file(path.name), broken)
    below: list[ModelSource] = []
    for folder in _subfolders(path):
        if not _VERSION.fullmatch(folder.name):
            try:
                below += _of_mlserver(folder, broken)
                if not is_model_folder(folder):
                    below += _versions(folder, folder.name, broken)
            except OSError as error:
                # Its neighbours are served.
                broken[folder.name, 1] = RepositoryError(f"{folder} cannot be read: {error.strerror}")
    if own and below:
        versions = ", ".join(str(source.version) for source in own)
        models = ", ".join(sorted({source.name for source in below}))
        raise RepositoryError(
            f"{path} could be one model (its versions {versions}) or a repository of models ({models}); "
            "give the path of one model, or move the numbered folders away"
        )
    return own or _distinct([*below, *_archives(path, broken)], broken)


def _of_mlserver(folder: Path, broken: Broken) -> list[ModelSource]:
    """Find the models of MLServer whose settings are in a folder, or in its folders that are no numbers."""
    below = [inner for inner in _subfolders(folder) if not _VERSION.fullmatch(inner.name)]
    found = []
    for place in [folder] if is_model_folder(folder) else filter(is_model_folder, below):
        try:
            found.append(read_model_folder(place))
        except (InvalidSettings, RepositoryError) as error:
            broken[name_from_file("-".join(place.relative_to(folder.parent).parts)), 1] = error
    return found


def _archives(store: Path, broken: Broken) -> list[ModelSource]:
    """Find the archives in TorchServe's `model_store`."""
    found = []
    for path in find_archives(store):
        try:
            found.append(read_archive(path))
        except (InvalidSettings, RepositoryError) as error:
            broken[name_from_file(path.stem), 1] = error
    return found


def _distinct(sources: list[ModelSource], broken: Broken) -> list[ModelSource]:
    """Leave out sources with the name and version of another one, which are broken."""
    found: dict[tuple[str, int], ModelSource] = {}
    for source in sources:
        place = source.name, source.version
        if place in found:
            broken[place] = RepositoryError(
                f"{source.path} and {found.pop(place).path} are both version {source.version} of {source.name}; "
                "give them different versions"
            )
        elif place not in broken:
            found[place] = source
    return list(found.values())


def _versions(base: Path, name: str, broken: Broken) -> list[ModelSource]:
    numbered = _numbered(base)
    if not numbered or is_ensemble(base):
        return []
    # Sorted, `01` comes before `1`, and the last one counts, as in Triton.
    versions = {int(folder.name): folder for folder in numbered}
    try:
        with reading_model(name):
            checked_service(name)
            config = read_triton_config(base)
    except InvalidSettings as error:
        renamed = RepositoryError(f"{error}; rename the folder {base}")
        broken.update({(name, version): renamed for version in versions})
        return []
    except RepositoryError as error:
        broken.update({(name, version): error for version in versions})
        return []
    found = []
    for version, folder in versions.items():
        try:
            with reading_model(name):
                found.append(_version(name, version, folder, config))
        except (InvalidSettings, RepositoryError) as error:
            broken[name, version] = error
        except OSError as error:
            broken[name, version] = RepositoryError(f"{folder} cannot be read: {error.strerror}")
    return found


def _version(name: str, version: int, folder: Path, config: TritonConfig | None) -> ModelSource:
    check_folder(folder)
    if is_model_folder(folder):
        return read_model_folder(folder, name, version)
    holder = _holder(name, version, folder, config)
    if not find_models(holder):
        entries = sorted(entry.name for entry in holder.iterdir()) if holder.is_dir() else [holder.name]
        content = ", ".join(entries[:5]) or "nothing"
        raise RepositoryError(
            f"version {version} of {name} in {holder} holds no model that Stoker serves, but {content}; "
            f"looked for {LOOKED_FOR}, model.savedmodel/ and model.onnx/"
        )
    detected = _servable(detect(holder, None if config is None else config.framework))
    if config is not None and config.framework is None and defines_triton_model(detected.path):
        raise RepositoryError(
            f'{CONFIG_FILE} of {name} does not name the backend of model.py: add backend: "python"'
        )
    source = ModelSource(name, version, detected.framework, detected.path, config, base=folder.parent)
    if detected.framework != "torchserve":
        return source
    archive = read_archive(detected.path)
    return msgspec.structs.replace(source, own_settings=archive.own_settings, notes=archive.notes)


def _holder(name: str, version: int, folder: Path, config: TritonConfig | None) -> Path:
    """Return the path of the model in the folder of a version."""
    if config is not None and config.filename is not None:
        holder = folder / config.filename
        if not holder.exists():
            raise RepositoryError(
                f"version {version} of {name} has no {config.filename}, which is default_model_filename in its "
                f"{CONFIG_FILE}; correct one of both"
            )
        return holder
    # Triton keeps models that have several files in a folder with the file's name.
    folders = [folder / "model.savedmodel", folder / "model.onnx"]
    return next((candidate for candidate in folders if candidate.is_dir()), folder)


def _servable(detected: Detected) -> Detected:
    if detected.framework == "tf1-checkpoint":
        folder = detected.path.parent
        raise RepositoryError(
            f"{folder} holds a TensorFlow 1 checkpoint, which an entry script has to load: "
            f"stoker serve score.py --model-dir {folder}"
        )
    return detected


def _numbered(base: Path) -> list[Path]:
    return [folder for folder in _subfolders(base) if _VERSION.fullmatch(folder.name)]


def _subfolders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
