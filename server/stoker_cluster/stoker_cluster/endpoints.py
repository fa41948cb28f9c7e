"""How a router finds its servers: configured addresses, or the endpoints of a Service."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote

from stoker.errors import OperatorError

_HTTP_PORT_NAME: Final = "http"


@dataclass(frozen=True, slots=True, order=True)
class Server:
    """A server.

    Attributes:
        ready: Whether it gets new requests; a terminating server finishes the requests that it has.
    """

    ip: str
    port: int
    ready: bool = True

    @property
    def name(self) -> str:
        """The server's name in HAProxy."""
        return f"{self.ip}:{self.port}"


class ServerSource(Protocol):
    """Finds the servers of each version."""

    async def find_servers(self) -> Mapping[str, frozenset[Server]]:
        """Return the servers of each version as they are now.

        Raises:
            OSError: They cannot be found out now; the former ones stay in use.
        """
        ...


class NamedServers:
    """Configured addresses. A host name stands for all its addresses, which may change."""

    def __init__(self, servers: Mapping[str, Sequence[str]]) -> None:
        self._servers = servers
        self._known: dict[str, frozenset[Server]] = {}

    async def find_servers(self) -> Mapping[str, frozenset[Server]]:
        """Return the servers of each version; for a name that cannot be resolved, its last addresses."""
        return {
            version: frozenset().union(*[await self._resolved(address) for address in addresses])
            for version, addresses in self._servers.items()
        }

    async def _resolved(self, address: str) -> frozenset[Server]:
        host, _, port = address.rpartition(":")
        try:
            found = await asyncio.get_running_loop().getaddrinfo(
                host.strip("[]"), int(port), type=socket.SOCK_STREAM
            )
        except socket.gaierror:
            return self._known.get(address, frozenset())
        self._known[address] = frozenset(Server(str(place[4][0]), int(port)) for place in found)
        return self._known[address]


class EndpointSlices:
    """The endpoints of Services in a cluster."""

    def __init__(self, reader: PodSliceReader, service: str, versions: Sequence[str]) -> None:
        """Follow a Service.

        Args:
            service: The Service, as NAME or NAMESPACE/NAME.
            versions: The versions, whose Services are called NAME-VERSION; one without a name is NAME.
        """
        self._reader = reader
        namespace, _, name = service.rpartition("/")
        self._namespace = namespace or None
        self._services = {version: f"{name}-{version}" if version else name for version in versions}

    async def find_servers(self) -> Mapping[str, frozenset[Server]]:
        """Return the endpoints of each version.

        Raises:
            OSError: The API server does not answer; everything goes on with the servers of before.
        """
        return {
            version: servers_in_slices(await self._reader.endpoint_slices(self._namespace, service))
            for version, service in self._services.items()
        }


def servers_in_slices(slices: Sequence[Mapping[str, Any]]) -> frozenset[Server]:
    """Return the servers of EndpointSlices: those that are ready, and those that still answer while terminating."""
    found = set()
    for content in slices:
        port = next(
            (port["port"] for port in content.get("ports") or () if port.get("name") == _HTTP_PORT_NAME), None
        )
        if port is None:
            continue
        for endpoint in content.get("endpoints") or ():
            conditions = endpoint.get("conditions") or {}
            # As Kubernetes defines, missing conditions of readiness count as true.
            ready = conditions.get("ready") is not False
            if ready or conditions.get("serving"):
                found |= {Server(ip, int(port), ready) for ip in endpoint["addresses"]}
    return frozenset(found)


_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_ANSWER_S: Final = 5.0
_SERVICE_LABEL: Final = "kubernetes.io/service-name"


class PodSliceReader:
    """Reads from the API server that the environment of each pod names.

    A router asks for one small list a second and nothing else, for which it needs no client library in its image.
    """

    def __init__(self, host: str, port: int, account: Path = _ACCOUNT) -> None:
        """Prepare to ask.

        Args:
            host: Address of the API server.
            account: Folder with the token of the pod, its namespace, and the certificate of the API server.
        """
        self._place = host, port
        self._token = account / "token"
        try:
            self._context = ssl.create_default_context(cafile=account / "ca.crt")
            self._token.read_bytes()
            self._own = (account / "namespace").read_text(encoding="utf-8").strip()
        except OSError as error:
            raise OperatorError(
                f"the pod has no account at the API server ({error}); set automountServiceAccountToken for it"
            ) from error

    @classmethod
    def of_this_pod(cls) -> PodSliceReader:
        """Return the reader of the pod that this process runs in."""
        host, port = (os.environ.get(f"KUBERNETES_SERVICE_{word}", "") for word in ("HOST", "PORT"))
        if not host or not port.isdigit():
            raise OperatorError("--service is for pods, and this is none; name the servers with --servers")
        return cls(host, int(port))

    async def endpoint_slices(self, namespace: str | None, service: str) -> Sequence[Mapping[str, Any]]:
        """Return the EndpointSlices of a Service; without a namespace it is that of the pod.

        Raises:
            OSError: The API server does not answer, or refuses.
        """
        return await asyncio.to_thread(self._read, namespace or self._own, service)

    def _read(self, namespace: str, service: str) -> Sequence[Mapping[str, Any]]:
        # With `resourceVersion=0` the API server answers from its cache.
        selector = quote(f"{_SERVICE_LABEL}={service}", safe="")
        path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?labelSelector={selector}"
        connection = http.client.HTTPSConnection(*self._place, timeout=_ANSWER_S, context=self._context)
        try:
            # The kubelet writes a new token long before the old one ends.
            token = self._token.read_text(encoding="ascii").strip()
            connection.request(
                "GET", f"{path}&resourceVersion=0", headers={"Authorization": f"Bearer {token}"}
            )
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != http.HTTPStatus.OK:
                raise OSError(
                    f"the API server answers {answer.status} for the endpoints of {namespace}/{service}"
                )
            content = json.loads(body)
        except (http.client.HTTPException, ValueError) as error:
            raise OSError(f"the API server gives no list of endpoints: {error}") from error
        finally:
            connection.close()
        items: Sequence[Mapping[str, Any]] = content["items"]
        return items
