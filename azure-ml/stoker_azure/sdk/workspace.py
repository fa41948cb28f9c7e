"""`azureml.core.workspace`: the Stoker workspace of this directory in the place of one on Azure."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stoker.settings.workspace import AZURE_FILE, AZURE_FOLDER, azure_files, read_azure_file
from stoker_azure.exceptions import UserErrorException
from stoker_azure.sdk.base import BaseWorkspace
from stoker_azure.sdk.compute import ComputeTarget
from stoker_azure.sdk.environment import Environment
from stoker_azure.sdk.model import Model, Webservice
from stoker_azure.sdk.unoffered import with_unoffered_names

if TYPE_CHECKING:
    from stoker_azure.sdk.dataset import FileDataset
    from stoker_azure.sdk.datastore import Datastore
    from stoker_azure.sdk.run import Experiment, Run

__all__ = ["Workspace"]

_NAMES: Final = ("workspace_name", "subscription_id", "resource_group")


@with_unoffered_names
class Workspace(BaseWorkspace):
    """The local workspace: whatever its names, it is the one that `stoker` commands use here.

    That is the folder in the variable STOKER_WORKSPACE, else the nearest `.stoker/` upward, else a new one beside the
    nearest `config.json` upward, else here.
    """

    DEFAULT_CPU_CLUSTER_NAME = "cpu-cluster"
    DEFAULT_GPU_CLUSTER_NAME = "gpu-cluster"

    @staticmethod
    def from_config(
        path: str | None = None, auth: Any = None, _logger: Any = None, _file_name: str | None = None
    ) -> Workspace:
        """The local workspace, with the names of a `config.json` where there is one.

        Args:
            path: The file, or a folder. In a folder, by default the current one, and upward of it, `.azureml/`
                is looked into first. Of a file elsewhere, the workspace lies beside it.
            auth: Not used: nobody signs in.
            _file_name: Another name than `config.json`.

        Raises:
            UserErrorException: `path` was given, and there is no such file, or it names no workspace.
            WorkspaceException: The local workspace cannot be used.
        """
        del _logger
        start = Path(os.path.normpath(Path(path or ".").absolute()))
        found = [(start.parent, start)] if start.is_file() else azure_files(start, _file_name or AZURE_FILE)
        for folder, file in found:
            names = _names(file)
            if names is not None:
                return Workspace(auth=auth, project=_project(folder), **names)
            if path is not None:
                raise UserErrorException(f"{file} names no workspace: it must be JSON with a workspace_name")
        if path is not None:
            raise UserErrorException(
                f"there is no {_file_name or AZURE_FILE} in {start} or in a folder above it"
            )
        return Workspace(auth=auth)

    @staticmethod
    def create(
        name: str,
        auth: Any = None,
        subscription_id: str | None = None,
        resource_group: str | None = None,
        location: str | None = None,
        tags: dict[str, str] | None = None,
        **resources: Any,
    ) -> Workspace:
        """Create the local workspace, or find it.

        Args:
            resources: What else Azure would create for it has no meaning here.

        Raises:
            WorkspaceException: The local workspace cannot be used.
        """
        del resources
        workspace = Workspace.get(name, auth, subscription_id, resource_group, location)
        workspace.tags = dict(tags or {})
        workspace.local.create()
        return workspace

    @staticmethod
    def get(
        name: str,
        auth: Any = None,
        subscription_id: str | None = None,
        resource_group: str | None = None,
        location: str | None = None,
        cloud: str | None = None,
        id: str | None = None,  # noqa: A002  # Azure's name
    ) -> Workspace:
        """The local workspace under this name.

        Args:
            cloud: Not used: nobody signs in.
            id: The same.

        Raises:
            WorkspaceException: The local workspace cannot be used.
        """
        del cloud, id
        return Workspace(subscription_id, resource_group, name, auth, location=location)

    def write_config(self, path: str | None = None, file_name: str | None = None) -> None:
        """Write the names to `.azureml/config.json` in the folder `path`.

        There `from_config` finds them, also where `path` is `.azureml` itself.
        """
        folder = Path(path or ".") / AZURE_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        names = {
            "subscription_id": self.subscription_id,
            "resource_group": self.resource_group,
            "workspace_name": self.name,
        }
        (folder / (file_name or AZURE_FILE)).write_text(json.dumps(names, indent=4) + "\n", encoding="utf-8")

    def get_details(self) -> dict[str, Any]:
        """Names and place of the workspace."""
        return {
            "name": self.name,
            "subscriptionId": self.subscription_id,
            "resourceGroup": self.resource_group,
            "location": self.location,
            "tags": self.tags,
            "local": str(self.local.root),
        }

    @property
    def models(self) -> dict[str, Model]:
        """The latest version of each registered model, by name."""
        return {model.name: model for model in Model.list(self, latest=True)}

    @property
    def webservices(self) -> dict[str, Webservice]:
        """The services that were deployed, by name."""
        return {service.name: service for service in Webservice.list(self)}

    @property
    def compute_targets(self) -> dict[str, ComputeTarget]:
        """The compute targets, by name."""
        return {target.name: target for target in ComputeTarget.list(self)}

    @property
    def environments(self) -> dict[str, Environment]:
        """The latest version of each registered environment, by name."""
        return Environment.list(self)

    # Entry scripts import this module too, and need no data and no runs: those are imported when they are used.

    @property
    def datastores(self) -> dict[str, Datastore]:
        """The data stores, by name."""
        from stoker_azure.sdk.datastore import Datastore

        return {name: Datastore(self, name) for name in Datastore.names(self)}

    def get_default_datastore(self) -> Datastore:
        """The default data store: a folder of the workspace, if no other was set."""
        from stoker_azure.sdk.datastore import Datastore

        return Datastore(self)

    def set_default_datastore(self, name: str) -> None:
        """Make a data store the default."""
        from stoker_azure.sdk.datastore import Datastore

        Datastore(self, name).set_as_default()

    @property
    def datasets(self) -> dict[str, FileDataset]:
        """The latest version of each data set, by name."""
        from stoker_azure.sdk.dataset import Dataset

        return Dataset.get_all(self)

    @property
    def experiments(self) -> dict[str, Experiment]:
        """The experiments that have runs, by name."""
        from stoker_azure.sdk.run import Experiment

        return {experiment.name: experiment for experiment in Experiment.list(self)}

    def get_run(self, run_id: str) -> Run:
        """A run by its id."""
        from stoker_azure.sdk.run import Run

        return Run.get(self, run_id)


def _project(folder: Path) -> Path | None:
    """The directory whose workspace is that of a file in this folder; None for the current one's."""
    folder = folder.parent if folder.name in (AZURE_FOLDER, "aml_config") else folder
    return None if folder.is_relative_to(Path.cwd()) else folder


def _names(file: Path) -> dict[str, Any] | None:
    """Return the Azure workspace of a file; None if it is a `config.json` of another kind."""
    content = read_azure_file(file)
    if content is None:
        return None
    return {name: str(content[name]) for name in _NAMES if content.get(name)}
