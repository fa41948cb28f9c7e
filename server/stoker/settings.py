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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from stoker.errors import InvalidSettings

__all__ = ["ModelSettings", "ServerSettings", "add_server_options", "load_settings"]

_MODEL_KEYS_HELP: Final = "path, registered, name, model_dir, max_batch_rows, max_delay_ms"


def _number(kind: Callable[[str], Any], low: float, high: float) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if isinstance(value, bool):
            raise ValueError("must be a number")
        try:
            number = kind(value)
        except (TypeError, ValueError, OverflowError):
            raise ValueError("must be a whole number" if kind is int else "must be a number") from None
        if not low <= number <= high or (kind is int and number != float(value)):
            raise ValueError(
                f"must be {'a whole number ' if kind is int else ''}between {low:.10g} and {high:.10g}"
            )
        return number

    return convert


def _switch(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).lower()
    if word not in ("true", "false", "1", "0", "yes", "no"):
        raise ValueError("must be true or false")
    return word in ("true", "1", "yes")


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("must be a text")
    return value


def _path(value: Any) -> Path:
    try:
        return Path(_text(str(value) if isinstance(value, Path) else value)).expanduser()
    except RuntimeError:
        raise ValueError("names a home folder that does not exist") from None


def _setting(default: Any, convert: Callable[[Any], Any], text: str, metavar: str = "N") -> Any:
    return field(default=default, metadata={"convert": convert, "help": text, "metavar": metavar})


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """One model to serve: a bare `path` or a `registered` reference `NAME[:VERSION]`, and how to batch it."""

    path: Path | None = _setting(None, _path, "model file or folder", "PATH")
    registered: str | None = _setting(None, _text, "registered model NAME[:VERSION]", "NAME")
    name: str | None = _setting(None, _text, "service name", "NAME")
    model_dir: Path | None = _setting(
        None, _path, "folder that an entry script finds as AZUREML_MODEL_DIR", "DIR"
    )
    max_batch_rows: int | None = _setting(
        None, _number(int, 1, 65536), "most rows in one batch (default 256)"
    )
    max_delay_ms: float | None = _setting(
        None, _number(float, 0, 60000), "how long a row may wait for company (default 0: none is added)"
    )


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """How a server runs."""

    host: str = _setting("127.0.0.1", _text, "address to listen on", "ADDRESS")
    port: int = _setting(8080, _number(int, 0, 65535), "port to listen on; 0 takes a free one")
    frontends: int = _setting(
        0, _number(int, 0, 64), "HTTP processes; 0 (the default) takes half of the cores, at most 8"
    )
    device: str = _setting("auto", _text, "auto, cpu or cuda:N", "DEVICE")
    auth: bool = _setting(True, _switch, "whether scoring needs a key (default: yes)", "BOOL")
    metrics_auth: bool = _setting(False, _switch, "whether /metrics needs a key (default: no)", "BOOL")
    max_body_mb: float = _setting(100.0, _number(float, 0.001, 1024), "largest request body in MiB")
    timeout_ms: int = _setting(60_000, _number(int, 1, 3_600_000), "a request not answered by then gets 504")
    max_batch_rows: int = _setting(256, _number(int, 1, 65536), "most rows in one batch")
    max_delay_ms: float = _setting(
        0.0,
        _number(float, 0, 60000),
        "how long a row may wait for company while the device is free (default 0: not at all)",
    )
    drain_grace_s: float = _setting(
        2.0,
        _number(float, 0, 3600),
        "after SIGTERM, how long new requests are still taken before the port closes",
    )
    models: tuple[ModelSettings, ...] = ()
    primary_key: str | None = field(default=None, repr=False)
    secondary_key: str | None = field(default=None, repr=False)

    @property
    def max_body_bytes(self) -> int:
        """`max_body_mb` in bytes."""
        return int(self.max_body_mb * 2**20)

    @property
    def given_keys(self) -> list[str]:
        """The environment variables that gave keys."""
        given = {"STOKER_PRIMARY_KEY": self.primary_key, "STOKER_SECONDARY_KEY": self.secondary_key}
        return [variable for variable, key in given.items() if key]

    @property
    def frontend_count(self) -> int:
        """`frontends`, resolved."""
        return self.frontends or max(1, min(8, len(os.sched_getaffinity(0)) // 2))

    @property
    def device_threads(self) -> int:
        """Threads that a device process may use for one CPU operation: the cores that the frontends leave."""
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
        if setting.metadata["convert"] is _switch:
            group.add_argument(
                option, dest=name, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=text
            )
            continue
        if setting.default:
            text += (
                f" (default {setting.default:g})"
                if isinstance(setting.default, float)
                else (f" (default {setting.default})")
            )
        group.add_argument(
            option, dest=name, metavar=setting.metadata["metavar"], default=argparse.SUPPRESS, help=text
        )


def load_settings(
    arguments: Mapping[str, Any],
    environ: Mapping[str, str],
    file: Path | None,
    models: tuple[ModelSettings, ...],
) -> ServerSettings:
    """Merge and validate.

    Args:
        arguments: Parsed command-line arguments; names that are no settings are ignored.
        environ: The environment.
        file: The YAML deployment file, or None.
        models: Models named on the command line; they replace those of the file.

    Raises:
        InvalidSettings: A setting is unknown or has a bad value; the message says where it came from.
    """
    settable = _settable(ServerSettings)
    values: dict[str, Any] = {}
    if file is not None:
        content = _read_yaml(file)
        listed = content.pop("models", [])
        values.update(_convert(ServerSettings, content, str(file)))
        values["models"] = _models(listed, file)
    for name in settable:
        variable = f"STOKER_{name.upper()}"
        # Kubernetes gives the pods beside a service named "stoker" STOKER_PORT=tcp://ADDRESS:PORT.
        if environ.get(variable) and not environ[variable].startswith("tcp://"):
            values.update(_convert(ServerSettings, {name: environ[variable]}, variable))
    given = {name: arguments[name] for name in settable if name in arguments}
    values.update(_convert(ServerSettings, given, "command line"))
    if models:
        values["models"] = models
    for slot in ("primary", "secondary"):
        values[f"{slot}_key"] = environ.get(f"STOKER_{slot.upper()}_KEY") or None
    return ServerSettings(**values)


def _read_yaml(file: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"the deployment file cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise InvalidSettings(f"{file} is not YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InvalidSettings(f"{file} must hold settings by name, for instance: port: 8080")
    return content


def _models(listed: Any, file: Path) -> tuple[ModelSettings, ...]:
    if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
        raise InvalidSettings(f"{file}: models must be a list, each item with keys of: {_MODEL_KEYS_HELP}")
    models = tuple(ModelSettings(**_convert(ModelSettings, item, f"{file}, models")) for item in listed)
    for model in models:
        if (model.path is None) == (model.registered is None):
            raise InvalidSettings(f"{file}: each model needs either path or registered, not both")
    # Paths in a file are relative to the file, wherever the server is started.
    base = file.parent
    return tuple(
        dataclasses.replace(
            model,
            path=model.path and base / model.path,
            model_dir=model.model_dir and base / model.model_dir,
        )
        for model in models
    )


def _convert(settings: type, values: Mapping[str, Any], source: str) -> dict[str, Any]:
    settable = _settable(settings)
    converted = {}
    for name, value in values.items():
        if name not in settable:
            near = difflib.get_close_matches(str(name), settable, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; known are: {', '.join(settable)}"
            raise InvalidSettings(f"{source}: there is no setting {name!r}{hint}")
        try:
            converted[name] = settable[name].metadata["convert"](value)
        except ValueError as error:
            raise InvalidSettings(f"{source}: {name} {error}, got {value!r}") from None
    return converted
