"""What code imports from `azureml.core` itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from stoker_azure.sdk import deferred
from stoker_azure.sdk.compute import ComputeTarget
from stoker_azure.sdk.environments.container_registry import ContainerRegistry
from stoker_azure.sdk.environments.environment import Environment
from stoker_azure.sdk.image import Image
from stoker_azure.sdk.models.model import Model
from stoker_azure.sdk.services.webservice import Webservice
from stoker_azure.sdk.unoffered import unoffered_names
from stoker_azure.sdk.workspace import Workspace

if TYPE_CHECKING:
    from stoker_azure.sdk.data.dataset import Dataset
    from stoker_azure.sdk.data.datastore import Datastore
    from stoker_azure.sdk.training.experiment import Experiment
    from stoker_azure.sdk.training.run import Run, ScriptRun
    from stoker_azure.sdk.training.run_configuration import RunConfiguration, ScriptRunConfig

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
]

VERSION = "1.61.0"
"""The version of Azure's SDK whose names and arguments are offered."""

__version__ = VERSION

_OF_TRAINING: Final = frozenset({"Keyvault", "LinkedService"})
_LOADED_WHEN_USED: Final = {
    "Dataset": "dataset",
    "Datastore": "datastore",
    "Experiment": "experiment",
    "Run": "run",
    "RunConfiguration": "run_configuration",
    "ScriptRun": "run",
    "ScriptRunConfig": "run_configuration",
}
_unoffered: Final = unoffered_names("azureml.core", _OF_TRAINING, __name__)


def __getattr__(name: str) -> Any:
    """What trains: entry scripts import this module too, and need none of it."""
    if name in _LOADED_WHEN_USED:
        return getattr(getattr(deferred, _LOADED_WHEN_USED[name]), name)
    return _unoffered(name)
