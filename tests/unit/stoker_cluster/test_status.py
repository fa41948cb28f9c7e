"""The state of a service, from its objects in the API."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stoker_cluster.status import ServiceObjects, service_status

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
SENTENCE = "0/8 nodes are available: 8 Insufficient nvidia.com/gpu."


def deployment(
    wanted: int = 3,
    available: int = 0,
    *,
    updated: int | None = None,
    reason: str = "ReplicaSetUpdated",
    **more: Any,
) -> dict[str, Any]:
    """A Deployment of revision 2."""
    conditions = [{"type": "Progressing", "status": "True", "reason": reason, "message": f"says {reason}"}]
    status = {
        "observedGeneration": 4,
        "replicas": wanted,
        "updatedReplicas": wanted if updated is None else updated,
        "availableReplicas": available,
        "conditions": conditions,
    }
    metadata = {"generation": 4, "annotations": {"deployment.kubernetes.io/revision": "2"}}
    return {"metadata": metadata, "spec": {"replicas": wanted}, "status": status | more}


def replica_set(revision: str, marked: str) -> dict[str, Any]:
    """One with the pods of a revision."""
    annotations = {"deployment.kubernetes.io/revision": revision}
    return {"metadata": {"annotations": annotations, "labels": {"pod-template-hash": marked}}}


def pod(age_s: float = 1, marked: str = "new", *, ready: bool = False, **status: Any) -> dict[str, Any]:
    """A pod, of the new revision by default."""
    created = (NOW - timedelta(seconds=age_s)).isoformat().replace("+00:00", "Z")
    metadata = {"creationTimestamp": created, "labels": {"pod-template-hash": marked}}
    conditions = [{"type": "Ready", "status": str(ready)}, *status.pop("conditions", [])]
    return {"metadata": metadata, "status": {"conditions": conditions, **status}}


def unschedulable(age_s: float) -> dict[str, Any]:
    """A pod for which there is no GPU."""
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": SENTENCE}
    return pod(age_s, conditions=[condition])


def waiting(reason: str, message: str = "", marked: str = "new", **container: Any) -> dict[str, Any]:
    """A pod whose container does not run."""
    state = {"waiting": {"reason": reason, "message": message}}
    return pod(1, marked, containerStatuses=[{"state": state, **container}])


def listing(deployed: dict[str, Any], *pods: dict[str, Any]) -> ServiceObjects:
    """All of it."""
    return ServiceObjects(deployed, [replica_set("1", "old"), replica_set("2", "new")], pods)


def test_ready_pods_are_healthy_and_a_missing_deployment_is_deleted() -> None:
    """These are the two final states of a service without an error."""
    assert service_status(listing(deployment(3, 3)), NOW).state == "Healthy"
    assert service_status(None, NOW).state == "Deleted"
    assert service_status(None, NOW).is_final


@pytest.mark.parametrize(
    "deployed",
    [
        pytest.param(
            deployment(3, 3, observedGeneration=3), id="the controller has not looked at the change"
        ),
        pytest.param(deployment(3, 3, updated=1), id="two are of the old revision"),
        pytest.param(deployment(3, 3, replicas=4), id="one is to go"),
        pytest.param(deployment(3, 2), id="one does not score yet"),
        pytest.param(deployment(3, 2, reason="NewReplicaSetAvailable"), id="one is being replaced"),
    ],
)
def test_service_is_transitioning_until_its_rollout_ends(deployed: dict[str, Any]) -> None:
    """The rollout ends when all wanted pods are of the new revision and can score."""
    found = service_status(listing(deployed, pod()), NOW)
    assert (found.state, found.error, found.is_final) == ("Transitioning", None, False)


def test_a_pod_without_a_gpu_is_waited_for_and_then_a_failure() -> None:
    """The line has the scheduler's sentence at once; after Azure's five minutes it is the error."""
    early, late = (service_status(listing(deployment(), unschedulable(age_s)), NOW) for age_s in (299, 300))
    assert (early.state, early.error) == ("Transitioning", None)
    assert early.line == f"0 of 3 pods can score; one waits: Unschedulable: {SENTENCE}"
    assert (late.state, late.error) == ("Failed", {"code": "Unschedulable", "message": SENTENCE})


def test_a_service_that_was_whole_is_unhealthy_and_not_failed() -> None:
    """One more pod than there are GPUs leaves the others as they are, and says why it waits."""
    whole = deployment(9, 8, reason="NewReplicaSetAvailable")
    found = service_status(listing(whole, unschedulable(301)), NOW)
    assert (found.state, found.error) == ("Unhealthy", {"code": "Unschedulable", "message": SENTENCE})
    assert (
        service_status(listing(deployment(3, 0, reason="NewReplicaSetAvailable")), NOW).state == "Unhealthy"
    )


def test_a_container_that_ends_again_and_again_is_a_failure_at_once() -> None:
    """The message has its exit code, as the kubelet's own one only says that it waits."""
    crashing = waiting("CrashLoopBackOff", "back-off 10s", lastState={"terminated": {"exitCode": 3}})
    found = service_status(listing(deployment(), crashing), NOW)
    assert found.state == "Failed"
    assert found.error == {
        "code": "CrashLoopBackOff",
        "message": "it ends with exit code 3; its log says why",
    }


def test_failing_pods_of_an_earlier_version_do_not_count() -> None:
    """An earlier version's failing pods are no error: the change may mend them."""
    assert service_status(listing(deployment(), waiting("CrashLoopBackOff", marked="old")), NOW).error is None


def test_an_image_that_cannot_be_pulled_may_come_yet() -> None:
    """The kubelet tries again, so the status has the problem, and fails only when the time is over."""
    found = service_status(listing(deployment(), waiting("ImagePullBackOff", "no such tag")), NOW)
    assert (found.state, found.error) == ("Transitioning", None)
    assert found.line.endswith("one waits: ImagePullBackOff: no such tag")
    assert (
        service_status(listing(deployment(), waiting("ImagePullBackOff")), NOW, patience_s=0).state
        == "Failed"
    )


def test_starting_and_leaving_pods_are_counted() -> None:
    """Usual starts and ends are no error; the line counts them."""
    leaving = pod(ready=True)
    leaving["metadata"]["deletionTimestamp"] = "2026-11-22T12:00:00Z"
    found = service_status(
        listing(deployment(2, 1), leaving, waiting("ContainerCreating"), pod(ready=True)), NOW
    )
    assert found.line == "1 of 2 pods can score; 1 of before still answer; 1 start"


def test_a_deadline_that_has_passed_is_a_failure() -> None:
    """The cluster's own verdict is taken, with the reason of a pod where one is known."""
    late = deployment(reason="ProgressDeadlineExceeded")
    assert service_status(listing(late), NOW).error == {
        "code": "ProgressDeadlineExceeded",
        "message": "says ProgressDeadlineExceeded",
    }
    error = service_status(listing(late, unschedulable(1)), NOW).error
    assert error == {"code": "Unschedulable", "message": SENTENCE}


def test_pods_that_may_not_be_made_are_a_failure_when_that_lasts() -> None:
    """The account of a namespace comes after it; a rule that a pod breaks stays."""
    refused = {
        "type": "ReplicaFailure",
        "status": "True",
        "reason": "FailedCreate",
        "message": "serviceaccount not found",
        "lastTransitionTime": (NOW - timedelta(seconds=2)).isoformat(),
    }
    found = service_status(listing(deployment(conditions=[refused])), NOW)
    assert (found.state, found.error) == ("Transitioning", None)
    assert found.line.endswith("one waits: FailedCreate: serviceaccount not found")
    found = service_status(listing(deployment(conditions=[refused])), NOW + timedelta(seconds=30))
    assert found.error == {"code": "FailedCreate", "message": "serviceaccount not found"}
