"""Backends of a deployed service: a process of this machine, or pods of a cluster.

Their methods raise `OperatorError` if it cannot be reached; a caller that waits asks again after `poll_s`.
"""

from __future__ import annotations

import contextlib
import json
from functools import cache
from typing import Final

from stoker.keys.keyring import Keyring, Keys, Slot, read_signing_secret
from stoker.settings.workspace import Workspace
from stoker_azure.sdk.services import process
from stoker_azure.sdk.services.records import ServiceRecord, Services
from stoker_cluster.access import Cluster
from stoker_cluster.cluster_service import ClusterService
from stoker_cluster.forwarding import forwarding

_TAIL_LINES: Final = 60
_WORST_FIRST: Final = ("Failed", "Unhealthy", "Transitioning", "Deleted", "Healthy")

# The ports that lead to pods: open for as long as the process lives.
_opened: Final = contextlib.ExitStack()


def find_backend(workspace: Workspace, record: ServiceRecord) -> ProcessBackend | PodsBackend:
    """Return the backend of a service."""
    return ProcessBackend(workspace, record) if record.cluster is None else PodsBackend(record)


class ProcessBackend:
    """A process of this machine."""

    poll_s = 0.1

    def __init__(self, workspace: Workspace, record: ServiceRecord) -> None:
        self._record = record
        self._folder = Services(workspace).folder(record)
        self._keys_dir = workspace.keys_dir

    def state(self) -> str:
        """Return the state, in Azure's words."""
        return process.state(self._folder, self._record.base_uri, self._record.name)

    def error(self) -> str | None:
        """Return what keeps the service from running; None if nothing does."""
        if process.is_running(self._folder):
            return None
        name = self._record.name
        return f"the process of {name} has ended; its log ends with:\n{self.log(_TAIL_LINES)}"

    def log(self, lines: int) -> str:
        """Return the last lines of the log."""
        return process.log_tail(self._folder, lines)

    def keys(self) -> Keys:
        """Return the keys."""
        return Keyring(self._keys_dir, self._record.name).show()

    def regenerate(self, slot: Slot, value: str | None) -> None:
        """Replace a key."""
        Keyring(self._keys_dir, self._record.name).regenerate(slot, value)

    def signing_secret(self) -> bytes:
        """Return the secret that signs tokens."""
        return read_signing_secret(self._keys_dir, self._record.name)

    def base_uri(self) -> str:
        """Return the URI of the server."""
        return self._record.base_uri


class PodsBackend:
    """The pods of a service, or of all versions of an endpoint."""

    poll_s = 1.0

    def __init__(self, record: ServiceRecord) -> None:
        place = record.cluster
        assert place is not None
        self._cluster = Cluster.connect(place["context"])
        names = _instances(record)
        self._services = {name: ClusterService(self._cluster, place["namespace"], name) for name in names}
        self._service = self._services[leading := names[0]]
        self._name = record.name
        self._place = (place["context"], place["namespace"], leading)

    def state(self) -> str:
        """Return the state, in Azure's words."""
        states = {service.status().state for service in self._services.values()}
        return next(state for state in _WORST_FIRST if state in states)

    def state_of(self, version: str) -> str:
        """Return the state of a version of an endpoint."""
        return self._services[f"{self._name}-{version}"].status().state

    def error(self) -> dict[str, str] | None:
        """Return what keeps the service from running; None if nothing does."""
        errors = (service.error for service in self._services.values())
        error = next(filter(None, errors), None)
        return None if error is None else dict(json.loads(error))

    def log(self, lines: int) -> str:
        """Return the last lines of the log."""
        found = (line for service in self._services.values() for _, line in service.logs(lines))
        return "".join(f"{line}\n" for line in found)

    def keys(self) -> Keys:
        """Return the keys."""
        return self._service.keys()

    def regenerate(self, slot: Slot, value: str | None) -> None:
        """Replace a key."""
        name, unshown = self._name, self._service.regenerate_key(slot, value)
        for pod, trouble in unshown.items():
            print(f"{name}: the pod {pod} may still take the key of before: {trouble}")

    def signing_secret(self) -> bytes:
        """Return the secret that signs tokens."""
        return self._service.signing_secret()

    def base_uri(self) -> str:
        """Return the URI of the server."""
        return self._service.base_uri() or f"http://127.0.0.1:{_forwarded(*self._place)}"


def _instances(record: ServiceRecord) -> list[str]:
    """Return the names of a service's Deployments; for an endpoint one a version, the default one first."""
    if record.versions is None:
        return [record.name]
    versions = sorted(record.versions, key=lambda version: version != record.default_version)
    return [f"{record.name}-{version}" for version in versions]


@cache
def _forwarded(context: str, namespace: str, name: str) -> int:
    """Return a port of this process that leads to the pods, for callers outside the cluster."""
    cluster = Cluster.connect(context)
    return _opened.enter_context(forwarding(cluster, ClusterService(cluster, namespace, name), 0, print))
