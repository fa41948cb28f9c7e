"""Reads and writes of an autoscaler in a cluster; the API server here is a dictionary."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stoker.errors import InvalidSettings
from stoker_cluster.access import Reference
from stoker_cluster.errors import ClusterError, ClusterRefusal
from stoker_cluster.scale_access import ClusterDeployment, policy_of, ready_addresses
from stoker_cluster.scaling import ScalingPolicy

WANTED = {
    "stoker.dev/autoscale-min-replicas": "2",
    "stoker.dev/autoscale-max-replicas": "30",
    "stoker.dev/autoscale-target-utilization": "60",
    "stoker.dev/autoscale-refresh-seconds": "3",
}


class Puppet:
    """A cluster that records the merged changes."""

    def __init__(self) -> None:
        self.deployment: dict[str, Any] | None = {
            "metadata": {"resourceVersion": "17", "annotations": WANTED},
            "spec": {"replicas": 4},
        }
        self.refuses: dict[str, int] = {}
        self.merged: list[tuple[str, str, str]] = []
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.slices: list[dict[str, Any]] = []

    def find(self, reference: Reference) -> dict[str, Any] | None:
        assert (reference.kind, reference.namespace) == ("Deployment", "models")
        return self.deployment

    def get(self, path: str, **query: str) -> Any:
        self.requests.append((path, query))
        return {"items": self.slices}

    def merge(self, reference: Reference, change: Any, part: str = "") -> dict[str, Any]:
        if reference.name in self.refuses:
            raise ClusterRefusal("the cluster refuses", self.refuses[reference.name])
        self.merged.append((f"{reference.kind} {reference.name}", part, json.dumps(change)))
        return {}


@pytest.fixture
def puppet() -> Puppet:
    return Puppet()


@pytest.fixture
def deployment(puppet: Puppet) -> ClusterDeployment:
    return ClusterDeployment(puppet, "digits", "models")  # type: ignore[arg-type]


def endpoint(name: str, address: str, **conditions: bool) -> dict[str, Any]:
    return {
        "addresses": [address],
        "conditions": conditions,
        "targetRef": {"kind": "Pod", "name": name, "namespace": "models"},
    }


def test_a_look_is_the_deployment_and_the_pods_that_get_requests(
    puppet: Puppet, deployment: ClusterDeployment
) -> None:
    """Those of its Service, from the memory of the API server."""
    puppet.slices = [{"ports": [{"name": "http", "port": 8080}], "endpoints": [endpoint("a", "10.0.0.1")]}]
    seen = deployment.read_state()
    assert (seen.replicas, seen.policy) == (4, ScalingPolicy(2, 30, 60, 3.0))
    assert seen.addresses == {"a": "10.0.0.1:8080"}
    assert puppet.requests == [
        (
            "/apis/discovery.k8s.io/v1/namespaces/models/endpointslices",
            {"labelSelector": "kubernetes.io/service-name=digits", "resourceVersion": "0"},
        )
    ]


def test_pods_behind_a_router_are_found_by_a_service_of_their_own(puppet: Puppet) -> None:
    """The Service that is called as the Deployment leads to the router then."""
    ClusterDeployment(puppet, "digits", "models", "digits-servers").read_state()  # type: ignore[arg-type]
    ((_, query),) = puppet.requests
    assert query["labelSelector"] == "kubernetes.io/service-name=digits-servers"


def test_routers_are_looked_for_while_there_is_no_pod(puppet: Puppet) -> None:
    """And where none is the least number; their metrics have a port of their own."""
    puppet.slices = [{"ports": [{"name": "http", "port": 8080}], "endpoints": [endpoint("r", "10.0.0.9")]}]
    puppet.deployment = {
        "metadata": {"annotations": WANTED | {"stoker.dev/autoscale-min-replicas": "0"}},
        "spec": {"replicas": 0},
    }
    scaled = ClusterDeployment(puppet, "digits", "models", "digits-servers", "digits")  # type: ignore[arg-type]
    assert scaled.read_state().routers == ("10.0.0.9:8404",)
    puppet.deployment["spec"]["replicas"] = 1
    assert scaled.read_state().routers == ()


def test_ready_pods_have_addresses() -> None:
    """Other pods and objects are left out; a pod without a readiness counts as ready."""
    parts = [
        {
            "ports": [{"name": "grpc", "port": 9000}, {"name": "http", "port": 8080}],
            "endpoints": [
                endpoint("ready", "10.0.0.1", ready=True),
                endpoint("starting", "10.0.0.2", ready=False),
                endpoint("unknown", "fd00::3"),
                {"addresses": ["10.0.0.4"]},
            ],
        },
        {"ports": [{"name": "other", "port": 1}], "endpoints": [endpoint("portless", "10.0.0.5")]},
        {"ports": None, "endpoints": None},
    ]
    assert ready_addresses(parts) == {"ready": "10.0.0.1:8080", "unknown": "[fd00::3]:8080"}


def test_replicas_are_written_if_they_are_as_they_were(puppet: Puppet, deployment: ClusterDeployment) -> None:
    """A change by somebody else, before the look or since, is not overwritten."""
    assert deployment.scale(6, 4)
    assert puppet.merged == [
        ("Deployment digits", "scale", '{"metadata": {"resourceVersion": "17"}, "spec": {"replicas": 6}}')
    ]
    assert not deployment.scale(6, 5)
    puppet.refuses = {"digits": 409}
    assert not deployment.scale(6, 4)
    assert len(puppet.merged) == 1
    puppet.refuses = {"digits": 403}
    with pytest.raises(ClusterRefusal):
        deployment.scale(6, 4)


def test_pods_are_marked_before_they_go(puppet: Puppet, deployment: ClusterDeployment) -> None:
    """Those that stay lose their mark first; one that has gone by itself is none's trouble."""
    puppet.refuses = {"gone": 404}
    deployment.mark(["a", "gone"], ["b"])
    cost = "controller.kubernetes.io/pod-deletion-cost"
    assert puppet.merged == [
        ("Pod b", "", f'{{"metadata": {{"annotations": {{"{cost}": null}}}}}}'),
        ("Pod a", "", f'{{"metadata": {{"annotations": {{"{cost}": "-1"}}}}}}'),
    ]
    puppet.refuses = {"a": 403}
    with pytest.raises(ClusterRefusal):
        deployment.mark(["a"], [])


def test_missing_deployment_is_named_in_the_error(puppet: Puppet, deployment: ClusterDeployment) -> None:
    """The error says how to make it."""
    puppet.deployment = None
    with pytest.raises(
        ClusterError, match="there is no Deployment digits in the namespace models; apply what"
    ):
        deployment.read_state()


@pytest.mark.parametrize(
    "change",
    [
        {"stoker.dev/autoscale-min-replicas": "31"},
        {"stoker.dev/autoscale-max-replicas": "many"},
        {"stoker.dev/autoscale-target-utilization": "0"},
    ],
)
def test_annotations_that_say_no_policy_are_refused(change: dict[str, str]) -> None:
    """Missing annotations are refused too."""
    for present in (WANTED | change, {}):
        with pytest.raises(InvalidSettings, match="of Deployment digits do not say how it is to be scaled"):
            policy_of("digits", present)
