"""A puppet of an API server: keeps objects, says of which kinds they are, and nothing becomes of them."""

from __future__ import annotations

import io
import json
import socket
from collections.abc import Callable, Mapping
from typing import Any, Final

from kubernetes.client.exceptions import ApiException
from urllib3 import HTTPResponse

from stoker_cluster.access import Cluster

__all__ = ["PuppetApi", "status_of_whole"]

_KINDS: Final = {
    "v1": ["ConfigMap", "Namespace", "Node", "Pod", "Secret", "Service", "ServiceAccount"],
    "apps/v1": ["Deployment", "ReplicaSet"],
    "autoscaling/v2": ["HorizontalPodAutoscaler"],
    "networking.k8s.io/v1": ["NetworkPolicy"],
    "rbac.authorization.k8s.io/v1": ["Role", "RoleBinding"],
    "policy/v1": ["PodDisruptionBudget"],
    "gateway.networking.k8s.io/v1": ["Gateway", "HTTPRoute"],
    "storage.k8s.io/v1": ["StorageClass"],
}
_IN_NO_NAMESPACE: Final = ("Namespace", "Node", "StorageClass")


class PuppetApi:
    """The API of a cluster.

    Attributes:
        objects: What it has, by path.
        logs: What pods have written, by name.
        metrics: What the metrics of pods answer, by name: of each the next one, and the last one again.
        denied: Resources that the account may not touch.
        conflicts: Fields that others have changed, by the path of the object; who forces takes them over.
        becomes: Gives the status that a Deployment has as soon as it is applied, for its number of pods.
        sent: The methods and paths of all requests that would change something.
    """

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.logs: dict[str, str] = {}
        self.metrics: dict[str, list[str]] = {}
        self._tunnels: list[socket.socket] = []
        self.denied: set[str] = set()
        self.conflicts: dict[str, list[str]] = {}
        self.becomes: Callable[[int], dict[str, Any]] | None = None
        self.sent: list[tuple[str, str]] = []
        self._version = 0

    def cluster(self) -> Cluster:
        """The cluster as code under test knows it."""
        return Cluster(self.request, "puppet", "models", tunnel=self._tunnel)

    def _tunnel(self, namespace: str, pod: str, port: int) -> socket.socket:
        """A connection to a pod that answers a request with its metrics, and ends."""
        del namespace, port
        texts = self.metrics.get(pod, [""])
        content = (texts.pop(0) if len(texts) > 1 else texts[0]).encode()
        near, far = socket.socketpair()
        far.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(content), content))
        self._tunnels.append(far)
        return near

    def close(self) -> None:
        """Close the tunnels."""
        for one in self._tunnels:
            one.close()

    def put(self, kind: str, name: str, **content: Any) -> dict[str, Any]:
        """Have an object; one of a namespace is in `models`."""
        (api_version,) = [group for group, kinds in _KINDS.items() if kind in kinds]
        place = "" if kind in _IN_NO_NAMESPACE else "/namespaces/models"
        root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        own = {"namespace": "models"} if kind == "Pod" else {}
        metadata = {"name": name, "labels": {}, **own, **content.pop("metadata", {})}
        found = {"apiVersion": api_version, "kind": kind, "metadata": metadata, **content}
        self.objects[f"{root}{place}/{_plural(kind)}/{name}"] = found
        return found

    def request(self, method: str, path: str, *, body: Any = None, **options: Any) -> HTTPResponse:
        """Answer a request, as `kubernetes.dynamic.DynamicClient.request`."""
        content = json.loads(body) if isinstance(body, str) else body
        query = dict(options.get("query_params", []))
        if path.endswith("/log"):
            return _answered(self.logs[path.split("/")[-2]].encode())
        if path.endswith("selfsubjectaccessreviews"):
            resource = content["spec"]["resourceAttributes"]["resource"]
            return _answered({"status": {"allowed": resource not in self.denied}})
        if method == "get":
            return _answered(self._read(path, query))
        if path in self.conflicts and query.get("force") == "false":
            raise _conflict(self.conflicts[path])
        if method != "get" and "dryRun" not in query:
            self.sent.append((method, path))
        return self._change(method, path, content, query)

    def _read(self, path: str, query: Mapping[str, str]) -> Any:
        group = path.removeprefix("/apis/").removeprefix("/api/")
        if group in _KINDS:
            return {"resources": [_resource(kind) for kind in _KINDS[group]]}
        if path in self.objects:
            return self.objects[path]
        if path.rpartition("/")[2] not in _PLURALS:
            raise _not_found()
        wanted = [one.split("=") for one in query.get("labelSelector", "").split(",") if "=" in one]
        items = [
            one
            for place, one in self.objects.items()
            if place.rpartition("/")[0] == path
            and all(one["metadata"].get("labels", {}).get(name) == value for name, value in wanted)
        ]
        return {"items": items}

    def _change(self, method: str, path: str, content: Any, query: Mapping[str, str]) -> HTTPResponse:
        if method == "post":
            path = f"{path}/{content['metadata']['name']}"
        before = self.objects.get(path)
        if method == "delete":
            if before is None:
                raise _not_found()
            return _answered(self.objects.pop(path))
        after = _merged(before or {}, content)
        if after != before:
            self._version += 1
            after["metadata"] = {"generation": 1, **after["metadata"], "resourceVersion": str(self._version)}
            if self.becomes is not None and after["kind"] == "Deployment":
                after["status"] = self.becomes(after["spec"]["replicas"])
        if "dryRun" not in query:
            self.objects[path] = after
        return _answered(after, 201 if before is None else 200)


def status_of_whole(replicas: int) -> dict[str, Any]:
    """The status of a Deployment whose pods can score."""
    counts = dict.fromkeys(("replicas", "updatedReplicas", "availableReplicas"), replicas)
    return {"observedGeneration": 1, **counts}


def _plural(kind: str) -> str:
    name = kind.lower()
    return f"{name[:-1]}ies" if name.endswith("y") else f"{name}es" if name.endswith("s") else f"{name}s"


_PLURALS: Final = {_plural(kind) for kinds in _KINDS.values() for kind in kinds}


def _merged(old: Any, new: Any) -> Any:
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return new
    return {**old, **{name: _merged(old.get(name), value) for name, value in new.items()}}


def _resource(kind: str) -> dict[str, Any]:
    return {"name": _plural(kind), "kind": kind, "namespaced": kind not in _IN_NO_NAMESPACE}


def _answered(content: Any, status: int = 200) -> HTTPResponse:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return HTTPResponse(body=io.BytesIO(body), status=status, preload_content=False)


def _not_found() -> ApiException:
    error = ApiException(status=404, reason="Not Found")
    error.body = json.dumps({"message": "not found"})
    return error


def _conflict(fields: list[str]) -> ApiException:
    causes = [
        {"reason": "FieldManagerConflict", "field": field, "message": 'conflict with "kubectl"'}
        for field in fields
    ]
    error = ApiException(status=409, reason="Conflict")
    error.body = json.dumps({"message": "Apply failed", "details": {"causes": causes}})
    return error
