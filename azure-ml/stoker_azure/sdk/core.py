"""The names that `azureml.core` itself exports."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from stoker_azure.sdk.compute import ComputeTarget
from stoker_azure.sdk.environment import ContainerRegistry, Environment
from stoker_azure.sdk.inference_config import Image
from stoker_azure.sdk.model import Model, Webservice
from stoker_azure.sdk.workspace import Workspace
from stoker_run.azureml_modules import import_standard_modules

if TYPE_CHECKING:
    from stoker_azure.sdk.dataset import Dataset
    from stoker_azure.sdk.datastore import Datastore
    from stoker_azure.sdk.run import Experiment, Run, ScriptRun, get_run
    from stoker_azure.sdk.run_configuration import RunConfiguration, ScriptRunConfig

import_standard_modules()

__all__ = [
    "VERSION",
    "ComputeTarget",
    "ContainerRegistry",
    "Dataset",
    "Datastore",
    "Environment",
    "Experiment",
    "Image",
    "Model",
    "Run",
    "RunConfiguration",
    "ScriptRun",
    "ScriptRunConfig",
    "Webservice",
    "Workspace",
    "get_run",
]

VERSION = "1.61.0"
"""The version of Azure's SDK whose names and arguments are offered."""

__version__ = VERSION

_IMPORTED_WHEN_USED: Final = {
    "Dataset": "dataset",
    "Datastore": "datastore",
    "Experiment": "run",
    "Run": "run",
    "RunConfiguration": "run_configuration",
    "ScriptRun": "run",
    "ScriptRunConfig": "run_configuration",
    "get_run": "run",
}


def __getattr__(name: str) -> Any:
    """Import what trains: entry scripts import this module too, and need none of it."""
    if name in _IMPORTED_WHEN_USED:
        return getattr(import_module(f"stoker_azure.sdk.{_IMPORTED_WHEN_USED[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
