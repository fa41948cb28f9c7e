"""`apply` with a real API server: no warnings, no repeated changes, restricted pods, no fields of others lost."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from tests.cluster.control_plane import ControlPlane
from tests.cluster.plans import digits
from tests.cluster.readiness import await_ready

from stoker_cluster.access import Cluster
from stoker_cluster.applying import KINDS, apply, delete
from stoker_cluster.cluster_service import ClusterService
from stoker_cluster.errors import ClusterError, ClusterRefusal
from stoker_cluster.plan import ClusterPlan

KEY, OTHER_KEY = "a-key-that-is-long-enough", "another-key-that-is-long-enough"


def applied(cluster: Cluster, plan: ClusterPlan, **options: Any) -> dict[str, list[str]]:
    """The kinds of the changed objects by verb."""
    changes: dict[str, list[str]] = {}
    for change in apply(cluster, plan, **options):
        changes.setdefault(change.verb, []).append(change.reference.kind)
    return changes


def versions(cluster: Cluster, namespace: str) -> dict[str, str]:
    """The version of each object of the namespace's services."""
    found = [
        one
        for kind in [*KINDS, ("v1", "Secret")]
        if cluster.knows(*kind)
        for one in cluster.list(*kind, namespace, "app.kubernetes.io/managed-by=stoker")
    ]
    # The status that controllers write is no change.
    return {
        f"{one['kind']}/{one['metadata']['name']}": one["metadata"].get("generation")
        or one["metadata"]["resourceVersion"]
        for one in found
    }


def test_apply_gives_no_warning_and_changes_nothing_the_second_time(
    cluster: Cluster, namespace: str, warnings: list[str]
) -> None:
    """The API server's defaults and checks give no warning; present objects stay."""
    plan = digits(
        namespace, replicas=2, cpu_cores=2, memory_gb=4, cpu_cores_limit=4, grpc=True, tags={"team": "a"}
    )
    first = applied(cluster, plan)
    kinds = ["ConfigMap", "NetworkPolicy", "Service", "Secret", "Deployment", "PodDisruptionBudget"]
    assert first == {"created": kinds}
    await_ready(ClusterService(cluster, namespace, "digits"))
    before = versions(cluster, namespace)
    assert applied(cluster, plan) == {"unchanged": [kind for kind in kinds if kind != "Secret"]}
    assert versions(cluster, namespace) == before
    assert warnings == []


def test_the_pods_are_admitted_where_only_restricted_ones_are(
    cluster: Cluster, control_plane: ControlPlane
) -> None:
    """The namespace that is made enforces the profile restricted, and the pods of the plan pass it."""
    plan = digits("of-its-own", create_namespace=True, replicas=1)
    try:
        assert applied(cluster, plan)["created"][0] == "Namespace"
        labels = control_plane.get("/api/v1/namespaces/of-its-own")["metadata"]["labels"]
        assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
        await_ready(ClusterService(cluster, "of-its-own", "digits"))
    finally:
        control_plane.api.delete("/api/v1/namespaces/of-its-own")


def test_fields_changed_by_others_stop_apply(
    cluster: Cluster, control_plane: ControlPlane, namespace: str
) -> None:
    """Another owner's edit of a planned field stops apply, unless the field is taken over."""
    applied(cluster, digits(namespace, replicas=2))
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/digits"
    control_plane.patch(f"{path}?fieldManager=somebody", {"spec": {"replicas": 1}})
    before = versions(cluster, namespace)
    changed = digits(namespace, replicas=3, image="stoker:2", grpc=True)
    with pytest.raises(ClusterError, match=r"Deployment digits \.spec\.replicas: conflict with \"somebody\""):
        applied(cluster, changed)
    assert versions(cluster, namespace) == before
    assert applied(cluster, changed, force=True)["changed"] == [
        "ConfigMap",
        "NetworkPolicy",
        "Service",
        "Deployment",
    ]
    assert control_plane.get(path)["spec"]["replicas"] == 3


def test_fields_added_by_others_stay(cluster: Cluster, control_plane: ControlPlane, namespace: str) -> None:
    """Fields outside the plan stay with their owners."""
    applied(cluster, digits(namespace))
    path = f"/api/v1/namespaces/{namespace}/services/digits"
    control_plane.patch(path, {"metadata": {"annotations": {"of": "somebody"}}})
    applied(cluster, digits(namespace, grpc=True))
    assert control_plane.get(path)["metadata"]["annotations"] == {"of": "somebody"}


def test_apply_removes_objects_that_the_plan_has_no_longer(
    cluster: Cluster, control_plane: ControlPlane, namespace: str
) -> None:
    """Objects of an earlier plan are removed; those of other services stay."""
    applied(cluster, digits(namespace, autoscaler="hpa"))
    applied(cluster, digits(namespace, name="others", autoscaler="hpa"))
    changes = applied(cluster, digits(namespace, network_policy=False))
    assert changes["removed"] == ["NetworkPolicy", "HorizontalPodAutoscaler"]
    scalers = control_plane.get(f"/apis/autoscaling/v2/namespaces/{namespace}/horizontalpodautoscalers")
    assert [one["metadata"]["name"] for one in scalers["items"]] == ["others"]


def test_the_number_of_pods_passes_to_an_autoscaler_and_back(
    cluster: Cluster, control_plane: ControlPlane, namespace: str
) -> None:
    """Pods that are there stay when somebody else chooses their number from now on; the plan may choose it again."""
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/digits"
    applied(cluster, digits(namespace, replicas=4))
    applied(cluster, digits(namespace, autoscaler="none"))
    assert control_plane.get(path)["spec"]["replicas"] == 4
    control_plane.patch(f"{path}/scale?fieldManager=scaler", {"spec": {"replicas": 5}})
    assert applied(cluster, digits(namespace, autoscaler="none"))["unchanged"]
    assert control_plane.get(path)["spec"]["replicas"] == 5
    applied(cluster, digits(namespace, replicas=2))
    assert control_plane.get(path)["spec"]["replicas"] == 2


def test_keys_are_made_once_and_given_ones_are_taken(cluster: Cluster, namespace: str) -> None:
    """A service that is applied again, or was deleted but for its keys, has the keys that its callers know."""
    service = ClusterService(cluster, namespace, "digits")
    applied(cluster, digits(namespace))
    made = service.keys()
    assert len(made.primary) > 30
    applied(cluster, digits(namespace, replicas=2))
    assert service.keys() == made
    assert applied(cluster, digits(namespace, replicas=2, primary_key=KEY))["changed"] == ["Secret"]
    assert (service.keys().primary, service.keys().secondary) == (KEY, made.secondary)
    # Nothing answers in these pods, so none shows that it takes it.
    service.regenerate_key("secondary", OTHER_KEY, within_s=0.0)
    assert (service.keys().primary, service.keys().secondary) == (KEY, OTHER_KEY)


def test_a_secret_of_somebody_else_is_used_as_it_is(
    cluster: Cluster, control_plane: ControlPlane, namespace: str
) -> None:
    """Keys that were there before the service are not changed, and not deleted with it."""
    path = f"/api/v1/namespaces/{namespace}/secrets"
    secret = {"metadata": {"name": "digits-keys"}, "stringData": {"primary": KEY}}
    control_plane.create(path, secret)
    applied(cluster, digits(namespace))
    assert ClusterService(cluster, namespace, "digits").keys().secondary == KEY
    delete(cluster, namespace, "digits")
    data = control_plane.get(f"{path}/digits-keys")["data"]
    assert {slot: base64.b64decode(key).decode() for slot, key in data.items()} == {"primary": KEY}


def test_a_deleted_service_leaves_nothing(
    cluster: Cluster, control_plane: ControlPlane, namespace: str
) -> None:
    """No object that was applied is left, nor a pod; a second time there is nothing to delete."""
    applied(cluster, digits(namespace, replicas=2, autoscaler=None))
    await_ready(ClusterService(cluster, namespace, "digits"))
    kinds = {reference.kind for reference in delete(cluster, namespace, "digits")}
    assert kinds == {"ConfigMap", "NetworkPolicy", "Service", "Deployment", "PodDisruptionBudget", "Secret"}
    control_plane.eventually(f"/api/v1/namespaces/{namespace}/pods", lambda found: not found["items"])
    assert versions(cluster, namespace) == {}
    assert delete(cluster, namespace, "digits") == []
    assert ClusterService(cluster, namespace, "digits").status().state == "Deleted"


def test_object_that_the_api_server_refuses_stops_apply(cluster: Cluster, namespace: str) -> None:
    """A refusal of the API server stops apply before the first object."""
    with pytest.raises(ClusterRefusal, match=r"Deployment.* is invalid"):
        applied(
            cluster,
            digits(namespace, replicas=1, node_selector={"a": "b"}, tolerations=("a=b:NoExecute", "a=:x")),
        )
    assert versions(cluster, namespace) == {}


def test_a_kind_that_the_cluster_has_not_is_named(cluster: Cluster, namespace: str) -> None:
    """An option whose objects are brought by something that is not installed says so, and changes nothing."""
    with pytest.raises(ClusterError, match=r"knows no PodMonitor of monitoring\.coreos\.com/v1"):
        applied(cluster, digits(namespace, pod_monitor=True))
    assert versions(cluster, namespace) == {}
