"""Modules that code for Azure Machine Learning imports, where the real ones are not installed.

The finder stands last in `sys.meta_path`: it is asked only for what nothing else provides, so real packages win, one
module at a time. Behind it stands the one that says what to do instead of a module that is not offered. Where the
stand-in is to win (`stoker_azure.entrance`), it stands first too, for one package and all that is in it. What it
provides is the module that the table names, the very object; packages that are only the way to such a module
(`azureml`, `azureml.contrib`) are empty.
"""

from __future__ import annotations

import importlib
import importlib.abc
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.machinery import ModuleSpec
from types import MappingProxyType, ModuleType
from typing import Final

from stoker_run.azureml_modules import FINDER as UNOFFERED_MODULES
from stoker_run.azureml_modules import explain_missing_modules, find_in_package

_OURS: Final = "stoker_azure."
_EXPLAINED: Final = "azureml."
_SDK: Final = "stoker_azure.sdk."
_SERVER_API: Final = "azureml_inference_server_http.api."
_SCHEMA: Final = "stoker_azure.inference_schema."


def _several(package: str, modules: str, target: str) -> dict[str, str]:
    """The same module under several names in a package."""
    return {f"{package}.{module}": target for module in modules.split()}


IMPORTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        f"{_SERVER_API}aml_request": f"{_OURS}aml_request",
        f"{_SERVER_API}aml_response": f"{_OURS}aml_response",
        # By way of the name above: where the real server package is installed, both have to be its module.
        "azureml.contrib.services.aml_request": f"{_SERVER_API}aml_request",
        "azureml.contrib.services.aml_response": f"{_SERVER_API}aml_response",
        "azureml_user.parallel_run": f"{_OURS}parallel_run",
        # Imports of scripts that AutoML has written.
        "azureml.automl.core.shared.log_server": f"{_OURS}automl",
        "azureml.automl.core.shared.logging_utilities": f"{_OURS}automl",
        "azureml.telemetry": f"{_OURS}automl",
        "azureml.train.automl": f"{_OURS}automl",
        # Imports of code for training and deployment.
        "azureml.core": f"{_SDK}core",
        "azureml.core.authentication": f"{_SDK}authentication",
        "azureml.core.compute": f"{_SDK}compute",
        **_several(
            "azureml.core.compute",
            "adla aks amlcompute batch compute computeinstance databricks datafactory dsvm hdinsight "
            "kubernetescompute kusto remote synapse",
            f"{_SDK}compute",
        ),
        # Where the exception for an unknown compute target was once to be found.
        "azureml.core.compute_target": f"{_SDK}compute",
        "azureml.core.conda_dependencies": f"{_SDK}environment",
        "azureml.core.databricks": f"{_SDK}run_configuration",
        "azureml.core.experiment": f"{_SDK}run",
        "azureml.core.run": f"{_SDK}run",
        "azureml.core.runconfig": f"{_SDK}run_configuration",
        "azureml.core.script_run": f"{_SDK}run",
        "azureml.core.script_run_config": f"{_SDK}run_configuration",
        "azureml.train.dnn": f"{_SDK}estimators",
        "azureml.train.estimator": f"{_SDK}estimators",
        "azureml.train.hyperdrive": f"{_SDK}hyperdrive",
        **_several(
            "azureml.train.hyperdrive",
            "parameter_expressions policy run runconfig sampling",
            f"{_SDK}hyperdrive",
        ),
        "azureml.train.sklearn": f"{_SDK}estimators",
        "azureml.mlflow": "stoker_run.faces.azureml.mlflow",
        "azureml.opendatasets": f"{_SDK}open_datasets",
        "azureml.tensorboard": f"{_SDK}tensorboard",
        "azureml.tensorboard.export": f"{_SDK}tensorboard",
        "azureml.train.widgets": f"{_SDK}run",
        "azureml.widgets": f"{_SDK}run",
        "azureml.logging": "stoker_run.faces.azureml.logging",
        "azureml.pipeline.core": f"{_SDK}pipelines",
        "azureml.pipeline.steps": f"{_SDK}pipelines",
        "azureml.core.dataset": f"{_SDK}dataset",
        "azureml.core.datastore": f"{_SDK}datastore",
        "azureml.data": f"{_SDK}dataset",
        **_several(
            "azureml.data",
            "abstract_datastore azure_data_lake_datastore azure_my_sql_datastore azure_postgre_sql_datastore "
            "azure_sql_database_datastore azure_storage_datastore data_reference datapath dbfs_datastore "
            "hdfs_datastore sql_data_reference stored_procedure_parameter",
            f"{_SDK}datastore",
        ),
        **_several(
            "azureml.data",
            "abstract_dataset context_managers datacache dataset_consumption_config dataset_factory "
            "dataset_type_definitions file_dataset output_dataset_config tabular_dataset",
            f"{_SDK}dataset",
        ),
        "azureml.core.container_registry": f"{_SDK}environment",
        "azureml.core.environment": f"{_SDK}environment",
        "azureml.core.image": f"{_SDK}inference_config",
        "azureml.core.image.container": f"{_SDK}inference_config",
        "azureml.core.image.image": f"{_SDK}inference_config",
        "azureml.core.image.unknown_image": f"{_SDK}inference_config",
        **_several("azureml.core", "keyvault linked_service private_endpoint", f"{_SDK}core"),
        "azureml.core.model": f"{_SDK}model",
        "azureml.core.profile": f"{_SDK}profile",
        "azureml.core.resource_configuration": f"{_SDK}registered_model",
        "azureml.core.webservice": f"{_SDK}model",
        **_several(
            "azureml.core.webservice",
            "aci aks container_resource_requirements local unknown_webservice webservice",
            f"{_SDK}model",
        ),
        "azureml.core.workspace": f"{_SDK}workspace",
        "azureml.exceptions": f"{_OURS}exceptions",
        "azureml.ai.monitoring": f"{_OURS}monitoring",
        "azureml.ai.monitoring.collector": f"{_OURS}monitoring",
        "azureml.ai.monitoring.context": f"{_OURS}monitoring",
        "azureml.monitoring": f"{_OURS}monitoring",
        "azureml.monitoring.modeldatacollector": f"{_OURS}monitoring",
        "inference_schema.schema_decorators": f"{_SCHEMA}decorators",
        "inference_schema.schema_util": f"{_SCHEMA}decorators",
        "inference_schema.parameter_types.abstract_parameter_type": f"{_SCHEMA}standard",
        "inference_schema.parameter_types.standard_py_parameter_type": f"{_SCHEMA}standard",
        "inference_schema.parameter_types.numpy_parameter_type": f"{_SCHEMA}numpy_arrays",
        "inference_schema.parameter_types.pandas_parameter_type": f"{_SCHEMA}pandas_frames",
        "inference_schema.parameter_types.spark_parameter_type": f"{_SCHEMA}spark_frames",
    }
)
"""The module that is provided under each name. One whose name leads to further entries must not be a package: Python
would load what lies in its folder a second time, under the other name."""


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self) -> None:
        self.imports = dict(IMPORTS)
        self.provided: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if fullname not in self.imports and not self._leads_further(fullname):
            return None
        return ModuleSpec(
            fullname, self, origin=self.imports.get(fullname), is_package=self._is_package(fullname)
        )

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        target = self.imports.get(name)
        if target is not None:
            # An import ends with what stands here, as for any module that replaces itself.
            sys.modules[name] = self._load(name, target)
        elif name.startswith("azureml"):
            vars(module)["__getattr__"] = partial(find_in_package, name)
        self.provided.add(name)
        self._follow(name.partition(".")[0])

    def _load(self, name: str, target: str) -> ModuleType:
        module = importlib.import_module(target)
        if target.startswith(_SDK):
            importlib.import_module(f"{_SDK}unoffered").explain_missing_names(module)
        if self._is_package(name):
            if getattr(module, "__path__", None):
                raise ImportError(f"{target} cannot be provided as {name}: it is a package", name=name)
            module.__path__ = []
        return module

    def _follow(self, top: str) -> None:
        """Provide other loaded modules under Azure's names too: importing one real module would load them."""
        for name, target in list(self.imports.items()):
            if name.startswith(f"{top}.") and target in sys.modules and name not in sys.modules:
                importlib.import_module(name)

    def _is_package(self, name: str) -> bool:
        """Whether modules below a name are provided, or explained."""
        return name.startswith(_EXPLAINED) or self._leads_further(name)

    def _leads_further(self, name: str) -> bool:
        return any(other.startswith(f"{name}.") for other in self.imports)


class _First(importlib.abc.MetaPathFinder):
    """Stands first in `sys.meta_path`, and asks the finder for modules of certain packages before all others."""

    def __init__(self) -> None:
        self.packages: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in self.packages:
            return None
        return _FINDER.find_spec(fullname, path, target)


_FINDER: Final = _Finder()
_FIRST: Final = _First()


def install(extra: Mapping[str, str] = MappingProxyType({}), before: str | None = None) -> None:
    """Provide the modules of `IMPORTS`; a second call changes nothing.

    Args:
        extra: Further names, and the modules that are provided under them.
        before: A package, such as `azureml`, whose modules are provided even where it is installed.
    """
    _FINDER.imports.update(extra)
    if _FINDER not in sys.meta_path:
        sys.meta_path.append(_FINDER)
    explain_missing_modules()
    if before is not None:
        _FIRST.packages.add(before)
        if _FIRST not in sys.meta_path:
            sys.meta_path.insert(0, _FIRST)


def is_provided(name: str) -> bool:
    """Whether the module that was imported under this name is one that was provided."""
    return name in _FINDER.provided


def uninstall() -> None:
    """Stop providing modules, and remove the provided names from `sys.modules`."""
    for one in (_FINDER, _FIRST, UNOFFERED_MODULES):
        if one in sys.meta_path:
            sys.meta_path.remove(one)
    _FIRST.packages.clear()
    for name in _FINDER.provided:
        sys.modules.pop(name, None)
        parent_name, _, child = name.rpartition(".")
        # A real package outlives the child that it was given.
        if parent_name in sys.modules and parent_name not in _FINDER.provided:
            vars(sys.modules[parent_name]).pop(child, None)
    _FINDER.provided.clear()
    _FINDER.imports = dict(IMPORTS)
