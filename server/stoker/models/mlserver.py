"""MLServer's `model-settings.json` and `settings.json`: each key counts, is ignored with a note, or is refused.

Sources: `mlserver/settings.py`, `mlserver/utils.py` (the folder to which a URI is relative) and the packages in
`runtimes/` of MLServer 1.7.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct

from stoker.deployment import library_of_booster
from stoker.errors import InvalidSettings, RepositoryError
from stoker.models.frameworks import Framework, detect
from stoker.models.sources import MODEL_SETTINGS, ModelSource
from stoker.settings.files import parse_json, settings_text
from stoker.settings.model import model_settings
from stoker.settings.names import checked_service, is_name
from stoker.settings.server import ImportedSettings

_SERVER_SETTINGS: Final = "settings.json"
_SCRIPT: Final = "write a score.py whose init() loads the model"
_VERSION: Final = re.compile(r"v?([1-9][0-9]{0,17})", re.ASCII)
_SERVED_CONTENT: Final = ("np", "pd", "str")


class _Runtime(Struct, frozen=True):
    """One of MLServer's runtimes.

    Attributes:
        class_name: Its class; empty for all classes of its package.
        files: The names of its model in a folder.
        library: The library of its boosters; empty if it loads none.
    """

    framework: Framework
    class_name: str
    files: tuple[str, ...] = ()
    library: str = ""


_RUNTIMES: Final[Mapping[str, _Runtime]] = {
    "mlserver_sklearn": _Runtime("sklearn", "SKLearnModel", ("model.joblib", "model.pickle", "model.pkl")),
    "mlserver_xgboost": _Runtime(
        "sklearn", "XGBoostModel", ("model.bst", "model.json", "model.ubj"), "xgboost"
    ),
    "mlserver_lightgbm": _Runtime("sklearn", "LightGBMModel", ("model.bst",), "lightgbm"),
    "mlserver_mlflow": _Runtime("mlflow", "MLflowRuntime"),
    "mlserver_onnx": _Runtime("onnx", "", ("model.onnx",)),
}
_PASSED_OVER: Final = {
    **dict.fromkeys(("platform", "versions", "warm_workers", "format"), ""),
    **dict.fromkeys(("inference_pool_gid", "autogenerate_inference_pool_gid"), "each model has a process"),
    "outputs": "the model says what it gives",
    "parallel_workers": "the setting replicas has a model in several processes",
    "cache_enabled": "the setting cache_mb keeps answers",
}  # fmt: skip
_REFUSED: Final = dict.fromkeys(
    ("environment_path", "environment_tarball"), "name its packages with --environment FILE, or --system-managed"
)  # fmt: skip
_SERVER_READ: Final = {"host": "host", "http_port": "port", "grpc_port": "grpc_port"}
_SERVER_PASSED_OVER: Final = {
    **dict.fromkeys(
        ("debug", "parallel_workers_timeout", "environments_dir", "server_name", "server_version", "extensions",
         "metrics_rest_server_prefix", "metrics_dir"),
        "",
    ),
    **dict.fromkeys(("metrics_endpoint", "metrics_port"), "/metrics is beside the other paths"),
    **dict.fromkeys(("use_structured_logging", "logging_settings"), "the setting log_format is text or json"),
    **dict.fromkeys(("cache_enabled", "cache_size"), "the setting cache_mb keeps answers"),
    "parallel_workers": "the setting replicas has a model in several processes",
    "model_repository_root": "PATH is served",
    "gzip_enabled": "callers ask for gzip by Accept-Encoding",
    "grpc_max_message_length": "the setting max_body_mb bounds requests",
}  # fmt: skip
_SERVER_REFUSED: Final = {
    "model_repository_implementation": "serve a folder, or an address of an object store",
    "load_models_at_startup": "all models of PATH are loaded, or on demand with memory_mb",
    "root_path": "let the proxy take the prefix off",
    "kafka_enabled": "a consumer of its own sends requests",
    "tracing_server": "the setting otlp_endpoint takes traces",
}
_SERVER_UNUSED: Final = ("kafka_servers", "kafka_topic_input", "kafka_topic_output")


def is_model_folder(folder: Path) -> bool:
    """Return whether a folder has the settings of a model of MLServer."""
    return (folder / MODEL_SETTINGS).is_file()


def read_model_folder(folder: Path, name: str = "", number: int = 0) -> ModelSource:
    """Read the model that a `model-settings.json` describes.

    Args:
        name: The name of the model in the layout around the folder; empty without one.
        number: Its version in that layout; 0 without one.

    Raises:
        RepositoryError: The file cannot be read, needs a feature that is not offered, or its model is missing.
        InvalidSettings: Its name or a value does not fit a setting.
    """
    file = folder / MODEL_SETTINGS
    source = f"{MODEL_SETTINGS} in {folder}"
    content = _read(file, source)
    parameters = _mapping(content.pop("parameters", None) or {}, f"{source}: parameters")
    runtime = _runtime(content.pop("implementation", None), source)
    called = str(content.pop("name", "") or name or folder.name)
    if name and called != name:
        raise RepositoryError(f"{source}: the name {called!r} is not that of its folder, {name}; correct one")
    notes: list[str] = []
    values = _batching(content, source, notes)
    version, labels = _version(parameters.pop("version", None), number, source)
    values |= labels
    path, framework = _model(folder, parameters.pop("uri", None), runtime, source)
    for content_type in [parameters.pop("content_type", None), *_content_types(content.pop("inputs", None))]:
        if content_type not in (None, *_SERVED_CONTENT):
            raise RepositoryError(f"{source}: the content type {content_type!r} is not offered: {_SCRIPT}")
    extra = _mapping(parameters.pop("extra", None) or {}, f"{source}: parameters.extra")
    if runtime.class_name == "SKLearnModel" and "predict_fn" in extra:
        values["signature"] = extra.pop("predict_fn")
    _check_rest(extra, {}, {}, f"{source}: parameters.extra", notes)
    _check_rest(parameters | content, _PASSED_OVER, _REFUSED, source, notes)
    own = model_settings(values, source)
    base = folder.parent if number and path.is_relative_to(folder.parent) else None
    return ModelSource(
        checked_service(called), version, framework, path, base=base, own_settings=own, notes=tuple(notes)
    )


def read_server_settings(folder: Path) -> ImportedSettings | None:
    """Read the `settings.json` of a folder with models of MLServer; None if there is none, or no such model.

    Raises:
        InvalidSettings: The file cannot be read, or needs a feature that is not offered.
    """
    file = folder / _SERVER_SETTINGS
    levels = ("", "*/", "*/*/")
    if not file.is_file() or not any(any(folder.glob(level + MODEL_SETTINGS)) for level in levels):
        return None
    notes: list[str] = []
    try:
        content = _read(file, str(file))
        server = {_SERVER_READ[key]: content.pop(key) for key in _SERVER_READ if key in content}
        cors = _mapping(content.pop("cors_settings", None) or {}, f"{file}: cors_settings")
        if origins := cors.pop("allow_origins", None):
            server["cors_origins"] = origins
        _check_rest(cors, {}, {}, f"{file}: cors_settings", notes)
        # False means unset, except for this key.
        content["load_models_at_startup"] = content.get("load_models_at_startup", True) is False
        for key in _SERVER_UNUSED:
            content.pop(key, None)
        _check_rest(content, _SERVER_PASSED_OVER, _SERVER_REFUSED, str(file), notes)
    except RepositoryError as error:
        raise InvalidSettings(str(error)) from error
    return ImportedSettings(str(file), server=server, passed_over=tuple(notes))


def _read(file: Path, source: str) -> dict[str, Any]:
    try:
        return _mapping(parse_json(settings_text(file)), source)
    except (OSError, ValueError) as error:
        raise RepositoryError(f"{source} cannot be read: {error}") from error


def _mapping(value: Any, source: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RepositoryError(f"{source} must be an object with settings by name")
    return dict(value)


def _check_rest(
    rest: Mapping[str, Any],
    passed_over: Mapping[str, str],
    refused: Mapping[str, str],
    source: str,
    notes: list[str],
) -> None:
    """Note keys that no answer depends on, and raise RepositoryError for other keys that are set."""
    for key, value in rest.items():
        if value in (None, False, "", [], {}):
            continue
        if key not in passed_over:
            instead = refused.get(key, "it is no setting of MLServer's that is known here; take it out")
            raise RepositoryError(f"{source}: {key} is not offered: {instead}")
        notes.append(f"{source}: {key} is passed over{passed_over[key] and f': {passed_over[key]}'}")


def _runtime(implementation: Any, source: str) -> _Runtime:
    package, _, path = str(implementation or "").partition(".")
    runtime = _RUNTIMES.get(package)
    if runtime is None or runtime.class_name not in ("", path.rpartition(".")[2]):
        known = ", ".join(f"{name}.{one.class_name or '*'}" for name, one in _RUNTIMES.items())
        raise RepositoryError(
            f"{source}: the implementation {implementation!r} is not offered: {_SCRIPT} and whose run() answers a "
            f"request; served without one are {known}"
        )
    return runtime


def _batching(content: dict[str, Any], source: str, notes: list[str]) -> dict[str, Any]:
    """Return the limits of batches as settings; MLServer batches only with a size above 1."""
    size, time_s = content.pop("max_batch_size", None), content.pop("max_batch_time", None)
    if size is None:
        if time_s:
            notes.append(f"{source}: max_batch_time is passed over: without max_batch_size it means nothing")
        return {}
    if size in (0, 1):
        return {"batching": "none"}
    if time_s is not None and (isinstance(time_s, bool) or not isinstance(time_s, int | float)):
        raise RepositoryError(f"{source}: max_batch_time must be a number of seconds, not {time_s!r}")
    return {"max_batch_rows": size, "max_delay_ms": 1000 * (time_s or 0)}


def _version(value: Any, of_folder: int, source: str) -> tuple[int, dict[str, Any]]:
    """Return the number of a version, and settings: a text is a label of the folder's version, or of version 1."""
    if value in (None, ""):
        return of_folder or 1, {}
    text = str(value)
    found = _VERSION.fullmatch(text)
    number = int(found[1]) if found is not None else of_folder or 1
    if of_folder and number != of_folder:
        raise RepositoryError(
            f"{source}: parameters.version {value!r} is not that of its folder, {of_folder}; correct one"
        )
    if text.isdigit():
        return number, {}
    if not is_name(text):
        raise RepositoryError(f"{source}: parameters.version {value!r} is not offered; use a whole number")
    return number, {"labels": {text: number}}


def _content_types(inputs: Any) -> list[Any]:
    """Return the content types of inputs; the model itself has their other metadata."""
    tensors = inputs if isinstance(inputs, list) else []
    return [(one.get("parameters") or {}).get("content_type") for one in tensors if isinstance(one, dict)]


def _model(folder: Path, uri: Any, runtime: _Runtime, source: str) -> tuple[Path, Framework]:
    """Return the path of a model, which is relative to its settings, and its framework."""
    address = urlsplit(str(uri or "."))
    if address.scheme not in ("", "file"):
        raise RepositoryError(
            f"{source}: parameters.uri {uri!r} is not offered; fetch the model, or serve its address: "
            f"stoker serve {uri}"
        )
    path = Path(os.path.normpath(folder / address.path))
    if not path.exists():
        raise RepositoryError(f"{source}: parameters.uri {uri!r} is not there: {path} does not exist")
    if path.is_dir() and runtime.files:
        found = next((path / name for name in runtime.files if (path / name).is_file()), None)
        if found is None:
            raise RepositoryError(
                f"{source}: {path} has none of {', '.join(runtime.files)}; name the file with parameters.uri"
            )
        path = found
    if runtime.framework == "mlflow":
        detected = detect(path)
        return detected.path, detected.framework
    if runtime.library and library_of_booster(path) != runtime.library:
        raise RepositoryError(f"{source}: {path} is no file that {runtime.library} has saved; save it anew")
    return path, runtime.framework
