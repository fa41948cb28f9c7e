"""`azureml.core.compute`: the classes of compute targets. This machine, or a cluster, stands for them."""

from __future__ import annotations

import os
from typing import Any, Final

from stoker.errors import InvalidSettings
from stoker.settings.workspace import Workspace as LocalWorkspace
from stoker_azure.exceptions import ComputeTargetException
from stoker_azure.sdk import deferred
from stoker_azure.sdk.bindings import Binding, bind, binding_of, has_kubeconfig
from stoker_azure.sdk.compute_target import ComputeTarget, Configuration, given
from stoker_azure.sdk.training_compute import (
    AdlaCompute,
    AmlCompute,
    BatchCompute,
    DatabricksCompute,
    DsvmCompute,
    HDInsightCompute,
    RemoteCompute,
)
from stoker_azure.sdk.unoffered import unoffered_names

__all__ = [
    "CLASSES",
    "AdlaCompute",
    "AksCompute",
    "AksConfiguration",
    "AmlCompute",
    "BatchCompute",
    "ComputeTarget",
    "ComputeTargetException",
    "DatabricksCompute",
    "DsvmCompute",
    "HDInsightCompute",
    "RemoteCompute",
]

_TYPE: Final = "AKS"
_IMAGE: Final = "STOKER_IMAGE"
_OF_TRAINING: Final = frozenset(
    {"ComputeInstance", "DataFactoryCompute", "KubernetesCompute", "SynapseCompute"}
)

__getattr__ = unoffered_names("azureml.core.compute", _OF_TRAINING, __name__)


class AksConfiguration(Configuration):
    """How a cluster of Azure Kubernetes Service would be made, or found.

    Args:
        values: The arguments that were given.
    """

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__(_TYPE, values)

    def bind(self, workspace: LocalWorkspace, target: str) -> None:
        """Let the target stand for the cluster that it names, if there is a kubeconfig with its context.

        Raises:
            InvalidSettings: Nothing says what its pods run, or the name cannot be one.
            ClusterError: The kubeconfig has no such context.
        """
        name = self.values.get("cluster_name") or str(self.values.get("resource_id", "")).rpartition("/")[2]
        if not name or not has_kubeconfig():
            return
        old = binding_of(workspace, target)
        if old is not None and old.context == name:
            return
        cluster = deferred.access.Cluster.connect(name)
        image = os.environ.get(_IMAGE)
        if image is None:
            raise InvalidSettings(
                f"nothing says what the pods of {target} run; set {_IMAGE} to an image, or bind it first: "
                f"stoker compute bind {target} --context {name} --image IMAGE"
            )
        bind(workspace, target, Binding(context=name, namespace=cluster.namespace, fields={"image": image}))

    def enable_ssl(self, **ssl: Any) -> None:
        """Keep how the cluster would speak TLS; the pods speak plain HTTP."""
        self.values["ssl"] = sorted(ssl)


class AksCompute(ComputeTarget):
    """A cluster of Azure Kubernetes Service, for which this machine stands, or the cluster that it is bound to."""

    kind = _TYPE
    words = "this machine stands for the cluster"

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
        return AksConfiguration(given(locals()))

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
        return AksConfiguration(given(locals()))


CLASSES: Final[dict[str, type[ComputeTarget]]] = {
    one.kind: one
    for one in (
        AdlaCompute,
        AksCompute,
        AmlCompute,
        BatchCompute,
        DatabricksCompute,
        DsvmCompute,
        HDInsightCompute,
        RemoteCompute,
    )
}
"""The class of each kind of target."""
