"""A service in a cluster: its status, keys, logs and addresses. Every call asks the cluster anew."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

from stoker.keys.keyring import Keys, Slot
from stoker_cluster.access import Cluster, Reference
from stoker_cluster.errors import ClusterError
from stoker_cluster.key_rollout import KEYS_WITHIN_S, Unshown, await_generation
from stoker_cluster.keys import read_keys, read_signing_secret, replace_key
from stoker_cluster.objects.metadata import ANNOTATIONS
from stoker_cluster.status import ServiceObjects, ServiceStatus, is_ready, service_status

_LOOK_EVERY_S: Final = 1
_HTTP_PORT: Final = 80


class ClusterService:
    """A service, or a version of an endpoint.

    Args:
        instance: What its Deployment is called: the service, or `NAME-VERSION`.

    Methods raise `ClusterError` if the cluster cannot be asked, or refuses.
    """

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        instance: str,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._cluster = cluster
        self.namespace = namespace
        self.instance = instance
        self._clock = clock

    def objects(self) -> ServiceObjects | None:
        """Return the API's objects of the service; None if it does not exist."""
        deployment = self._cluster.find(Reference("apps/v1", "Deployment", self.namespace, self.instance))
        if deployment is None:
            return None
        sets = self._cluster.list("apps/v1", "ReplicaSet", self.namespace, self._labels)
        return ServiceObjects(deployment, sets, self.pods())

    def status(self) -> ServiceStatus:
        """Return the present status."""
        return service_status(self.objects(), self._clock())

    @property
    def error(self) -> str | None:
        """Its failure as Azure's JSON with `code` and `message`; None without one."""
        error = self.status().error
        return None if error is None else json.dumps(error, indent=2, ensure_ascii=False)

    def await_ready(self, say: Callable[[str], object], within_s: float | None = None) -> ServiceStatus:
        """Wait until all its pods can score, or until something is in the way that waiting does not mend.

        Args:
            say: Called with a line whenever what is waited for changes.

        Returns:
            How it stands then.
        """
        begun = self._clock()
        last = ""
        while True:
            now = self.status()
            if now.line != last:
                last = now.line
                say(f"{self.instance}: {now.line}")
            waited_s = (self._clock() - begun).total_seconds()
            if now.is_final or (within_s is not None and waited_s >= within_s):
                return now
            self._await_change()

    def _await_change(self) -> None:
        """Wait until something becomes of its pods, but not long: time passes for those that nothing becomes of."""
        events = self._cluster.watch("v1", "Pod", self.namespace, self._labels, within_s=_LOOK_EVERY_S)
        for kind, _ in events:
            if kind != "ADDED":
                events.close()
                return

    def pods(self) -> list[dict[str, Any]]:
        """Return its pods."""
        return self._cluster.list("v1", "Pod", self.namespace, self._labels)

    def ready_pods(self) -> list[str]:
        """Return the names of those that can score and are not about to go."""
        return [
            pod["metadata"]["name"]
            for pod in self.pods()
            if "deletionTimestamp" not in pod["metadata"] and is_ready(pod)
        ]

    def logs(self, lines: int | None = None) -> Iterator[tuple[str, str]]:
        """Give the lines that its pods have written, one pod after the other: the name of the pod, and the line.

        Args:
            lines: How many of the last ones of each pod at most.
        """
        running = [pod["metadata"]["name"] for pod in self.pods() if _has_begun(pod)]
        if not running:
            raise ClusterError(f"no pod of {self.instance} has begun yet: {self.status().line}")
        for name in running:
            for line in self._cluster.log(self.namespace, name, lines=lines):
                yield name, line

    def keys(self) -> Keys:
        """Return its keys; all versions of an endpoint have the same."""
        return read_keys(self._cluster, self.namespace, self._endpoint)

    def signing_secret(self) -> bytes:
        """Return the secret that signs its tokens."""
        return read_signing_secret(self._cluster, self.namespace, self._endpoint)

    def regenerate_key(
        self, slot: Slot, value: str | None = None, *, within_s: float = KEYS_WITHIN_S
    ) -> Unshown:
        """Replace a key, make the nodes read the Secret at once, and wait until all ready pods accept the key.

        Args:
            value: The new key; a random one by default.
            within_s: Give up waiting after this time.

        Returns:
            The pods that have not shown by then that they do, and why; none if all have.

        Raises:
            ClusterError: It takes no keys.
            InvalidSettings: The value cannot be a key.
        """
        endpoint = self._endpoint
        generation = replace_key(self._cluster, self.namespace, endpoint, slot, value)
        key = read_keys(self._cluster, self.namespace, endpoint).primary
        changed = {"metadata": {"annotations": {f"{ANNOTATIONS}/keys-changed": self._clock().isoformat()}}}
        of_the_endpoint = ["app.kubernetes.io/name=stoker", f"app.kubernetes.io/part-of={endpoint}"]

        def pods() -> list[dict[str, Any]]:
            # All versions of an endpoint have the same keys.
            versions = self._cluster.list("v1", "Pod", self.namespace, ",".join(of_the_endpoint))
            return versions or self.pods()

        for pod in pods():
            if "deletionTimestamp" not in pod["metadata"]:
                self._cluster.merge(self._cluster.reference(pod), changed)
        return await_generation(self._cluster, pods, generation, key, within_s=within_s)

    def base_uri(self) -> str | None:
        """Return its address for callers outside the cluster; None without one.

        That is the Gateway of its route, else the address of its Service.
        """
        return self._gateway_uri() or self._service_uri()

    def _gateway_uri(self) -> str | None:
        kind = ("gateway.networking.k8s.io/v1", "HTTPRoute")
        if not self._cluster.knows(*kind):
            return None
        route = self._cluster.find(Reference(*kind, self.namespace, self._endpoint))
        if route is None:
            return None
        parent = route["spec"]["parentRefs"][0]
        place = parent.get("namespace") or self.namespace
        gateway = self._cluster.find(Reference(kind[0], "Gateway", place, parent["name"])) or {}
        hosts = route["spec"].get("hostnames") or []
        addresses = [one["value"] for one in gateway.get("status", {}).get("addresses", [])]
        found = next((host for host in (*hosts, *addresses) if "*" not in host), None)
        listeners = gateway.get("spec", {}).get("listeners", [])
        port = next((one["port"] for one in listeners if one["protocol"] == "HTTP"), _HTTP_PORT)
        return None if found is None else _uri(found, port)

    def _service_uri(self) -> str | None:
        # A router's is called as the endpoint, whose versions have their own beside it.
        names = dict.fromkeys((self._endpoint, self.instance))
        found = (self._cluster.find(Reference("v1", "Service", self.namespace, name)) for name in names)
        service = next(filter(None, found), None)
        if service is None:
            return None
        port = next(one for one in service["spec"]["ports"] if one["name"] == "http")
        for one in service.get("status", {}).get("loadBalancer", {}).get("ingress", []):
            return _uri(one.get("hostname") or one["ip"], port["port"])
        if service["spec"]["type"] != "NodePort":
            return None
        for pod in self.pods():
            if address := pod.get("status", {}).get("hostIP"):
                return _uri(address, port["nodePort"])
        return None

    @property
    def _labels(self) -> str:
        return f"app.kubernetes.io/name=stoker,app.kubernetes.io/instance={self.instance}"

    @property
    def _endpoint(self) -> str:
        """The endpoint that it is a version of, else itself."""
        found = self._cluster.find(Reference("apps/v1", "Deployment", self.namespace, self.instance)) or {}
        labels = found.get("metadata", {}).get("labels", {})
        return str(labels.get("app.kubernetes.io/part-of", self.instance))


def _has_begun(pod: dict[str, Any]) -> bool:
    containers = pod.get("status", {}).get("containerStatuses", [])
    return any("running" in one.get("state", {}) or one.get("restartCount", 0) for one in containers)


def _uri(host: str, port: int) -> str:
    named = f"[{host}]" if ":" in host else host
    return f"http://{named}" if port == _HTTP_PORT else f"http://{named}:{port}"
