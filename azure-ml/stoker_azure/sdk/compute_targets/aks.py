"""`AksCompute`: a cluster of Azure Kubernetes Service, for which a bound cluster or this machine stands."""

from __future__ import annotations

import os
from typing import Any, Final

from stoker.errors import InvalidSettings
from stoker.settings.workspace import Workspace as LocalWorkspace
from stoker_azure.sdk.bindings import Binding, bind, binding_of, has_kubeconfig
from stoker_azure.sdk.compute_targets.records import Configuration, without_none
from stoker_azure.sdk.compute_targets.target import ComputeTarget

_TYPE: Final = "AKS"
_IMAGE: Final = "STOKER_IMAGE"


class AksConfiguration(Configuration):
    """The arguments for a cluster of Azure Kubernetes Service."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__(_TYPE, values)

    def bind(self, workspace: LocalWorkspace, target: str) -> None:
        """Bind the target to the cluster that the arguments name, if there is a kubeconfig.

        Raises:
            InvalidSettings: No image is named, or the name is not allowed.
            ClusterError: The kubeconfig has no such context.
        """
        name = self.values.get("cluster_name") or str(self.values.get("resource_id", "")).rpartition("/")[2]
        if not name or not has_kubeconfig():
            return
        old = binding_of(workspace, target)
        if old is not None and old.context == name:
            return
        from stoker_cluster.access import Cluster

        cluster = Cluster.connect(name)
        image = os.environ.get(_IMAGE)
        if image is None:
            raise InvalidSettings(
                f"nothing says what the pods of {target} run; set {_IMAGE} to an image, or bind it first: "
                f"stoker compute bind {target} --context {name} --image IMAGE"
            )
        bind(workspace, target, Binding(context=name, namespace=cluster.namespace, fields={"image": image}))

    def enable_ssl(self, **ssl: Any) -> None:
        """Keep the names of the TLS arguments; pods speak plain HTTP."""
        self.values["ssl"] = sorted(ssl)


class AksCompute(ComputeTarget):
    """A cluster of Azure Kubernetes Service: this machine stands for it, or the cluster that it is bound to."""

    kind = _TYPE
    words = "this machine stands for the cluster"

    class ClusterPurpose:
        """Purposes of a cluster."""

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
        """Return the arguments for `ComputeTarget.create`."""
        return AksConfiguration(without_none(locals()))

    @staticmethod
    def attach_configuration(
        resource_group: str | None = None,
        cluster_name: str | None = None,
        resource_id: str | None = None,
        cluster_purpose: str | None = None,
        load_balancer_type: str | None = None,
        load_balancer_subnet: str | None = None,
    ) -> AksConfiguration:
        """Return the arguments for `ComputeTarget.attach`."""
        return AksConfiguration(without_none(locals()))
