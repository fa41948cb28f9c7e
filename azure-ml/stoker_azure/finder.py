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
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib.machinery import ModuleSpec
from types import MappingProxyType, ModuleType
from typing import Final

from stoker_run.azureml_modules import FINDER as UNOFFERED_MODULES
from stoker_run.azureml_modules import explain_missing_modules, find_in_package

_EXPLAINED: Final = "azureml."
_SDK: Final = "stoker_azure.sdk."
_OF_SDK: Final[Mapping[str, str]] = {
    "core": "core core.keyvault core.linked_service core.private_endpoint",
    "authentication": "core.authentication",
    "compute": (
        "core.compute core.compute.adla core.compute.aks core.compute.amlcompute core.compute.batch "
        "core.compute.compute core.compute.computeinstance core.compute.databricks core.compute.datafactory "
        "core.compute.dsvm core.compute.hdinsight core.compute.kubernetescompute core.compute.kusto "
        "core.compute.remote core.compute.synapse core.compute_target"
    ),
    "environment": "core.conda_dependencies core.container_registry core.environment",
    "run_configuration": "core.databricks core.runconfig core.script_run_config",
    "run": "core.experiment core.run core.script_run train.widgets widgets",
    "estimators": "train.dnn train.estimator train.sklearn",
    "hyperdrive": (
        "train.hyperdrive train.hyperdrive.parameter_expressions train.hyperdrive.policy "
        "train.hyperdrive.run train.hyperdrive.runconfig train.hyperdrive.sampling"
    ),
    "open_datasets": "opendatasets",
    "tensorboard": "tensorboard tensorboard.export",
    "pipelines": "pipeline.core pipeline.steps",
    "dataset": (
        "core.dataset data data.abstract_dataset data.context_managers data.datacache "
        "data.dataset_consumption_config data.dataset_factory data.dataset_type_definitions "
        "data.file_dataset data.output_dataset_config data.tabular_dataset"
    ),
    "datastore": (
        "core.datastore data.abstract_datastore data.azure_data_lake_datastore data.azure_my_sql_datastore "
        "data.azure_postgre_sql_datastore data.azure_sql_database_datastore data.azure_storage_datastore "
        "data.data_reference data.datapath data.dbfs_datastore data.hdfs_datastore data.sql_data_reference "
        "data.stored_procedure_parameter"
    ),
    "inference_config": "core.image core.image.container core.image.image core.image.unknown_image",
    "model": (
        "core.model core.webservice core.webservice.aci core.webservice.aks "
        "core.webservice.container_resource_requirements core.webservice.local "
        "core.webservice.unknown_webservice core.webservice.webservice"
    ),
    "profile": "core.profile",
    "registered_model": "core.resource_configuration",
    "workspace": "core.workspace",
}
"""The modules of the SDK, and what each is called at Azure behind `azureml.`."""
_OTHERS: Final[Mapping[str, str]] = {
    "stoker_azure.aml_request": "azureml_inference_server_http.api.aml_request",
    "stoker_azure.aml_response": "azureml_inference_server_http.api.aml_response",
    # By way of the name above: where the real server package is installed, both have to be its module.
    "azureml_inference_server_http.api.aml_request": "azureml.contrib.services.aml_request",
    "azureml_inference_server_http.api.aml_response": "azureml.contrib.services.aml_response",
    "stoker_azure.parallel_run": "azureml_user.parallel_run",
    # Imports of scripts that AutoML has written.
    "stoker_azure.automl": (
        "azureml.automl.core.shared.log_server azureml.automl.core.shared.logging_utilities "
        "azureml.telemetry azureml.train.automl"
    ),
    "stoker_run.faces.azureml.mlflow": "azureml.mlflow",
    "stoker_run.faces.azureml.logging": "azureml.logging",
    "stoker_azure.exceptions": "azureml.exceptions",
    "stoker_azure.monitoring": (
        "azureml.ai.monitoring azureml.ai.monitoring.collector azureml.ai.monitoring.context "
        "azureml.monitoring azureml.monitoring.modeldatacollector"
    ),
    "stoker_azure.inference_schema.decorators": (
        "inference_schema.schema_decorators inference_schema.schema_util"
    ),
    "stoker_azure.inference_schema.standard": (
        "inference_schema.parameter_types.abstract_parameter_type "
        "inference_schema.parameter_types.standard_py_parameter_type"
    ),
    "stoker_azure.inference_schema.numpy_arrays": "inference_schema.parameter_types.numpy_parameter_type",
    "stoker_azure.inference_schema.pandas_frames": "inference_schema.parameter_types.pandas_parameter_type",
    "stoker_azure.inference_schema.spark_frames": "inference_schema.parameter_types.spark_parameter_type",
}


def _imports() -> Iterator[tuple[str, str]]:
    for module, names in _OF_SDK.items():
        yield from ((f"{_EXPLAINED}{name}", f"{_SDK}{module}") for name in names.split())
    for module, names in _OTHERS.items():
        yield from ((name, module) for name in names.split())


IMPORTS: Final[Mapping[str, str]] = MappingProxyType(dict(_imports()))
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
