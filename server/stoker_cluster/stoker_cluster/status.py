"""The status of a service in a cluster, derived only from the API's objects: its Deployment and its pods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal

from msgspec import Struct

from stoker.system.wording import format_count

State = Literal["Transitioning", "Healthy", "Unhealthy", "Failed", "Deleted"]
"""As Azure has them: pods start; all can score; none can any more; it will not come about; it is not there."""

_PATIENCE_S: Final = 300.0
"""How long a pod may wait for a GPU, or for its image, before its service counts as failed: Azure's five minutes."""

_REFUSED_S: Final = 30.0
"""How long the API server may refuse pods before that counts: the controller tries again, and the cause may end.

A namespace that is new has its service account a moment later.
"""
_REVISION: Final = "deployment.kubernetes.io/revision"
_HASH: Final = "pod-template-hash"
# The kubelet tries again for ever; these do not mend themselves.
_AT_ONCE: Final = ("CrashLoopBackOff", "InvalidImageName")
_USUAL: Final = ("ContainerCreating", "PodInitializing")


class ServiceObjects(Struct, frozen=True):
    """The API's objects of a service: its Deployment, with ReplicaSets and pods."""

    deployment: Mapping[str, Any]
    replica_sets: Sequence[Mapping[str, Any]] = ()
    pods: Sequence[Mapping[str, Any]] = ()


class ServiceStatus(Struct, frozen=True):
    """The status of a service.

    Attributes:
        state: In Azure's words.
        line: What the service waits for, for people.
        error: The failure as Azure's JSON: `code` and `message`; None without one.
    """

    state: State
    line: str
    error: Mapping[str, str] | None = None

    @property
    def is_final(self) -> bool:
        """Whether waiting changes nothing."""
        return self.state in ("Healthy", "Deleted") or self.error is not None


class _Trouble(Struct, frozen=True):
    code: str
    message: str
    is_final: bool


def service_status(
    objects: ServiceObjects | None, now: datetime, patience_s: float = _PATIENCE_S
) -> ServiceStatus:
    """Return the status of a service.

    Args:
        objects: The API's objects of the service; None if it has no Deployment.
        patience_s: How long a pod may wait before that counts as failure.
    """
    if objects is None:
        return ServiceStatus("Deleted", "is not there")
    spec, status = objects.deployment["spec"], objects.deployment.get("status", {})
    if status.get("observedGeneration", 0) < objects.deployment["metadata"]["generation"]:
        return ServiceStatus("Transitioning", "waits for the cluster to look at it")
    wanted, available = spec["replicas"], status.get("availableReplicas", 0)
    count = f"{available} of {format_count(wanted, 'pod')} can score"
    if status.get("updatedReplicas", 0) == status.get("replicas", 0) == available == wanted:
        return ServiceStatus("Healthy", count)
    conditions = {one["type"]: one for one in status.get("conditions", [])}
    troubles = list(_troubles(objects, conditions, now, patience_s))
    progress = conditions.get("Progressing", {}).get("reason")
    was_whole = progress == "NewReplicaSetAvailable"
    line = "; ".join([count, *_waits(objects, troubles)])
    final = next((trouble for trouble in troubles if trouble.is_final), None)
    if final is not None:
        state: State = "Unhealthy" if was_whole else "Failed"
        return ServiceStatus(state, line, {"code": final.code, "message": final.message})
    if was_whole and available == 0 and wanted > 0:
        return ServiceStatus("Unhealthy", line)
    return ServiceStatus("Transitioning", line)


def _waits(objects: ServiceObjects, troubles: Sequence[_Trouble]) -> Iterator[str]:
    """Yield what the service waits for: its troubles, else its progress."""
    if troubles:
        first = troubles[0]
        yield f"one waits: {first.code}: {first.message}" if first.message else f"one waits: {first.code}"
        return
    ending = sum("deletionTimestamp" in pod["metadata"] for pod in objects.pods)
    starting = sum(not is_ready(pod) and "deletionTimestamp" not in pod["metadata"] for pod in objects.pods)
    if ending:
        yield f"{ending} of before still answer"
    if starting:
        yield f"{starting} start"


def _troubles(
    objects: ServiceObjects, conditions: Mapping[str, Mapping[str, Any]], now: datetime, patience_s: float
) -> Iterator[_Trouble]:
    """Yield the troubles of a service, the worst first."""
    failure = conditions.get("ReplicaFailure", {})
    if failure.get("status") == "True":
        lasted_s = (now - datetime.fromisoformat(failure["lastTransitionTime"])).total_seconds()
        is_final = lasted_s >= min(_REFUSED_S, patience_s)
        yield _Trouble(str(failure.get("reason")), str(failure.get("message")), is_final)
    newest = _newest_hash(objects)
    found = [
        trouble
        for pod in objects.pods
        # A failing pod of the former template may be the reason for the change.
        if pod["metadata"].get("labels", {}).get(_HASH) == newest and not is_ready(pod)
        for trouble in _of_pod(pod, now, patience_s)
    ]
    yield from sorted(found, key=lambda trouble: not trouble.is_final)
    progress = conditions.get("Progressing", {})
    if progress.get("reason") == "ProgressDeadlineExceeded":
        code, message = (
            (found[0].code, found[0].message) if found else (progress["reason"], progress["message"])
        )
        yield _Trouble(code, message, is_final=True)


def _of_pod(pod: Mapping[str, Any], now: datetime, patience_s: float) -> Iterator[_Trouble]:
    """Yield what keeps a pod from starting."""
    if "deletionTimestamp" in pod["metadata"]:
        return
    status = pod.get("status", {})
    age_s = (now - datetime.fromisoformat(pod["metadata"]["creationTimestamp"])).total_seconds()
    for condition in status.get("conditions", []):
        if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable":
            yield _Trouble("Unschedulable", condition.get("message", ""), is_final=age_s >= patience_s)
    for container in (*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])):
        waiting = container.get("state", {}).get("waiting")
        if waiting is None or (waiting.get("reason") in _USUAL and not waiting.get("message")):
            continue
        reason = str(waiting.get("reason"))
        is_final = reason in _AT_ONCE or age_s >= patience_s
        yield _Trouble(reason, _why(container) or waiting.get("message", ""), is_final)


def _why(container: Mapping[str, Any]) -> str:
    """Return how a container ends that restarts again and again."""
    ended = container.get("lastState", {}).get("terminated")
    return "" if ended is None else f"it ends with exit code {ended.get('exitCode')}; its log says why"


def _newest_hash(objects: ServiceObjects) -> str | None:
    """Return the hash that marks the pods of the Deployment's current template."""
    revision = objects.deployment["metadata"].get("annotations", {}).get(_REVISION)
    for one in objects.replica_sets:
        metadata = one["metadata"]
        if metadata.get("annotations", {}).get(_REVISION) == revision:
            return str(metadata["labels"].get(_HASH))
    return None


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Whether a pod can score, as its readiness probe says."""
    conditions = pod.get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
