"""TorchServe's `config.properties` as settings: honoured, passed over with a note, or refused by name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from stoker.errors import InvalidSettings
from stoker.models.frameworks import find_archives, is_archive
from stoker.settings.files import settings_text
from stoker.settings.model import ModelSettings, model_settings
from stoker.settings.server import ImportedSettings
from stoker_torchserve.archives import read_archive_manifest
from stoker_torchserve.metrics_config import METRICS_FILE_VARIABLE, read_metrics
from stoker_torchserve.model_config import settings_of

_S_MS: Final = 1000
_NONE: Final = ("", "standalone", "n/a")
_REFUSED: Final = {
    "service_envelope": "handlers get the rows of requests; unpack an envelope in the handler",
    "blacklist_env_vars": "start the server without the variables",
    "keystore": "give tls_cert and tls_key as PEM files",
    "ipex_enable": "optimise the model in the handler",
    "cpu_launcher_enable": "the setting threads limits the threads of a model",
}
"""Settings that the server refuses, each with what to do instead."""
_MODEL_KEYS: Final = (
    "minWorkers", "maxWorkers", "batchSize", "maxBatchDelay", "responseTimeout", "startupTimeout", "deviceType",
    "deviceIds", "jobQueueSize", "maxRetryTimeoutInSec", "clientTimeoutInMills", "parallelType", "parallelLevel",
    "useJobTicket", "sequenceBatching", "continuousBatching", "asyncCommunication", "useVenv",
)  # fmt: skip
_OF_MODELS: Final = ("defaultVersion", "marName", "runtimeType")
_READ: Final = (
    "model_store", "load_models", "models", "inference_address", "management_address", "metrics_address",
    "default_workers_per_model", "default_response_timeout", "default_startup_timeout", "job_queue_size",
    "max_request_size", "install_py_dep_per_model", "private_key_file", "certificate_file", "cors_allowed_origin",
    "grpc_inference_port", "metrics_config",
)  # fmt: skip
_INSTEAD: Final = {
    "management_address": "--management-port serves the management API, on the host of inference_address",
    "metrics_address": "/metrics is beside the other paths",
    "metrics_mode": "metrics of handlers are lines of the log, those of the server are at /metrics",
    "grpc_management_port": "",
    "number_of_gpu": "device names the GPUs",
    "allowed_urls": "models are loaded from disk alone",
    "decode_input_request": "JSON and text are always decoded",
    "limit_max_image_pixels": "images are always limited",
    "disable_token_authorization": "auth says whether keys are needed",
}
_LOCAL: Final = "127.0.0.1"
_LINE: Final = re.compile(r"\s*([^=:\s]+)\s*[=:\s]\s*(.*?)\s*")


def read_server_config(file: Path) -> tuple[tuple[ModelSettings, ...], ImportedSettings]:
    """Read a `config.properties`: the models that it loads, and what it says for the server.

    Paths are relative to the file's folder.

    Raises:
        InvalidSettings: It cannot be read, names no models, or asks for what is not offered.
    """
    try:
        values = dict(_properties(settings_text(file)))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"{file} cannot be read: {error}") from error
    for key, instead in _REFUSED.items():
        if values.get(key, "").lower() not in ("", "false"):
            raise InvalidSettings(f"{file}: {key} is not offered: {instead}")
    try:
        own = _server_values(values, file.parent)
        models, notes = _models(file, values)
    except ValueError as error:
        raise InvalidSettings(f"{file}: {error}") from error
    notes += [
        f"{file.name}: {key} is passed over{f': {instead}' if (instead := _INSTEAD.get(key, '')) else ''}"
        for key in values
        if (key in _INSTEAD or key not in (*_READ, *_REFUSED))
        and not (key == "management_address" and "management_port" in own)
    ]
    return models, ImportedSettings(str(file), server=own, passed_over=tuple(notes))


def _properties(text: str) -> Iterator[tuple[str, str]]:
    """The keys and values of Java's properties; a line that ends in a backslash goes on in the next."""
    for line in re.sub(r"\\\r?\n[ \t]*", "", text).splitlines():
        if line.strip() and not line.lstrip().startswith(("#", "!")):
            found = _LINE.fullmatch(line)
            if found is None:
                yield line.strip(), ""
            else:
                yield found[1], found[2]


def _server_values(values: Mapping[str, str], folder: Path) -> dict[str, Any]:
    own: dict[str, Any] = {}
    if address := values.get("inference_address"):
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"inference_address: {address} is no address such as http://127.0.0.1:8080")
        own["host"] = parts.hostname
        own["port"] = parts.port or (443 if parts.scheme == "https" else 80)
        if parts.scheme == "https" and not values.get("certificate_file"):
            raise ValueError("inference_address is https, which needs certificate_file and private_key_file")
    management = urlsplit(values.get("management_address", ""))
    # Elsewhere than inference it is not to be reached by everybody who reaches that.
    if management.port not in (None, own.get("port")) and management.hostname == own.get("host", _LOCAL):
        own["management_port"] = management.port
    for key, setting, factor in (
        ("default_workers_per_model", "replicas", 1),
        ("default_response_timeout", "timeout_ms", _S_MS),
        ("default_startup_timeout", "load_timeout_s", 1),
        ("grpc_inference_port", "grpc_port", 1),
    ):
        if key in values:
            own[setting] = _number(key, values[key]) * factor
    if "max_request_size" in values:
        own["max_body_mb"] = _number("max_request_size", values["max_request_size"]) / 2**20
    for key, setting in (("certificate_file", "tls_cert"), ("private_key_file", "tls_key")):
        if values.get(key):
            own[setting] = str(folder / values[key])
    if values.get("cors_allowed_origin"):
        own["cors_origins"] = values["cors_allowed_origin"]
    return own


def _number(key: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,12}", text, re.ASCII):
        raise ValueError(f"{key}: {text!r} is no whole number")
    return int(text)


def _models(file: Path, values: Mapping[str, str]) -> tuple[tuple[ModelSettings, ...], list[str]]:
    """Return the models to load, with their settings in `models`, and notes for the operator."""
    store = values.get("model_store", "")
    configs = _read_models(values.get("models", ""))
    wanted = values.get("load_models", "")
    if store.lower() in _NONE:
        raise ValueError("it has no model_store, so there is nothing to serve")
    folder = file.parent / store
    if not folder.is_dir():
        raise ValueError(f"model_store: {folder} is not a folder")
    if wanted.lower() == "all":
        paths = dict.fromkeys(find_archives(folder), "")
    elif wanted.lower() not in _NONE:
        paths = dict(_named(folder, one) for one in wanted.split(",") if one.strip())
    else:
        named = (
            (name, config.get("marName", ""))
            for name, versions in configs.items()
            for config in versions.values()
        )
        paths = {_path_in(folder, archive): name for name, archive in named if archive}
    if not paths:
        raise ValueError(
            f"load_models names no model, and neither does models: there is nothing to serve in {folder}"
        )
    notes: list[str] = []
    used: set[tuple[str, str]] = set()
    models = tuple(_model(path, name, file, values, configs, notes, used) for path, name in paths.items())
    notes += [
        f"{file.name}: models, {name} {version} is passed over: no archive of this name and version is loaded"
        for name, versions in configs.items()
        for version in versions
        if (name, version) not in used
    ]
    return models, notes


def _named(folder: Path, text: str) -> tuple[Path, str]:
    """Split `NAME=ARCHIVE` or `ARCHIVE`."""
    name, equals, archive = (part.strip() for part in text.partition("="))
    return (_path_in(folder, archive), name) if equals else (_path_in(folder, name), "")


def _path_in(folder: Path, name: str) -> Path:
    """Return the path of an archive of the store; other places are refused."""
    if not name or name != Path(name).name or name in (".", ".."):
        raise ValueError(f"{name!r} is no name of an archive in {folder}; copy it there")
    return folder / name


def _read_models(text: str) -> dict[str, dict[str, dict[str, Any]]]:
    if not text:
        return {}
    try:
        configs = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"models is not JSON: {error}") from error
    if not isinstance(configs, dict) or not all(
        isinstance(versions, dict) and all(isinstance(one, dict) for one in versions.values())
        for versions in configs.values()
    ):
        raise ValueError('models needs the form {"NAME": {"VERSION": {"batchSize": 1}}}')
    for name, versions in configs.items():
        for version, config in versions.items():
            unknown = sorted(config.keys() - {*_MODEL_KEYS, *_OF_MODELS})
            if unknown:
                raise ValueError(f"models: {name} {version}: there is no {unknown[0]}")
    return configs


def _model(
    path: Path,
    name: str,
    file: Path,
    values: Mapping[str, str],
    configs: Mapping[str, Mapping[str, Mapping[str, Any]]],
    notes: list[str],
    used: set[tuple[str, str]],
) -> ModelSettings:
    if not path.exists() or not (path.is_dir() or is_archive(path)):
        raise ValueError(f"{path} is no archive of TorchServe")
    manifest = read_archive_manifest(path)
    name = name or manifest.model_name
    used.add((name, manifest.model_version))
    config = configs.get(name, {}).get(manifest.model_version, {})
    chosen = {key: value for key, value in config.items() if key in _MODEL_KEYS}
    if "job_queue_size" in values:
        chosen.setdefault("jobQueueSize", _number("job_queue_size", values["job_queue_size"]))
    settings, more = settings_of(chosen, f"models of {file.name}, {name}")
    notes += more
    own: dict[str, Any] = {"path": str(path), "name": name}
    if values.get("install_py_dep_per_model", "").lower() == "true" and manifest.requirements_file:
        own["environment_managed"] = "system"
    if values.get("metrics_config"):
        metrics_file = (file.parent / values["metrics_config"]).absolute()
        read_metrics(metrics_file)
        own["environment_variables"] = {METRICS_FILE_VARIABLE: str(metrics_file)}
    return model_settings(own, str(file)).over(settings)
