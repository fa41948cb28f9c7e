"""`azureml.core` in a run of Stoker: the classes that scripts import, and the modules that have them.

Most have no meaning in a run: using one raises an error that says what to do instead.
"""

import sys
from types import ModuleType
from typing import Any

from stoker_run.azureml_modules import import_standard_modules
from stoker_run.exceptions import NotOffered
from stoker_run.offline_run import OfflineRun
from stoker_run.run import Experiment, Run

import_standard_modules()

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

_DATA = "pass the data as an argument of the script (dataset.as_mount()), or read run.input_datasets[name]"
_SUBMITTING = "it belongs into the code that submits the run"


class _Elsewhere(type):
    """The type of a class without objects: making one and all of its methods raise `NotOffered`."""

    instead = _SUBMITTING

    def __call__(cls, *_arguments: Any, **_keywords: Any) -> Any:
        raise NotOffered(f"{cls.__name__} is not offered in a script: {cls.instead}")

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise NotOffered(f"{cls.__name__}.{name} is not offered in a script: {cls.instead}")


class Workspace(metaclass=_Elsewhere):
    """With the code that submits."""


class Dataset(metaclass=_Elsewhere):
    """Comes as a path."""

    instead = _DATA


class Datastore(metaclass=_Elsewhere):
    """Comes as a path."""

    instead = _DATA


class Environment(metaclass=_Elsewhere):
    """With the code that submits."""


class Keyvault(metaclass=_Elsewhere):
    """Secrets come in variables."""

    instead = "read secrets from environment variables"


class Model(metaclass=_Elsewhere):
    """Registered by the run."""

    instead = "use run.register_model(name, path), or pass a model's files as an input"


class RunConfiguration(metaclass=_Elsewhere):
    """With the code that submits."""


class ScriptRunConfig(metaclass=_Elsewhere):
    """With the code that submits."""


class Webservice(metaclass=_Elsewhere):
    """With the code that submits."""


def _provide(name: str, **classes: Any) -> None:
    """Let scripts import `azureml.core.NAME`: a file for each would hold one import."""
    module = ModuleType(f"{__name__}.{name}", f"`azureml.core.{name}` in a run of Stoker.")
    vars(module).update(classes, __all__=list(classes))
    globals()[name] = sys.modules[module.__name__] = module


_provide("dataset", Dataset=Dataset)
_provide("datastore", Datastore=Datastore)
_provide("environment", Environment=Environment)
_provide("model", Model=Model)
_provide("run", Run=Run, _OfflineRun=OfflineRun)
_provide("workspace", Workspace=Workspace)
