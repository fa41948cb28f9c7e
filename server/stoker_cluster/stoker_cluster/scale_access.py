"""The Deployment of an autoscaler in a cluster: reading its state and scaling it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct

from stoker.errors import InvalidSettings
from stoker_cluster.access import Cluster, Reference
from stoker_cluster.endpoints import http_endpoints
from stoker_cluster.errors import ClusterError, ClusterRefusal
from stoker_cluster.objects.metadata import ANNOTATIONS, ROUTER_METRICS_PORT
from stoker_cluster.scaling import ScalingPolicy

_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
_CONFLICT: Final = 409
_NOT_FOUND: Final = 404


class DeploymentState(Struct, frozen=True):
    """The state of a Deployment.

    Attributes:
        policy: The policy in its annotations.
        addresses: HOST:PORT of the pods that get requests, by name.
        routers: HOST:PORT of the metrics of routers in which requests may wait; looked for only while there is no
            pod.
    """

    replicas: int
    policy: ScalingPolicy
    addresses: Mapping[str, str]
    routers: tuple[str, ...] = ()


class ClusterDeployment:
    """A Deployment in a cluster, with the Service of its pods.

    All methods raise `ClusterError` if the cluster cannot be asked, or refuses.

    Args:
        name: Its name.
        service: The Service; None for the Deployment's name.
        router: The Service of the router; None without one.
    """

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        namespace: str,
        service: str | None = None,
        router: str | None = None,
    ) -> None:
        self._cluster = cluster
        self._name = name
        self._service = service or name
        self._router = router
        self._namespace = namespace
        self._deployment = Reference("apps/v1", "Deployment", namespace, name)

    def read_state(self) -> DeploymentState:
        """Read the present state."""
        deployment = self._found()
        policy = policy_of(self._name, deployment["metadata"].get("annotations") or {})
        replicas, routers = deployment["spec"]["replicas"], {}
        if not replicas and not policy.min_replicas and self._router is not None:
            routers = self._addresses(self._router)
        metrics = (f"{address.rpartition(':')[0]}:{ROUTER_METRICS_PORT}" for address in routers.values())
        return DeploymentState(replicas, policy, self._addresses(self._service), tuple(metrics))

    def _addresses(self, service: str) -> dict[str, str]:
        # From the API server's cache: a list a second costs it little, and is as fresh as a watch.
        slices = self._cluster.get(
            f"/apis/discovery.k8s.io/v1/namespaces/{self._namespace}/endpointslices",
            labelSelector=f"kubernetes.io/service-name={service}",
            resourceVersion="0",
        )
        return ready_addresses(slices["items"])

    def scale(self, replicas: int, before: int) -> bool:
        """Set the number of pods, unless someone else has changed it; returns whether it was set."""
        now = self._found()
        if now["spec"]["replicas"] != before:
            return False
        version = {"resourceVersion": now["metadata"]["resourceVersion"]}
        try:
            self._cluster.merge(
                self._deployment, {"metadata": version, "spec": {"replicas": replicas}}, "scale"
            )
        except ClusterRefusal as error:
            if error.http_status != _CONFLICT:
                raise
            return False
        return True

    def mark(self, going: Iterable[str], staying: Iterable[str]) -> None:
        """Write deletion costs: Kubernetes removes pods with a negative cost before other ready pods."""
        for names, cost in ((staying, None), (going, "-1")):
            for name in names:
                pod = Reference("v1", "Pod", self._namespace, name)
                try:
                    self._cluster.merge(pod, {"metadata": {"annotations": {_COST: cost}}})
                except ClusterRefusal as error:
                    # The pod has ended meanwhile.
                    if error.http_status != _NOT_FOUND:
                        raise

    def _found(self) -> dict[str, Any]:
        found = self._cluster.find(self._deployment)
        if found is None:
            raise ClusterError(
                f"there is no {self._deployment} in the namespace {self._namespace}; apply what "
                "stoker kubernetes render --autoscaler stoker prints"
            )
        return found


def policy_of(name: str, annotations: Mapping[str, str]) -> ScalingPolicy:
    """Return the policy in the annotations of a Deployment."""

    def number(setting: str) -> int:
        return int(annotations[f"{ANNOTATIONS}/autoscale-{setting}"])

    try:
        return ScalingPolicy(
            number("min-replicas"),
            number("max-replicas"),
            number("target-utilization"),
            float(number("refresh-seconds")),
        )
    except (KeyError, ValueError) as error:
        raise InvalidSettings(
            f"the annotations {ANNOTATIONS}/autoscale-... of Deployment {name} do not say how it is to be scaled "
            f"({error}); render it with --autoscaler stoker"
        ) from None


def ready_addresses(slices: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return HOST:PORT of the pods in EndpointSlices that get requests, by name."""
    addresses: dict[str, str] = {}
    for endpoint, port, is_ready in http_endpoints(slices):
        target = endpoint.get("targetRef") or {}
        if is_ready and target.get("kind") == "Pod":
            host = endpoint["addresses"][0]
            addresses[target["name"]] = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return addresses
