"""The control plane of these tests is one: it admits, schedules and makes pods; only the nodes are simulated."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cluster import tools
from tests.cluster.control_plane import ControlPlane
from tests.cluster.nodes import Behaviour


def deployment(replicas: int, image: str = "image:1", **security: Any) -> dict[str, Any]:
    """A Deployment whose pods want a GPU."""
    restricted = {
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {
        "name": "main",
        "image": image,
        "resources": {"limits": {"nvidia.com/gpu": 1}},
        "securityContext": restricted | security,
    }
    template = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [container]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "a"}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}, "spec": spec}


def test_release_is_the_modules(control_plane: ControlPlane) -> None:
    """The API server is of the version that its binaries were built from."""
    assert control_plane.get("/version")["gitVersion"] == f"v{tools.kubernetes_version()}"


def test_pods_are_scheduled_to_gpus_and_reported_running(control_plane: ControlPlane, namespace: str) -> None:
    """As many pods run as there are GPUs; one more waits with the scheduler's reason."""
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    control_plane.create(path, deployment(9))
    control_plane.eventually(f"{path}/a", lambda found: found["status"].get("readyReplicas") == 8)
    pods = control_plane.eventually(
        f"/api/v1/namespaces/{namespace}/pods",
        # The scheduler may look at the last one after the others run.
        lambda found: all("conditions" in pod["status"] for pod in found["items"]),
    )["items"]
    (waiting,) = [pod for pod in pods if "nodeName" not in pod["spec"]]
    assert "8 Insufficient nvidia.com/gpu" in waiting["status"]["conditions"][0]["message"]
    assert len({pod["status"]["podIP"] for pod in pods if pod is not waiting}) == 8


def test_pods_that_are_not_restricted_are_refused(control_plane: ControlPlane, namespace: str) -> None:
    """The namespace takes no pods that may gain privileges."""
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    control_plane.create(path, deployment(1, allowPrivilegeEscalation=True))

    def is_refused(found: Any) -> bool:
        reasons = {one["type"]: one.get("message", "") for one in found["status"].get("conditions", [])}
        return "violates PodSecurity" in reasons.get("ReplicaFailure", "")

    control_plane.eventually(f"{path}/a", is_refused)


@pytest.mark.parametrize("lines", [None, 1])
def test_logs_of_a_pod_are_the_tests(control_plane: ControlPlane, namespace: str, lines: int | None) -> None:
    """The API server asks the simulated node for them, as it asks a kubelet."""
    control_plane.nodes.behaviours["talks:1"] = Behaviour(log="first\nsecond\n")
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    control_plane.create(path, deployment(1, "talks:1"))
    control_plane.eventually(f"{path}/a", lambda found: found["status"].get("readyReplicas") == 1)
    (pod,) = control_plane.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    log = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}/log"
    answer = control_plane.api.get(log, params={} if lines is None else {"tailLines": lines})
    assert answer.text == ("first\nsecond\n" if lines is None else "second\n")
