"""Finding the model of a Predictor, with the settings that it would have in a server, and loading it."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import msgspec

from stoker.deployment import Deployment, Device
from stoker.device.loaded_model import LoadedModel
from stoker.device.loading import load
from stoker.errors import EnvironmentUnusable, LoadFailed, OperatorError, UnknownModel
from stoker.gpu.confinement import enter_device
from stoker.gpu.selection import cpu_device
from stoker.models.available_models import AvailableModel, find_available_models
from stoker.models.deployments import deploy, environment_of
from stoker.models.fetching import fetch_models
from stoker.scripts.script_process import enter_script_folder
from stoker.settings.loading import load_settings
from stoker.settings.model import ModelSettings, model_settings
from stoker.settings.server import ImportedSettings, ServerSettings
from stoker.settings.workspace import Workspace

logger = logging.getLogger(__name__)

_SOURCE: Final = "Predictor"
_DEFAULT: Final = "default"
_MODEL_FILES: Final = (".onnx", ".py", ".pb")
_PATIENT: Final = ImportedSettings(_SOURCE, server={"timeout_ms": 3_600_000})
"""No caller waits for an answer, so a script may take an hour for a batch."""

_entered: list[Path] = []
_entering: Final = threading.Lock()


def find_model(
    model: str | Path,
    workspace: str | Path | None,
    config: str | Path | None,
    settings: Mapping[str, Any],
    leases: ExitStack,
) -> Deployment:
    """Find a model as a server would serve it.

    Args:
        model: A path, a registered model `NAME[:VERSION]`, or the name of a model in `config`.
    """
    place = Workspace.find(None if workspace is None else Path(workspace))
    given = model_settings(settings, _SOURCE)
    if config is None:
        if str(model) != str(Path(model).name) or Path(model).exists():
            named = ModelSettings(path=Path(model))
        else:
            named = ModelSettings(registered=str(model))
        of_server = load_settings({}, os.environ, None, (given.over(named),), [_PATIENT])
        entry = _on_disk(model, _fetched(of_server, place, leases), place)
    else:
        of_server = load_settings({}, os.environ, Path(config), (), [_PATIENT])
        entry = _in_config(str(model), given, _fetched(of_server, place, leases), place, Path(config))
    deployed = deploy(entry, _version(entry), 0, 0, of_server, place, leases)
    _check_packages(deployed, place)
    return deployed


def _fetched(settings: ServerSettings, workspace: Workspace, leases: ExitStack) -> ServerSettings:
    """The settings with the models of addresses on this machine, where they stay until the leases end."""
    return fetch_models(settings, workspace, logger.info, leases)[0]


def _on_disk(model: str | Path, settings: ServerSettings, workspace: Workspace) -> AvailableModel:
    try:
        (entry,) = find_available_models(settings, workspace).values()
    except UnknownModel as error:
        if Path(model).suffix.lower() in _MODEL_FILES:
            # A path, more probably than a name.
            raise UnknownModel(f"there is no file {model}, and {error}") from None
        raise
    return entry


def _in_config(
    name: str, given: ModelSettings, settings: ServerSettings, workspace: Workspace, config: Path
) -> AvailableModel:
    available = find_available_models(settings, workspace)
    if name not in available:
        raise UnknownModel(f"{config} has no model {name!r}; it has: {', '.join(available)}")
    return msgspec.structs.replace(available[name], settings=given.over(available[name].settings))


def _version(entry: AvailableModel) -> int:
    """The version that a request means which names none."""
    labelled = entry.labels().get(_DEFAULT)
    return labelled if labelled in entry.chosen_versions() else max(entry.policy.choose(entry.all_versions))


def _check_packages(deployed: Deployment, workspace: Workspace) -> None:
    """Raise an error if the model needs another Python; warn of packages that this Python lacks."""
    environment = environment_of(deployed)
    if environment is None:
        return
    if environment.managed_by_system:
        built = environment.found(workspace, deployed.framework)
        if built.built is None or Path(built.interpreter) != Path(sys.executable):
            raise EnvironmentUnusable(
                f"{deployed.name} has an environment of its own, and this is {sys.executable}; install its "
                "packages into this Python, and leave environment_managed out"
            )
    elif environment.findings():
        logger.warning("%s: %s", deployed.name, "; ".join(environment.lines()))


def enter_script(deployment: Deployment) -> None:
    """Make this process that of an entry script."""
    with _entering:
        if _entered and _entered[0] != deployment.path:
            raise LoadFailed(
                f"this process runs the entry script {_entered[0]} already, whose folder and variables it has; load "
                f"{deployment.name} in a process of its own"
            )
        enter_script_folder(deployment)
        _entered[:] = [deployment.path]


def enter_model_device(deployment: Deployment, setting: str) -> Device:
    """Find the device of a model, and confine the process to it unless it is the CPU."""
    if setting == "cpu":
        device, reason = cpu_device(), "as asked for"
    else:
        device, reason = enter_device(setting, {deployment.framework})
    logger.info("%s: on %s, %s", deployment.name, device, reason)
    return device


def load_model(deployment: Deployment, device: Device) -> LoadedModel:
    """Load a model on the calling thread."""
    try:
        return load(deployment, device)
    except OperatorError:
        raise
    except Exception as error:
        raise LoadFailed(f"{deployment.name} cannot be loaded: {error!r}") from error
