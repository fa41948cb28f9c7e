"""How a router finds its servers: configured addresses, or the endpoints of a Service."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from msgspec import Struct

from stoker_cluster.slice_reader import PodSliceReader

_HTTP_PORT_NAME: Final = "http"


class Server(Struct, frozen=True, order=True):
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


def servers_in_slices(slices: Iterable[Mapping[str, Any]]) -> frozenset[Server]:
    """Return the servers of EndpointSlices: those that are ready, and those that still answer while terminating."""
    found = set()
    for endpoint, port, is_ready in http_endpoints(slices):
        if is_ready or (endpoint.get("conditions") or {}).get("serving"):
            found |= {Server(ip, port, is_ready) for ip in endpoint["addresses"]}
    return frozenset(found)


def http_endpoints(slices: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], int, bool]]:
    """Yield each endpoint of EndpointSlices with its port for HTTP, and whether it is ready."""
    for part in slices:
        ports = [port["port"] for port in part.get("ports") or () if port.get("name") == _HTTP_PORT_NAME]
        for endpoint in part.get("endpoints") or () if ports else ():
            # As Kubernetes defines, missing conditions of readiness count as true.
            is_ready = (endpoint.get("conditions") or {}).get("ready") is not False
            yield endpoint, int(ports[0]), is_ready
