"""`azureml.core.compute`: compute targets, records in the workspace, for which this machine or a cluster stands."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

from stoker.azure.exceptions import ComputeTargetException
from stoker.azure_sdk import deferred
from stoker.azure_sdk.bindings import binding_of
from stoker.azure_sdk.failures import none_in_workspace, raised_as
from stoker.azure_sdk.unoffered import UnofferedByComputeTarget, unoffered_names
from stoker.azure_sdk.workspace import Workspace
from stoker.names import checked_name, is_name
from stoker.system.durable import private_folder, replace_file

__all__ = ["AksCompute", "AksConfiguration", "ComputeTarget", "ComputeTargetException"]

_TYPE: Final = "AKS"
_OF_TRAINING: Final = frozenset(
    {
        *(
            "AdlaCompute",
            "AmlCompute",
            "BatchCompute",
            "ComputeInstance",
            "DatabricksCompute",
            "DataFactoryCompute",
        ),
        *("DsvmCompute", "HDInsightCompute", "KubernetesCompute", "RemoteCompute", "SynapseCompute"),
    }
)

__getattr__ = unoffered_names("azureml.core.compute", _OF_TRAINING, __name__)


@dataclass(slots=True)
class AksConfiguration:
    """How a cluster would be made, or found, on Azure; kept with the target.

    Attributes:
        values: The arguments that were given.
    """

    values: dict[str, Any] = field(default_factory=dict)

    def enable_ssl(self, **ssl: Any) -> None:
        """Keep how the cluster would speak TLS; Stoker speaks plain HTTP."""
        self.values["ssl"] = sorted(ssl)

    def validate_configuration(self) -> None:
        """Accept it: there is no cluster that could not be made."""


class ComputeTarget(UnofferedByComputeTarget):
    """A compute target of the workspace.

    Attributes:
        workspace: Its workspace.
        name: Its name.
        type: `AKS`.
        provisioning_state: `Succeeded`.
        provisioning_errors: None.
        created_on: When it was created, RFC 3339 in UTC.
        vm_size: The machines that were asked for.
        agent_count: How many were asked for.
        location: The region that was asked for.
    """

    def __new__(cls, workspace: Workspace, name: str) -> Self:
        """Every target is an `AksCompute`, also one that is asked for as `ComputeTarget`."""
        del workspace, name
        found: Any = super().__new__(AksCompute)
        return found  # type: ignore[no-any-return]  # a subclass

    def __init__(self, workspace: Workspace, name: str) -> None:
        """Find a target.

        Raises:
            ComputeTargetException: The workspace has none with this name.
        """
        file = _file(workspace, name)
        try:
            record = json.loads(file.read_bytes())
        except FileNotFoundError:
            raise ComputeTargetException(
                none_in_workspace("ComputeTargetNotFound", "compute target", name, workspace.compute_targets)
            ) from None
        self.workspace = workspace
        self.name = name
        self.type = _TYPE
        self.provisioning_state = "Succeeded"
        self.provisioning_errors = None
        self.created_on: str = record["created_on"]
        self._configuration: dict[str, Any] = record["configuration"]
        self.vm_size: str | None = self._configuration.get("vm_size")
        self.agent_count: int | None = self._configuration.get("agent_count")
        self.location: str = self._configuration.get("location") or workspace.location

    def __repr__(self) -> str:
        return f"{type(self).__name__}(workspace={self.workspace!r}, name={self.name!r})"

    @staticmethod
    def create(
        workspace: Workspace, name: str, provisioning_configuration: AksConfiguration
    ) -> ComputeTarget:
        """Keep a compute target in the workspace, or find it there; no machine is made, and a line says so.

        For one that is bound to a cluster the line says which machines that has of the size that is asked for.

        Raises:
            ComputeTargetException: It cannot have this name.
        """
        with raised_as(ComputeTargetException):
            checked_name(name, "compute target")
        file = _file(workspace, name)
        if not file.exists():
            record: dict[str, Any] = {
                "name": name,
                "type": _TYPE,
                "created_on": datetime.now(UTC).isoformat(timespec="seconds"),
                "configuration": provisioning_configuration.values,
            }
            with raised_as(ComputeTargetException):
                workspace.local.create()
            private_folder(file.parent)
            replace_file(file, json.dumps(record, indent=2).encode() + b"\n")
            with raised_as(ComputeTargetException):
                for line in _said(workspace, name, record["configuration"]):
                    print(line)
        return ComputeTarget(workspace, name)

    @staticmethod
    def attach(workspace: Workspace, name: str, attach_configuration: AksConfiguration) -> ComputeTarget:
        """The same as `create`.

        Raises:
            ComputeTargetException: It cannot have this name.
        """
        return ComputeTarget.create(workspace, name, attach_configuration)

    @staticmethod
    def list(workspace: Workspace) -> Sequence[ComputeTarget]:
        """All compute targets of the workspace, by name."""
        names = sorted(file.stem for file in _folder(workspace).glob("*.json"))
        return [ComputeTarget(workspace, name) for name in names if is_name(name)]

    def wait_for_completion(self, show_output: bool = False, is_delete_operation: bool = False) -> None:
        """Say that it is there."""
        del is_delete_operation
        if show_output:
            print(self.provisioning_state)
        print(f'Provisioning operation finished, operation "{self.provisioning_state}"')

    def refresh_state(self) -> None:
        """Nothing changes."""

    def get_status(self) -> str:
        """The state of its provisioning."""
        return self.provisioning_state

    def delete(self) -> None:
        """Forget it. Services that were deployed to it go on."""
        _file(self.workspace, self.name).unlink(missing_ok=True)

    def detach(self) -> None:
        """The same as `delete`."""
        self.delete()

    def serialize(self) -> dict[str, Any]:
        """The target as JSON."""
        return {
            "name": self.name,
            "computeType": self.type,
            "provisioningState": self.provisioning_state,
            "createdOn": self.created_on,
            "location": self.location,
            "properties": dict(self._configuration),
        }


class AksCompute(ComputeTarget):
    """A cluster of Azure Kubernetes Service, for which this machine stands, or the cluster that it is bound to."""

    class ClusterPurpose:
        """What a cluster is for."""

        FAST_PROD = "FastProd"
        DEV_TEST = "DevTest"

    @staticmethod
    def provisioning_configuration(
        agent_count: int | None = None,
        vm_size: str | None = None,
        ssl_cname: str | None = None,
        ssl_cert_pem_file: str | None = None,
        ssl_key_pem_file: str | None = None,
        location: str | None = None,
        vnet_resourcegroup_name: str | None = None,
        vnet_name: str | None = None,
        subnet_name: str | None = None,
        service_cidr: str | None = None,
        dns_service_ip: str | None = None,
        docker_bridge_cidr: str | None = None,
        cluster_purpose: str | None = None,
        load_balancer_type: str | None = None,
        load_balancer_subnet: str | None = None,
    ) -> AksConfiguration:
        """What `ComputeTarget.create` takes; the arguments are those of Azure."""
        return AksConfiguration(_given(locals()))

    @staticmethod
    def attach_configuration(
        resource_group: str | None = None,
        cluster_name: str | None = None,
        resource_id: str | None = None,
        cluster_purpose: str | None = None,
        load_balancer_type: str | None = None,
        load_balancer_subnet: str | None = None,
    ) -> AksConfiguration:
        """What `ComputeTarget.attach` takes; the arguments are those of Azure."""
        return AksConfiguration(_given(locals()))


def _given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}


def _said(workspace: Workspace, name: str, configuration: Mapping[str, Any]) -> Iterator[str]:
    """What stands for the cluster."""
    binding = binding_of(workspace.local, name)
    if binding is None:
        yield f"{name}: this machine stands for the cluster{_kept(configuration)}"
        return
    cluster = deferred.access.Cluster.connect(binding.context)
    yield f"{name}: the cluster {binding.context} stands for it, namespace {binding.namespace}"
    size = configuration.get("vm_size")
    if size is not None:
        yield f"{name}: {deferred.checking.said_of_machines(cluster, size, configuration.get('agent_count'))}"


def _kept(configuration: Mapping[str, Any]) -> str:
    shown = ", ".join(f"{name} {value}" for name, value in configuration.items())
    return f"; kept for it: {shown}" if shown else ""


def _folder(workspace: Workspace) -> Path:
    return workspace.local.azure_dir / "compute"


def _file(workspace: Workspace, name: str) -> Path:
    return _folder(workspace) / f"{name}.json"
