"""Simulated nodes and the statuses of their pods, as a kubelet reports them."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

__all__ = ["exited", "node", "running", "waiting"]


def node(name: str, devices: Mapping[str, str], labels: Mapping[str, str]) -> dict[str, Any]:
    """A node that is ready, with 32 cores and these devices."""
    amounts = {"cpu": "32", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": "110", **devices}
    now = _now()
    ready = {"type": "Ready", "status": "True", "reason": "Simulated", "message": "nothing runs here"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **labels},
        },
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "conditions": [{**ready, "lastHeartbeatTime": now, "lastTransitionTime": now}],
        },
    }


def exited(pod: Mapping[str, Any], address: str, status: int) -> dict[str, Any]:
    """The status of a pod whose command has ended; a killed one had no memory."""
    before, now = running(pod, address), _now()
    code = status if status >= 0 else 128 - status
    reason = "OOMKilled" if status == -signal.SIGKILL else "Error" if code else "Completed"
    terminated = {"exitCode": code, "reason": reason, "finishedAt": now}
    containers = [
        {**one, "ready": False, "started": False, "state": {"running": None, "terminated": terminated}}
        for one in before["containerStatuses"]
    ]
    conditions = [{**one, "status": "False"} for one in before["conditions"] if one["type"] != "Initialized"]
    phase = "Failed" if code else "Succeeded"
    return {**before, "phase": phase, "conditions": conditions, "containerStatuses": containers}


def running(pod: Mapping[str, Any], address: str) -> dict[str, Any]:
    """The status of a ready pod."""
    now = _now()
    containers = [
        {
            "name": container["name"],
            "image": container["image"],
            "imageID": container["image"],
            "ready": True,
            "started": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": now}},
        }
        for container in pod["spec"]["containers"]
    ]
    return {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "hostIP": "127.0.0.1",
        "startTime": now,
        "conditions": [
            {"type": name, "status": "True", "lastTransitionTime": now}
            for name in ("Initialized", "ContainersReady", "Ready")
        ],
        "containerStatuses": containers,
    }


def waiting(pod: Mapping[str, Any], reason: str, message: str) -> dict[str, Any]:
    """The status of a pod that cannot start, with the kubelet's reason."""
    now = _now()
    containers = [
        {
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "ready": False,
            "started": False,
            "restartCount": 5 if reason == "CrashLoopBackOff" else 0,
            "state": {"waiting": {"reason": reason, "message": message}},
        }
        for container in pod["spec"]["containers"]
    ]
    conditions = [
        {"type": name, "status": "False", "reason": "ContainersNotReady", "lastTransitionTime": now}
        for name in ("ContainersReady", "Ready")
    ]
    return {"phase": "Pending", "startTime": now, "conditions": conditions, "containerStatuses": containers}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
