"""Merges arguments, environment variables and the deployment file into the settings of a server.

A setting is written once, as a field of `ServerSettings` or `ModelSettings`; its command-line option, its
environment variable (`STOKER_PORT`) and its key in the deployment file follow from the field. Arguments win over
the environment, the environment over the file.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from stoker.errors import InvalidSettings
from stoker.settings.model import ModelSettings, model_settings
from stoker.settings.names import SERVICE_RULE, is_service_name, read_address
from stoker.settings.pipeline_graph import check_names
from stoker.settings.pipelines import Pipeline, Step, named_steps
from stoker.settings.readers import (
    number_of,
    read_settings,
    read_switch,
    read_text,
    read_values,
    settings_of,
)
from stoker.settings.server import ImportedSettings, ServerSettings

_AZURE_VARIABLES: Final = {"cors_origins": ("AML_CORS_ORIGINS",)}
"""Variables of the Azure inference server that are heeded too; those of Stoker win."""


_OTHER_VARIABLES: Final = (
    "WORKSPACE",
    "KEY",
    "PRIMARY_KEY",
    "SECONDARY_KEY",
    "ADMIN_KEY",
    "INTRA_OP_THREADS",
    "NATIVE",
    "REMOTE_CACHE_GB",
)
"""Names of other variables with the prefix `STOKER_`."""
_ITEM: Final = "each item with a path or a registered name, such as {path: model.onnx}"
_ALIKE: Final = 0.75
"""The minimum similarity (difflib's ratio) of a variable to the setting that was probably meant."""


def add_server_options(parser: argparse.ArgumentParser, names: Container[str] | None = None) -> None:
    """Add options for server settings; options that are not given stay out of the parsed arguments.

    Args:
        names: The settings that become options; None for all.
    """
    group = parser.add_argument_group(
        "settings", "also as STOKER_NAME in the environment, or in the deployment file"
    )
    add_setting_options(group, ServerSettings, names)


def add_setting_options(
    group: argparse._ActionsContainer, kind: type, names: Container[str] | None = None
) -> None:
    """Add options for settings of a class; options that are not given stay out of the parsed arguments."""
    for name, field in settings_of(kind).items():
        if names is not None and name not in names:
            continue
        option = "--" + name.replace("_", "-")
        # argparse formats help texts with `%`.
        text = str(field.metadata["help"]).replace("%", "%%")
        if field.metadata["read"] is read_switch:
            group.add_argument(
                option, dest=name, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=text
            )
            continue
        if field.default:
            text += f" (default {_shown(field.default)})"
        group.add_argument(
            option, dest=name, metavar=field.metadata["metavar"], default=argparse.SUPPRESS, help=text
        )


def _shown(default: Any) -> str:
    if isinstance(default, tuple):
        return ",".join(default)
    return f"{default:g}" if isinstance(default, float) else str(default)


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
        file: The YAML deployment file, or None.
        models: Models named on the command line; they replace those of the file.
        imported: Settings of the lowest rank; of two, the former wins.
    """
    settable = settings_of(ServerSettings)
    values: dict[str, Any] = {}
    for source in reversed(imported):
        values.update(read_settings(ServerSettings, source.server, source.source))
    if file is not None:
        from stoker.settings.yaml_files import read_yaml

        content = read_yaml(file, "deployment file", "settings by name, for instance: port: 8080")
        listed = content.pop("models", [])
        # Settings of the cluster are read by `stoker kubernetes`.
        content.pop("kubernetes", None)
        values["pipelines"] = read_pipelines(content.pop("pipelines", {}), file)
        known = ["models", "pipelines"]
        values.update(_relative_to(file.parent, read_settings(ServerSettings, content, str(file), known)))
        values["models"] = _models(listed, file)
    for name in settable:
        for variable in (*_AZURE_VARIABLES.get(name, ()), f"STOKER_{name.upper()}"):
            # Kubernetes gives the pods beside a service named "stoker" STOKER_PORT=tcp://ADDRESS:PORT.
            if environ.get(variable) and not environ[variable].startswith("tcp://"):
                values.update(read_settings(ServerSettings, {name: environ[variable]}, variable))
    given = {name: arguments[name] for name in settable if name in arguments}
    values.update(read_settings(ServerSettings, given, "command line"))
    if models:
        values["models"] = models
    values.update(_keys(environ, imported))
    values["admin_key"] = environ.get("STOKER_ADMIN_KEY") or None
    values.update(_naming(environ))
    values["unknown_variables"] = tuple(_unknown_variables(environ))
    values.update(_beside(imported))
    return ServerSettings(**values)


def _beside(imported: Sequence[ImportedSettings]) -> dict[str, Any]:
    """Return the imported values that are not settings of the server; of two sources, the former wins."""
    model, endpoint = ModelSettings(), None
    for source in imported:
        model, endpoint = model.over(source.model), endpoint or source.endpoint
    return {
        "model_defaults": model,
        "notes": tuple(note for source in imported for note in source.notes),
        "passed_over": tuple(note for source in imported for note in source.passed_over),
        "endpoint": endpoint,
    }


def _unknown_variables(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield lines about variables with names similar to settings; other variables may belong to other programs."""
    known = [name.upper() for name in settings_of(ServerSettings)]
    for variable in sorted(environ):
        prefix, _, name = variable.partition("STOKER_")
        if not prefix and name not in (*known, *_OTHER_VARIABLES):
            for near in difflib.get_close_matches(name, known, 1, _ALIKE):
                yield f"{variable} is no setting and is not used; did you mean STOKER_{near}?"


def _naming(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the names and versions in variables of the Azure inference server."""
    prefix = environ.get("SERVICE_PATH_PREFIX", "").strip("/")
    return {
        "service_name": environ.get("SERVICE_NAME") or None,
        "service_version": environ.get("SERVICE_VERSION") or "1.0",
        "service_path_prefix": f"/{prefix}" if prefix else "",
        "tells_version": environ.get("SERVER_VERSION_LOG_RESPONSE_ENABLED", "true").lower() == "true",
    }


def _keys(environ: Mapping[str, str], imported: Sequence[ImportedSettings]) -> dict[str, str | None]:
    """Return the keys of the environment, else of the first source with keys; never a mixture."""
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
        raise InvalidSettings(f"{file}: models must be a list, {_ITEM}")
    return tuple(_model(item, _place(item, number, file), file.parent) for number, item in enumerate(listed))


def _model(item: Any, place: str, base: Path) -> ModelSettings:
    """Read one item of `models`; `place` is its position, for messages."""
    if not isinstance(item, dict):
        raise InvalidSettings(
            f"{place} must be settings of a model, such as {{path: model.onnx}}, got {item!r}"
        )
    model = model_settings(item, place)
    if (model.path is None) == (model.registered is None):
        given = "neither" if model.path is None else "both"
        raise InvalidSettings(f"{place} needs either path or registered, and has {given}")
    return dataclasses.replace(
        model,
        path=_from(base, model.path),
        model_dir=_from(base, model.model_dir),
        environment=model.environment and base / model.environment,
        sample_input=model.sample_input and base / model.sample_input,
    )


def _from(base: Path, path: Path | None) -> Path | None:
    """A path of a file, which is relative to it unless it is an address."""
    return path if path is None or read_address(path) else base / path


def _place(item: Any, number: int, file: Path) -> str:
    """Return the position of an item of `models`, from 0, with its name in the file."""
    names = [item.get(key) for key in ("name", "registered", "path")] if isinstance(item, dict) else []
    called = next((name for name in names if isinstance(name, str) and name), None)
    return f"{file}, models[{number}]" if called is None else f"{file}, models[{number}] ({called})"


def _relative_to(base: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Paths in a file are relative to the file, wherever the server is started."""
    return {name: base / value if isinstance(value, Path) else value for name, value in values.items()}


_MOST_STEPS = 100


def _read_map(value: Any) -> dict[str, str]:
    """Read the pipeline's names of a model's tensors, by the model's names."""
    if not isinstance(value, Mapping) or not value:
        raise ValueError("must be a mapping of the model's names to the pipeline's, such as image: pixels")
    if not all(isinstance(name, str) and name for pair in value.items() for name in pair):
        raise ValueError("must have names of tensors on both sides")
    return dict(value)


def _read_tensors(value: Any) -> tuple[str, ...]:
    """Names of tensors, as a list or one alone."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError("must be a list of names of tensors")
    if len(set(names)) < len(names):
        raise ValueError("must have each name once")
    return tuple(names)


def _read_steps(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError("must be a list of steps, each with its model")
    if len(value) > _MOST_STEPS:
        raise ValueError(f"must have at most {_MOST_STEPS} steps")
    return tuple(value)


_STEP_READERS: Final = {
    "model": read_text,
    "name": read_text,
    "version": number_of(int, 0, 10**18 - 1),
    "label": read_text,
    "inputs": _read_map,
    "outputs": _read_map,
}
_PIPELINE_READERS: Final = {
    "steps": _read_steps,
    "inputs": _read_tensors,
    "outputs": _read_tensors,
    "timeout_ms": number_of(int, 1, 3_600_000),
    "description": read_text,
}


def read_pipelines(content: Any, file: Path) -> tuple[Pipeline, ...]:
    """Read `pipelines` of a deployment file.

    Args:
        content: The value of `pipelines`.
    """
    if not isinstance(content, Mapping):
        raise InvalidSettings(
            f"{file}: pipelines must be a mapping of names to pipelines, each with its steps"
        )
    return tuple(_pipeline(name, written, f"{file}, pipelines: {name}") for name, written in content.items())


def _pipeline(name: Any, written: Any, place: str) -> Pipeline:
    if not isinstance(name, str) or not is_service_name(name):
        raise InvalidSettings(f"{place} cannot be the name of a pipeline: it has to be {SERVICE_RULE}")
    if not isinstance(written, Mapping) or not written.get("steps"):
        raise InvalidSettings(f"{place} must have steps, a list of models")
    settings = read_values(_PIPELINE_READERS, written, place)
    steps = [_step(step, f"{place}, steps[{number}]") for number, step in enumerate(settings["steps"])]
    pipeline = Pipeline(name, **{**settings, "steps": _named(steps, place)})
    check_names(pipeline)
    return pipeline


def _step(written: Any, place: str) -> Step:
    if not isinstance(written, Mapping) or not written.get("model"):
        raise InvalidSettings(f"{place} must have a model, for instance: model: classify")
    step = Step(**{"name": "", **read_values(_STEP_READERS, written, place)})
    if step.version is not None and step.label is not None:
        raise InvalidSettings(f"{place} has a version and a label; leave one out")
    return step


def _named(steps: Sequence[Step], place: str) -> tuple[Step, ...]:
    named = named_steps(steps)
    for name, count in Counter(step.name for step in named).items():
        if count > 1:
            raise InvalidSettings(f"{place} has {count} steps with the name {name!r}; give each its own")
        if not is_service_name(name):
            raise InvalidSettings(
                f"{place} has a step {name!r}, which cannot be a name: it has to be {SERVICE_RULE}"
            )
    return named
