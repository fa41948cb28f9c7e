"""Deployment and model settings: frozen, validated once. The only reader of arguments, environment and YAML.

A setting is written once, as a field below; its command-line option, its environment variable
(`STOKER_PORT`) and its key in the deployment file follow from the field. Arguments win over the
environment, the environment over the file.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from stoker.acceleration import Execution, Precision, Provider
from stoker.collection import CollectionSettings, read_collection
from stoker.endpoint import Endpoint
from stoker.errors import InvalidSettings
from stoker.image_input import ImageInput, read_image_input
from stoker.non_finite import WORDS, NonFinite
from stoker.setting_values import (
    choice_of,
    number_of,
    read_audit,
    read_devices,
    read_names,
    read_non_finite,
    read_numbers,
    read_origins,
    read_path,
    read_references,
    read_sizes,
    read_switch,
    read_text,
    read_variables,
)
from stoker.versions import read_labels, read_versions
from stoker.yaml_file import read_yaml

__all__ = [
    "ImportedSettings",
    "ModelSettings",
    "ServerSettings",
    "add_server_options",
    "load_settings",
    "model_settings",
]


_AZURE_VARIABLES: Final = {"cors_origins": ("AML_CORS_ORIGINS",)}
"""Variables of the Azure inference server that are heeded too; those of Stoker win."""


_OTHER_VARIABLES: Final = (
    "WORKSPACE",
    "KEY",
    "PRIMARY_KEY",
    "SECONDARY_KEY",
    "ADMIN_KEY",
    "INTRA_OP_THREADS",
)
"""What `STOKER_` stands before besides settings."""
_ALIKE: Final = 0.75
"""How alike a variable's name is to a setting's that was probably meant, as difflib counts it."""


def _setting(default: Any, convert: Callable[[Any], Any], text: str, metavar: str = "N") -> Any:
    return field(default=default, metadata={"convert": convert, "help": text, "metavar": metavar})


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """One model to serve: a bare `path` or a `registered` reference `NAME[:VERSION]`, and how to batch it."""

    path: Path | None = _setting(None, read_path, "model file or folder", "PATH")
    registered: str | None = _setting(None, read_text, "registered model NAME[:VERSION]", "NAME")
    name: str | None = _setting(None, read_text, "service name", "NAME")
    versions: str | tuple[int, ...] | None = _setting(
        None, read_versions, "which versions are served: latest (the default), latest:N, all, or 3,7", "WHICH"
    )
    labels: Mapping[str, int] | None = _setting(
        None,
        read_labels,
        "names of versions for callers; the version with the label default is the default",
        "MAPPING",
    )
    model_dir: Path | None = _setting(
        None, read_path, "folder that an entry script finds as AZUREML_MODEL_DIR", "DIR"
    )
    uses: tuple[str, ...] | None = _setting(
        None, read_references, "registered models that an entry script finds there instead", "NAME[:VERSION]"
    )
    environment_variables: Mapping[str, str] | None = _setting(
        None, read_variables, "environment variables of an entry script's process", "MAPPING"
    )
    max_batch_rows: int | None = _setting(
        None, number_of(int, 1, 65536), "most rows in one batch (default 256)"
    )
    max_delay_ms: float | None = _setting(
        None, number_of(float, 0, 60000), "how long a row may wait for company (default 0: none is added)"
    )
    pad: Mapping[str, float] | None = _setting(
        None,
        read_numbers,
        "what the free sizes of an input are filled up with, so that requests of different sizes run as one batch",
        "MAPPING",
    )
    timeout_ms: int | None = _setting(
        None, number_of(int, 1, 3_600_000), "a request not answered by then gets 504 (default: the server's)"
    )
    load_timeout_s: float | None = _setting(
        None, number_of(float, 1, 86_400), "how long it may take to load (default: the server's)"
    )
    max_concurrent_requests: int | None = _setting(
        None, number_of(int, 1, 65536), "most requests in flight; further ones wait (default: no limit)"
    )
    max_queue_wait_ms: int | None = _setting(
        None, number_of(int, 0, 3_600_000), "how long those wait before they get 503 (default 500)"
    )
    threads: int | None = _setting(
        None, number_of(int, 1, 1024), "most threads for one CPU operation (default: the cores that are left)"
    )
    description: str | None = _setting(None, read_text, "a sentence for swagger.json", "TEXT")
    environment: Path | None = _setting(
        None, read_path, "conda file or requirements file (default: the one beside the script)", "FILE"
    )
    environment_managed: str = _setting(
        "user", choice_of("user", "system"), "who installs that: the user, or Stoker (system)", "WHO"
    )
    replicas: int | None = _setting(
        None, number_of(int, 1, 64), "device processes that serve it (default: the server's)"
    )
    device: tuple[str, ...] | None = _setting(
        None, read_devices, "where it runs, one device or several (default: the server's)", "DEVICE"
    )
    instances: int | None = _setting(
        None,
        number_of(int, 1, 16),
        "batches that one device process runs at the same time (default: 2 on a GPU, 1 on the CPU)",
    )
    batch_buckets: tuple[int, ...] | None = _setting(
        None,
        read_sizes,
        "sizes that batches are filled up to (default: powers of two on a GPU, none on the CPU)",
        "ROWS",
    )
    gpu_memory_mb: int | None = _setting(
        None, number_of(int, 1, 1 << 24), "most GPU memory in MiB that it takes (default: no limit)"
    )
    provider: Provider = _setting(
        "cuda",
        choice_of("cuda", "tensorrt"),
        "what runs an ONNX model on a GPU: cuda, or tensorrt",
        "WHAT",
    )
    precision: Precision = _setting(
        "tf32",
        choice_of("fp32", "tf32", "fp16"),
        "precision of float32 products and convolutions on a GPU: fp32, tf32 or fp16",
        "WHICH",
    )
    execution: Execution = _setting(
        "auto",
        choice_of("auto", "copied", "bound", "graph"),
        "how batches of an ONNX model run on a GPU: copied, bound, graph, or auto (the fastest at warm-up)",
        "HOW",
    )
    xla: bool = _setting(False, read_switch, "whether TensorFlow compiles a SavedModel with XLA", "BOOL")
    batching: Literal["auto", "merge", "handle", "rows", "none"] = _setting(
        "auto",
        choice_of("auto", "merge", "handle", "rows", "none"),
        "how requests are batched: auto (as far as is found to be safe), none; for a model rows (you vouch that its "
        "rows do not see each other), for an entry script merge or handle",
        "HOW",
    )
    signature: tuple[str, ...] | None = _setting(
        None,
        read_names,
        "the signature of a SavedModel that is served, or several, the default first, or * for all "
        "(default: serving_default, or the only one)",
        "NAME",
    )
    audit: float | None = _setting(
        None,
        read_audit,
        "how many of all batches of a model are audited, or off (default: the server's)",
        "RATE",
    )
    sample_input: Path | None = _setting(
        None,
        read_path,
        "a request that the model is known to answer (default: sample_input.json beside it)",
        "FILE",
    )
    tensorflow_compat: str = _setting(
        "auto",
        choice_of("auto", "v1", "off"),
        "give an entry script TensorFlow's API of version 1: v1, off, or auto (if its text needs it)",
        "API",
    )

    non_finite: NonFinite | None = _setting(
        None,
        read_non_finite,
        "NaN and infinities in the JSON of its answers: words, null or error (default: the server's)",
        "WHAT",
    )
    zipmap: Literal["tensor", "objects"] = _setting(
        "tensor",
        choice_of("tensor", "objects"),
        "what an ONNX model's ZipMap is in JSON that can have both: tensor, or objects by the names of the classes",
        "WHAT",
    )
    image: ImageInput | None = _setting(
        None, read_image_input, "how its input is made from images (default: as it was registered)", "MAPPING"
    )
    collect: CollectionSettings | Literal[False] | None = _setting(
        None,
        read_collection,
        "whether, or how, its requests and answers are collected (default: the server's)",
        "MAPPING",
    )

    said: frozenset[str] = field(default=frozenset(), repr=False, compare=False)
    """Names of settings that were given, also those that were given their defaults."""

    def over(self, defaults: ModelSettings) -> ModelSettings:
        """These settings, with those of `defaults` where nothing was said."""
        missing = {
            name: getattr(defaults, name)
            for name, setting in _settable(ModelSettings).items()
            if name not in self.said and getattr(self, name) == setting.default
        }
        return dataclasses.replace(self, **missing, said=self.said | defaults.said)


@dataclass(frozen=True, slots=True)
class ImportedSettings:
    """Settings taken over from files and variables made for another server; those given to Stoker itself win.

    Attributes:
        source: Where they are from, for messages.
        server: Values of server settings by name.
        model: Settings of each model that is served.
        primary_key: The service's primary key.
        secondary_key: Its secondary key.
        notes: What the operator is told of them, one line each.
        endpoint: The endpoint whose deployments the models are.
    """

    source: str
    server: Mapping[str, Any] = field(default_factory=dict)
    model: ModelSettings = ModelSettings()
    primary_key: str | None = field(default=None, repr=False)
    secondary_key: str | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()
    endpoint: Endpoint | None = None


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """How a server runs."""

    host: str = _setting("127.0.0.1", read_text, "address to listen on", "ADDRESS")
    port: int = _setting(8080, number_of(int, 0, 65535), "port to listen on; 0 takes a free one")
    frontends: int = _setting(
        0, number_of(int, 0, 64), "HTTP processes; 0 (the default) takes half of the cores, at most 8"
    )
    device: tuple[str, ...] = _setting(
        ("auto",),
        read_devices,
        "auto, cpu, cuda:N, or the UUID of a GPU or MIG device; several with commas, each model runs on all",
        "DEVICE",
    )
    replicas: int = _setting(
        0,
        number_of(int, 0, 64),
        "device processes that serve each model; 0 (the default) takes one for each of its devices",
    )
    auth: bool = _setting(
        True, read_switch, "whether scoring takes a key, and needs one (default: yes)", "BOOL"
    )
    token_auth: bool = _setting(
        False,
        read_switch,
        "whether scoring takes a short-lived token; keys then fetch tokens (default: no)",
        "BOOL",
    )
    metrics_auth: bool = _setting(False, read_switch, "whether /metrics needs a key (default: no)", "BOOL")
    open_metadata: bool = _setting(
        False,
        read_switch,
        "whether metadata, index, statistics and swagger.json can be read without a key (default: no)",
        "BOOL",
    )
    max_body_mb: float = _setting(100.0, number_of(float, 0.001, 1024), "largest request body in MiB")
    max_image_mpx: float = _setting(
        25.0, number_of(float, 0.001, 1000), "largest image that is decoded, in millions of pixels"
    )
    timeout_ms: int = _setting(
        60_000, number_of(int, 1, 3_600_000), "a request not answered by then gets 504"
    )
    load_timeout_s: float = _setting(
        600.0,
        number_of(float, 1, 86_400),
        "a model that is not loaded and warmed up by then is given up, and its process ended",
    )
    max_batch_rows: int = _setting(256, number_of(int, 1, 65536), "most rows in one batch")
    max_delay_ms: float = _setting(
        0.0,
        number_of(float, 0, 60000),
        "how long a row may wait for company while the device is free (default 0: not at all)",
    )
    non_finite: NonFinite = _setting(
        WORDS,
        read_non_finite,
        "NaN and infinities in the JSON of answers: words (NaN, Infinity), null, or error (the request is 500)",
        "WHAT",
    )
    audit: float = _setting(
        1e-4,
        read_audit,
        "how many of all batches have a row run again beside other rows, to see whether it gets the same answer; or "
        "off",
        "RATE",
    )
    cors_origins: tuple[str, ...] = _setting(
        (),
        read_origins,
        "origins whose pages may read answers, with commas, or * (default: none); also AML_CORS_ORIGINS",
        "ORIGINS",
    )
    drain_grace_s: float = _setting(
        2.0,
        number_of(float, 0, 3600),
        "after SIGTERM, how long new requests are still taken before the port closes",
    )
    poll_s: float = _setting(
        0.0,
        number_of(float, 0, 86_400),
        "how often new and vanished versions are looked for; 0 (the default): only when asked through the API",
    )
    exit_on_error: bool | None = _setting(
        None,
        read_switch,
        "whether the server ends if a model cannot be loaded at its start (default: yes for a single model)",
        "BOOL",
    )
    collect: bool = _setting(
        False,
        read_switch,
        "whether requests and answers are collected in the workspace (default: no)",
        "BOOL",
    )
    grpc_port: int = _setting(
        0,
        number_of(int, 0, 65535),
        "port for the Open Inference Protocol over gRPC; 0 (the default) has none",
    )
    grpc_tls_cert: Path | None = _setting(
        None,
        read_path,
        "certificate chain (PEM) for TLS on the gRPC port; HTTP has no TLS of its own",
        "FILE",
    )
    grpc_tls_key: Path | None = _setting(None, read_path, "private key (PEM) of that certificate", "FILE")
    models: tuple[ModelSettings, ...] = ()
    primary_key: str | None = field(default=None, repr=False)
    secondary_key: str | None = field(default=None, repr=False)
    keys_file: str = ""
    """The file that gave the keys, where no variable did."""
    admin_key: str | None = field(default=None, repr=False)
    """The key for loading and unloading models, where it is not the workspace's; STOKER_ADMIN_KEY."""
    model_defaults: ModelSettings = ModelSettings()
    """What models have where their own settings say nothing; before the server's settings."""
    endpoint: Endpoint | None = None
    """The endpoint whose deployments the models are, if they were made for one."""
    notes: tuple[str, ...] = ()
    """Lines for the operator about settings that were taken over from another server's."""
    unknown_variables: tuple[str, ...] = ()
    """Lines for the operator about variables that look like settings and are none."""
    service_name: str | None = None
    """What descriptions call the only service; SERVICE_NAME."""
    service_version: str = "1.0"
    """The version in descriptions; SERVICE_VERSION."""
    service_path_prefix: str = ""
    """What a proxy has before the paths of the only service, with a slash first; SERVICE_PATH_PREFIX."""
    tells_version: bool = True
    """Whether answers name the server's version; SERVER_VERSION_LOG_RESPONSE_ENABLED."""

    @property
    def max_body_bytes(self) -> int:
        """`max_body_mb` in bytes."""
        return int(self.max_body_mb * 2**20)

    @property
    def max_image_pixels(self) -> int:
        """`max_image_mpx` in pixels."""
        return round(self.max_image_mpx * 1e6)

    def ends_on_error(self, models: int) -> bool:
        """`exit_on_error`, resolved for so many models."""
        return models <= 1 if self.exit_on_error is None else self.exit_on_error

    @property
    def given_keys(self) -> list[str]:
        """The environment variables that gave keys."""
        if self.keys_file:
            return []
        given = {"STOKER_PRIMARY_KEY": self.primary_key, "STOKER_SECONDARY_KEY": self.secondary_key}
        return [variable for variable, key in given.items() if key]

    @property
    def frontend_count(self) -> int:
        """`frontends`, resolved."""
        return self.frontends or max(1, min(8, len(os.sched_getaffinity(0)) // 2))

    @property
    def device_threads(self) -> int:
        """Threads that a model may use for one CPU operation: the cores that the frontends leave."""
        return max(1, len(os.sched_getaffinity(0)) - self.frontend_count)


def _settable(settings: type) -> dict[str, dataclasses.Field[Any]]:
    return {f.name: f for f in dataclasses.fields(settings) if f.metadata}


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Add an option for each server setting; those not given stay out of the parsed arguments."""
    group = parser.add_argument_group(
        "settings", "also as STOKER_NAME in the environment, or in the deployment file"
    )
    for name, setting in _settable(ServerSettings).items():
        option = "--" + name.replace("_", "-")
        text = str(setting.metadata["help"])
        if setting.metadata["convert"] is read_switch:
            group.add_argument(
                option, dest=name, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=text
            )
            continue
        if setting.default:
            text += f" (default {_shown(setting.default)})"
        group.add_argument(
            option, dest=name, metavar=setting.metadata["metavar"], default=argparse.SUPPRESS, help=text
        )


def _shown(default: Any) -> str:
    if isinstance(default, tuple):
        return ",".join(default)
    return f"{default:g}" if isinstance(default, float) else str(default)


def model_settings(values: Mapping[str, Any], source: str) -> ModelSettings:
    """Check the settings of one model.

    Args:
        values: The settings by name.
        source: Where they are from, for messages.

    Raises:
        InvalidSettings: One is unknown or has a bad value.
    """
    converted = _convert(ModelSettings, values, source)
    return ModelSettings(**converted, said=frozenset(converted))


def load_settings(
    arguments: Mapping[str, Any],
    environ: Mapping[str, str],
    file: Path | None,
    models: tuple[ModelSettings, ...],
    imported: Sequence[ImportedSettings] = (),
) -> ServerSettings:
    """Merge and validate.

    Args:
        arguments: Parsed command-line arguments; names that are no settings are ignored.
        environ: The environment.
        file: The YAML deployment file, or None.
        models: Models named on the command line; they replace those of the file.
        imported: Settings of the lowest rank; of two, the former wins.

    Raises:
        InvalidSettings: A setting is unknown or has a bad value; the message says where it came from.
    """
    settable = _settable(ServerSettings)
    values: dict[str, Any] = {}
    for source in reversed(imported):
        values.update(_convert(ServerSettings, source.server, source.source))
    if file is not None:
        content = read_yaml(file, "deployment file", "settings by name, for instance: port: 8080")
        listed = content.pop("models", [])
        values.update(_relative_to(file.parent, _convert(ServerSettings, content, str(file))))
        values["models"] = _models(listed, file)
    for name in settable:
        for variable in (*_AZURE_VARIABLES.get(name, ()), f"STOKER_{name.upper()}"):
            # Kubernetes gives the pods beside a service named "stoker" STOKER_PORT=tcp://ADDRESS:PORT.
            if environ.get(variable) and not environ[variable].startswith("tcp://"):
                values.update(_convert(ServerSettings, {name: environ[variable]}, variable))
    given = {name: arguments[name] for name in settable if name in arguments}
    values.update(_convert(ServerSettings, given, "command line"))
    if models:
        values["models"] = models
    values.update(_keys(environ, imported))
    values["admin_key"] = environ.get("STOKER_ADMIN_KEY") or None
    values.update(_naming(environ))
    values["unknown_variables"] = tuple(_unknown_variables(environ))
    for source in imported:
        values["model_defaults"] = values.get("model_defaults", ModelSettings()).over(source.model)
        values["notes"] = (*values.get("notes", ()), *source.notes)
        values["endpoint"] = values.get("endpoint") or source.endpoint
    return ServerSettings(**values)


def _unknown_variables(environ: Mapping[str, str]) -> Iterator[str]:
    """What is to be said of variables that are called nearly as a setting's; others may be somebody else's."""
    known = [name.upper() for name in _settable(ServerSettings)]
    for variable in sorted(environ):
        prefix, _, name = variable.partition("STOKER_")
        if not prefix and name not in (*known, *_OTHER_VARIABLES):
            for near in difflib.get_close_matches(name, known, 1, _ALIKE):
                yield f"{variable} is no setting and is not used; did you mean STOKER_{near}?"


def _naming(environ: Mapping[str, str]) -> dict[str, Any]:
    """What the variables of the Azure inference server say of descriptions and of the server's version."""
    prefix = environ.get("SERVICE_PATH_PREFIX", "").strip("/")
    return {
        "service_name": environ.get("SERVICE_NAME") or None,
        "service_version": environ.get("SERVICE_VERSION") or "1.0",
        "service_path_prefix": f"/{prefix}" if prefix else "",
        "tells_version": environ.get("SERVER_VERSION_LOG_RESPONSE_ENABLED", "true").lower() == "true",
    }


def _keys(environ: Mapping[str, str], imported: Sequence[ImportedSettings]) -> dict[str, str | None]:
    """The keys of the environment, else those of the first source that has some; never a mixture."""
    primary, secondary = (environ.get(f"STOKER_{slot}_KEY") or None for slot in ("PRIMARY", "SECONDARY"))
    if primary or secondary:
        return {"primary_key": primary, "secondary_key": secondary}
    for source in imported:
        if source.primary_key or source.secondary_key:
            return {
                "primary_key": source.primary_key,
                "secondary_key": source.secondary_key,
                "keys_file": source.source,
            }
    return {}


def _models(listed: Any, file: Path) -> tuple[ModelSettings, ...]:
    if not isinstance(listed, list):
        raise InvalidSettings(f"{file}: models must be a list, each item with {_model_keys()}")
    return tuple(_model(item, _place(item, number, file), file.parent) for number, item in enumerate(listed))


def _model(item: Any, place: str, base: Path) -> ModelSettings:
    """One item of `models`; `place` is where it stands, for messages."""
    if not isinstance(item, dict):
        raise InvalidSettings(f"{place} must have {_model_keys()}, got {item!r}")
    model = model_settings(item, place)
    if (model.path is None) == (model.registered is None):
        given = "neither" if model.path is None else "both"
        raise InvalidSettings(f"{place} needs either path or registered, and has {given}")
    return dataclasses.replace(
        model,
        path=model.path and base / model.path,
        model_dir=model.model_dir and base / model.model_dir,
        environment=model.environment and base / model.environment,
        sample_input=model.sample_input and base / model.sample_input,
    )


def _model_keys() -> str:
    return f"keys of: {', '.join(_settable(ModelSettings))}"


def _place(item: Any, number: int, file: Path) -> str:
    """Where an item of `models` stands: counted from 0, and with what it is called in the file."""
    names = [item.get(key) for key in ("name", "registered", "path")] if isinstance(item, dict) else []
    called = next((name for name in names if isinstance(name, str) and name), None)
    return f"{file}, models[{number}]" if called is None else f"{file}, models[{number}] ({called})"


def _relative_to(base: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Paths in a file are relative to the file, wherever the server is started."""
    return {name: base / value if isinstance(value, Path) else value for name, value in values.items()}


def _convert(settings: type, values: Mapping[str, Any], source: str) -> dict[str, Any]:
    settable = _settable(settings)
    converted = {}
    for name, value in values.items():
        if name not in settable:
            # The models of a deployment file are settings of their own.
            known = (*settable, "models") if settings is ServerSettings else tuple(settable)
            near = difflib.get_close_matches(str(name), known, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; known are: {', '.join(known)}"
            raise InvalidSettings(f"{source}: there is no setting {name!r}{hint}")
        try:
            converted[name] = settable[name].metadata["convert"](value)
        except ValueError as error:
            raise InvalidSettings(f"{source}: {name} {error}, got {value!r}") from None
    return converted
