"""The one place at which imports of this package are put off: each module here is loaded when it is first used.

Two kinds of modules are here. Azure's classes know each other: a workspace lists its models, a model is deployed as a
service, and imports at the head of their modules would be a circle. And what only deploying, registering and scoring
need takes longer to import than all the rest, which entry scripts import too.

Others import this module and name the one that they mean, `deferred.model.Model`, in annotations as well.
"""

from __future__ import annotations

import importlib
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from stoker.keys import credentials, keyring
    from stoker.models import repository
    from stoker_azure.sdk import compute
    from stoker_azure.sdk.data import dataset, datastore
    from stoker_azure.sdk.environments import environment
    from stoker_azure.sdk.models import model, profile, registering
    from stoker_azure.sdk.services import (
        backends,
        calling,
        deploy_configuration,
        deploying,
        endpoint_deploying,
        plan,
        process,
        webservice,
    )
    from stoker_azure.sdk.training import experiment, hyperdrive_run, run, run_configuration
    from stoker_cluster import access, applying
    from stoker_runs.launch import registration
    from stoker_runs.targets import attaching, definitions, registry

__all__ = [
    "access",
    "applying",
    "attaching",
    "backends",
    "calling",
    "compute",
    "credentials",
    "dataset",
    "datastore",
    "definitions",
    "deploy_configuration",
    "deploying",
    "endpoint_deploying",
    "environment",
    "experiment",
    "hyperdrive_run",
    "keyring",
    "model",
    "plan",
    "process",
    "profile",
    "registering",
    "registration",
    "registry",
    "repository",
    "run",
    "run_configuration",
    "webservice",
]

_PACKAGES: Final = MappingProxyType(
    {
        "stoker_azure.sdk": ["compute"],
        "stoker_azure.sdk.data": ["dataset", "datastore"],
        "stoker_azure.sdk.environments": ["environment"],
        "stoker_azure.sdk.models": ["model", "profile", "registering"],
        "stoker_azure.sdk.services": [
            *("backends", "calling", "deploy_configuration", "deploying", "endpoint_deploying"),
            *("plan", "process", "webservice"),
        ],
        "stoker_azure.sdk.training": ["experiment", "hyperdrive_run", "run", "run_configuration"],
        "stoker_cluster": ["access", "applying"],
        "stoker.keys": ["credentials", "keyring"],
        "stoker_runs.launch": ["registration"],
        "stoker.models": ["repository"],
        "stoker_runs.targets": ["attaching", "definitions", "registry"],
    }
)
_MODULES: Final = {name: f"{package}.{name}" for package, names in _PACKAGES.items() for name in names}


def __getattr__(name: str) -> ModuleType:
    """Load the module of this name."""
    if name not in _MODULES:
        raise AttributeError(name, name=name)
    return importlib.import_module(_MODULES[name])
