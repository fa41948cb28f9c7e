"""`azureml.core` in a run of Stoker."""

from stoker_run.around import Experiment
from stoker_run.elsewhere import (
    Dataset,
    Datastore,
    Environment,
    Keyvault,
    Model,
    RunConfiguration,
    ScriptRunConfig,
    Webservice,
    Workspace,
)
from stoker_run.run import Run

VERSION = __version__ = "1.61.0"

__all__ = [
    "VERSION",
    "Dataset",
    "Datastore",
    "Environment",
    "Experiment",
    "Keyvault",
    "Model",
    "Run",
    "RunConfiguration",
    "ScriptRunConfig",
    "Webservice",
    "Workspace",
]
