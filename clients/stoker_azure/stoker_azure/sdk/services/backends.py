"""What runs a deployed service: a process of this machine, or pods of a cluster."""

from __future__ import annotations

import contextlib
import json
from functools import cache
from typing import Any, Final, Protocol

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


class Backend(Protocol):
    """What runs a service. Methods raise `OperatorError` if it cannot be reached."""

    poll_s: float
    """Seconds between two polls while a caller waits."""

    def state(self) -> str:
        """Return the state, in Azure's words."""

    def error(self) -> Any:
        """Return what keeps the service from running; None if nothing does."""

    def log(self, lines: int) -> str:
        """Return the last lines of the log."""

    def keys(self) -> Keys:
        """Return the keys."""

    def regenerate(self, slot: Slot, value: str | None) -> None:
        """Replace a key."""

    def signing_secret(self) -> bytes:
        """Return the secret that signs tokens."""

    def base_uri(self) -> str:
        """Return the URI of the server."""


def find_backend(workspace: Workspace, record: ServiceRecord) -> Backend:
    """Return the backend of a service."""
    return _ProcessBackend(workspace, record) if record.cluster is None else _PodsBackend(record)


class _ProcessBackend:
    poll_s = 0.1

    def __init__(self, workspace: Workspace, record: ServiceRecord) -> None:
        self._record = record
        self._folder = Services(workspace).folder(record)
        self._keys_dir = workspace.keys_dir

    def state(self) -> str:
        return process.state(self._folder, self._record.base_uri, self._record.name)

    def error(self) -> str | None:
        if process.is_running(self._folder):
            return None
        name = self._record.name
        return f"the process of {name} has ended; its log ends with:\n{self.log(_TAIL_LINES)}"

    def log(self, lines: int) -> str:
        return process.log_tail(self._folder, lines)

    def keys(self) -> Keys:
        return Keyring(self._keys_dir, self._record.name).show()

    def regenerate(self, slot: Slot, value: str | None) -> None:
        Keyring(self._keys_dir, self._record.name).regenerate(slot, value)

    def signing_secret(self) -> bytes:
        return read_signing_secret(self._keys_dir, self._record.name)

    def base_uri(self) -> str:
        return self._record.base_uri


class _PodsBackend:
    poll_s = 1.0

    def __init__(self, record: ServiceRecord) -> None:
        place = record.cluster
        assert place is not None
        self._cluster = Cluster.connect(place["context"])
        leading, *others = _instances(record)
        self._services = {
            instance: ClusterService(self._cluster, place["namespace"], instance)
            for instance in (leading, *others)
        }
        self._service = self._services[leading]
        self._name = record.name
        self._place = (place["context"], place["namespace"], leading)

    def state(self) -> str:
        states = {service.status().state for service in self._services.values()}
        return next(state for state in _WORST_FIRST if state in states)

    def state_of(self, version: str) -> str:
        """Return the state of a version of an endpoint."""
        return self._services[f"{self._name}-{version}"].status().state

    def error(self) -> dict[str, str] | None:
        errors = (service.error for service in self._services.values())
        error = next(filter(None, errors), None)
        return None if error is None else dict(json.loads(error))

    def log(self, lines: int) -> str:
        found = (line for service in self._services.values() for _, line in service.logs(lines))
        return "".join(f"{line}\n" for line in found)

    def keys(self) -> Keys:
        return self._service.keys()

    def regenerate(self, slot: Slot, value: str | None) -> None:
        name, unshown = self._name, self._service.regenerate_key(slot, value)
        for pod, trouble in unshown.items():
            print(f"{name}: the pod {pod} may still take the key of before: {trouble}")

    def signing_secret(self) -> bytes:
        return self._service.signing_secret()

    def base_uri(self) -> str:
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
