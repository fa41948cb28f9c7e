"""A Ray cluster by HTTP: its jobs and its nodes, as the server of its dashboard tells them.

Only the nodes need Ray itself, with `ray[default]`.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct

from stoker.errors import InvalidSettings
from stoker_runs.targets.engine import EngineFailure, NodeCounts, Unreachable

_ANSWER_S: Final = 20.0
_OVER: Final = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})
_REFUSALS: Final = (401, 403)
_NOT_FOUND: Final = 404
_FAULT: Final = 500
_DASHBOARD_PORT: Final = 8265


class JobStatus(Struct, frozen=True):
    """The state of a job on Ray.

    Attributes:
        message: Why it waits, or why it has ended.
        exit_status: That of its command; None if its node has not told.
    """

    status: str
    message: str = ""
    exit_status: int | None = None

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.status in _OVER


class RayCluster:
    """The dashboard's server of one cluster.

    Args:
        name: Of the target, for messages.
        token: The cluster's token; empty where it asks for none.

    Raises:
        InvalidSettings: The address is not one of HTTP.
    """

    def __init__(self, name: str, address: str, token: str = "") -> None:
        parts = urlsplit(address if "://" in address else f"http://{address}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidSettings(
                f"compute target {name}: {address!r} is not the address of a dashboard of Ray, such as "
                f"http://{parts.hostname or 'HEAD'}:{_DASHBOARD_PORT}"
            )
        self.address = f"{parts.scheme}://{parts.netloc}".rstrip("/")
        self._name = name
        self._token = token

    def version(self) -> str:
        """Return Ray's version."""
        return str(self._call("GET", "/api/version").get("ray_version", "unknown"))

    def submit(self, job: str, entrypoint: str, cores: float, gpus: float) -> None:
        """Submit a job, unless there is one of this name."""
        body: dict[str, Any] = {"submission_id": job, "entrypoint": entrypoint}
        if cores:
            body["entrypoint_num_cpus"] = cores
        if gpus:
            body["entrypoint_num_gpus"] = gpus
        try:
            self._call("POST", "/api/jobs/", body)
        except EngineFailure as error:
            # Ray answers this as it does any fault, so that a name in use is known by its words alone.
            if job not in error.failure.message or "already" not in error.failure.message:
                raise

    def status(self, job: str) -> JobStatus | None:
        """Return the status of a job; None if there is none of this name."""
        try:
            found = self._call("GET", f"/api/jobs/{job}")
        except EngineFailure as error:
            if error.failure.details.get("status") == _NOT_FOUND:
                return None
            raise
        code = found.get("driver_exit_code")
        return JobStatus(str(found.get("status")), str(found.get("message") or ""), code)

    def log_tail(self, job: str) -> str:
        """Return the last line that a job has printed."""
        lines = str(self._call("GET", f"/api/jobs/{job}/logs").get("logs") or "").strip().splitlines()
        return lines[-1] if lines else ""

    def stop(self, job: str) -> None:
        """End a job; one that has ended, or never was, stays so."""
        try:
            self._call("POST", f"/api/jobs/{job}/stop")
        except EngineFailure as error:
            if error.failure.details.get("status") != _NOT_FOUND:
                raise

    def count_nodes(self) -> NodeCounts:
        """Return the number of nodes that have cores; a head without is none."""
        answer = self._call("GET", "/api/v0/nodes?limit=10000")
        alive = [node for node in answer["data"]["result"]["result"] if node["state"] == "ALIVE"]
        nodes = [
            str(node["node_id"]) for node in alive if (node.get("resources_total") or {}).get("CPU", 0) > 0
        ]
        status = self._call("GET", "/api/cluster_status")["data"].get("clusterStatus") or {}
        report, load = status.get("autoscalerReport") or {}, status.get("loadMetricsReport") or {}
        usage = {key.lower(): used for key, used in (load.get("usageByNode") or {}).items()}
        running = sum(_is_used(usage.get(node.lower())) for node in nodes)
        pending = sum((report.get("pendingLaunches") or {}).values()) + len(report.get("pendingNodes") or ())
        # The autoscaler learns later than the cluster that a node is there, and calls it pending until then.
        unreported = len(alive) - sum((report.get("activeNodes") or {}).values())
        return NodeCounts(
            max(0, pending - max(0, unreported)),
            running,
            len(nodes) - running,
            len(report.get("failedNodes") or ()),
        )

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, headers, method=method)  # noqa: S310  # checked above
        try:
            with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:  # noqa: S310
                found = json.loads(answer.read())
        except urllib.error.HTTPError as error:
            raise self._failure(error.code, error.read().decode("utf-8", "replace")) from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise Unreachable(
                f"the Ray cluster at {self.address} does not answer: {reason}",
                "is that the address of its dashboard, and do the nodes have ray[default]?",
            ) from error
        if not isinstance(found, dict):
            raise self._failure(0, repr(found))
        return found

    def _failure(self, status: int, text: str) -> EngineFailure:
        if status in _REFUSALS:
            return EngineFailure(
                f"the Ray cluster at {self.address} wants another token",
                f"stoker targets attach ray {self._name} --address {self.address} --ask-token",
            )
        lines = [line for line in text.strip().splitlines() if line]
        # A traceback, whose last words may be on a line of their own.
        complaint = next(
            (line for line in reversed(lines) if "Error" in line), lines[-1] if lines else "nothing"
        )[:500]
        # A cluster that is starting answers so too, until its agents are there.
        kind = Unreachable if status >= _FAULT else EngineFailure
        return kind(
            f"the Ray cluster at {self.address} answered {status}: {complaint}", details={"status": status}
        )


def _is_used(usage: Any) -> bool:
    """Whether cores or GPUs of a node are in use."""
    amounts = usage if isinstance(usage, Mapping) else {}
    return any(amounts.get(name, (0, 0))[0] > 0 for name in ("CPU", "GPU"))
