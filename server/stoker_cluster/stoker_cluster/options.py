"""From options and files to a plan: the command line wins over the deployment file, that over one for Azure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

from msgspec import Struct

from stoker.errors import InvalidSettings
from stoker.models.layouts import likely_name
from stoker.models.remote_stores import shown_address
from stoker.settings.loading import read_pipelines
from stoker.settings.model import model_settings
from stoker.settings.names import read_address
from stoker.settings.readers import read_settings, settings_of
from stoker.settings.server import ServerSettings
from stoker.settings.yaml_files import read_yaml
from stoker.system.extensions import require_extension
from stoker_cluster.plan import ClusterPlan
from stoker_cluster.readers import MODELS_FOLDER, read_object_name

_SECTION: Final = "kubernetes"
"""The key of a deployment file with the plan; servers ignore it."""

_PATHS: Final = ("path", "model_dir", "environment", "sample_input")
_OF_THE_POD: Final = ("host", "port", "keys_dir")
_FILES_OF_THE_SERVER: Final = ("tls_cert", "tls_key", "tls_client_ca", "grpc_tls_cert", "grpc_tls_key")


def settings_from(kind: type, arguments: Mapping[str, Any], file: Path | None) -> dict[str, Any]:
    """Return the settings of a class that were given, by a YAML file and by options, which win."""
    content = (
        {} if file is None else read_yaml(file, "settings file", "settings by name, for instance: port: 8000")
    )
    given = {name: arguments[name] for name in settings_of(kind) if name in arguments}
    return {**read_settings(kind, content, str(file)), **read_settings(kind, given, "command line")}


class _Files(Struct, frozen=True):
    """The parts of a deployment file: the plan, server settings, and models as written."""

    cluster: dict[str, Any]
    server: dict[str, Any]
    models: tuple[dict[str, Any], ...]
    notes: tuple[str, ...] = ()


def plan_from(
    arguments: Mapping[str, Any], paths: Sequence[str], file: Path | None, azure: Path | None
) -> ClusterPlan:
    """Merge and check.

    Args:
        arguments: Parsed options; names that are no fields of a plan are ignored.
        paths: Models that the command line names; they replace those of the file.
        file: A deployment file, with the plan below `kubernetes`.
        azure: A `deploymentconfig.json`.

    Raises:
        InvalidSettings: A value is bad or unknown, or two contradict each other; or `check_models` is set and a model
            of the image is not on this machine.
    """
    written = _read(file) if file is not None else _Files({}, {}, ())
    given = {name: arguments[name] for name in settings_of(ClusterPlan) if name in arguments}
    fields = {**written.cluster, **read_settings(ClusterPlan, given, "command line")}
    models = tuple({"path": path} for path in paths) or written.models
    fields["server"] = written.server
    fields["notes"] = written.notes
    if "name" not in fields:
        fields["name"] = _name(models)
    if azure is not None:
        fields = require_extension("azure").plan_fields(azure, fields)
    fields["serves"] = tuple(_in_pod(model) for model in _named(models, str(fields["name"])))
    plan = ClusterPlan(**fields)
    _check_fetches(plan)
    base = file.parent if file is not None and not paths else Path()
    missing = _missing_files(plan, base)
    if missing and arguments.get("check_models"):
        raise InvalidSettings("; ".join(missing))
    return dataclasses.replace(plan, notes=(*plan.notes, *missing))


def _check_fetches(plan: ClusterPlan) -> None:
    """Raise InvalidSettings if pods are to fetch models that they cannot reach."""
    fetched = [model["path"] for model in plan.serves if read_address(model["path"]) is not None]
    if fetched and plan.network_policy and not plan.allow_egress:
        raise InvalidSettings(
            f"the pods fetch {shown_address(fetched[0])}, and their NetworkPolicy lets them reach nothing: "
            "give --allow-egress, and their account the right to read it"
        )


def _missing_files(plan: ClusterPlan, base: Path) -> tuple[str, ...]:
    """Name the models of the image that are not below `base`, from which an image is usually built."""
    if plan.models != "image":
        return ()
    here = [model["path"] for model in plan.serves if read_address(model["path"]) is None]
    paths = [PurePosixPath(path).relative_to(MODELS_FOLDER) for path in here]
    return tuple(
        f"{path} is not in {base.absolute()}: the pods fail to start unless their image has {MODELS_FOLDER}/{path}"
        for path in paths
        if not (base / path).exists()
    )


def listed_models(paths: Sequence[str], file: Path | None) -> tuple[Mapping[str, Any], ...]:
    """Return the models of the command line, or of the deployment file as written."""
    models = tuple({"path": path} for path in paths) or (() if file is None else _read(file).models)
    if not models:
        raise InvalidSettings("nothing is served; name a model's path, or list models in the deployment file")
    return models


def _read(file: Path) -> _Files:
    content = read_yaml(file, "deployment file", "settings by name, for instance: port: 8080")
    section, listed = content.pop(_SECTION, None) or {}, content.pop("models", [])
    pipelines = content.pop("pipelines", {})
    # The pod reads them as they are written.
    read_pipelines(pipelines, file)
    if not isinstance(section, dict):
        raise InvalidSettings(f"{file}: {_SECTION} must hold settings by name, for instance: replicas: 2")
    cluster = read_settings(ClusterPlan, section, f"{file}, {_SECTION}")
    server = read_settings(ServerSettings, content, str(file), ["models", "pipelines", _SECTION])
    for name in _FILES_OF_THE_SERVER:
        if name in server:
            raise InvalidSettings(
                f"{file}: {name} names a file that the pod has not; leave it out, and let a gateway speak TLS"
            )
    if not isinstance(listed, list) or not all(isinstance(model, dict) for model in listed):
        raise InvalidSettings(f"{file}: models must be a list, each item with a path")
    for number, model in enumerate(listed):
        _check(model, f"{file}, models[{number}]")
    notes = tuple(
        f"{name} of {file} is not used: the pod has its own" for name in _OF_THE_POD if name in server
    )
    return _Files(
        cluster,
        {name: _plain(value) for name, value in server.items() if name not in _OF_THE_POD}
        | ({"pipelines": pipelines} if pipelines else {}),
        tuple(listed),
        notes,
    )


def _check(model: Mapping[str, Any], place: str) -> None:
    model_settings(dict(model), place)
    if "path" not in model:
        raise InvalidSettings(
            f"{place} needs a path: the workspace with registered models is on this machine, not in the pod"
        )
    if "uses" in model:
        raise InvalidSettings(
            f"{place}: uses names registered models, which are not in the pod; lay them into a folder, as model_dir"
        )


def _in_pod(model: Mapping[str, Any]) -> dict[str, Any]:
    """The model with its paths in the pod: below the folder of models. Nothing is installed there."""
    kept = {name: value for name, value in model.items() if name != "environment_managed"}
    return {name: _path(value) if name in _PATHS else value for name, value in kept.items()}


def _path(written: Any) -> str:
    if (address := read_address(str(written))) is not None:
        return address
    path = PurePosixPath(str(written))
    inside = PurePosixPath(MODELS_FOLDER) / path
    if ".." in path.parts or not inside.is_relative_to(MODELS_FOLDER):
        raise InvalidSettings(
            f"{written} cannot be in the pod, whose models are below {MODELS_FOLDER}; name it relative to the folder "
            f"that becomes that, or as {MODELS_FOLDER}/..."
        )
    return str(inside)


def _name(models: Sequence[Mapping[str, Any]]) -> str:
    """Return the default name of the service: that of its only model."""
    if len(models) != 1:
        return ""
    named = str(models[0].get("name") or _name_of(str(models[0]["path"]))).lower()
    try:
        return read_object_name(named)
    except ValueError:
        raise InvalidSettings(
            f"{named} cannot be the name of a service in a cluster; choose one of small letters, digits and '-' "
            "with --name"
        ) from None


def _named(models: Sequence[Mapping[str, Any]], service: str) -> tuple[Mapping[str, Any], ...]:
    """The models with their names: the only one is called as the service."""
    if len(models) == 1:
        return ({"name": service, **models[0]},)
    return tuple({"name": _name_of(str(model["path"])), **model} for model in models)


def _name_of(written: str) -> str:
    """Return the name that `stoker serve` gives to a model at this path."""
    # The current folder is what becomes that of the models, and so it is what a file in it may be called after.
    return likely_name(Path(written))


def _plain(value: Any) -> Any:
    """A value as YAML has it."""
    return list(value) if isinstance(value, tuple) else value
