"""Where a router learns of its servers."""

import asyncio
import socket
from typing import Any

import pytest

from stoker_cluster.endpoints import EndpointSlices, NamedServers, Server, servers_in_slices


def endpoint(ip: str, **conditions: bool) -> dict[str, Any]:
    """An endpoint as the API server has it."""
    return {"addresses": [ip], "conditions": conditions}


def piece(*endpoints: dict[str, Any], name: str = "http") -> dict[str, Any]:
    """An EndpointSlice with these."""
    return {"ports": [{"name": name, "port": 8080}], "endpoints": list(endpoints)}


def test_endpoints_are_servers_until_they_stop_answering() -> None:
    """A ready one gets requests, a terminating one that serves keeps its own, one not ready is left out."""
    found = servers_in_slices(
        [
            piece(endpoint("10.0.0.1", ready=True, serving=True), endpoint("10.0.0.2")),
            piece(endpoint("10.0.0.3", ready=False, serving=True, terminating=True)),
            piece(endpoint("10.0.0.4", ready=False, serving=False)),
            piece(endpoint("10.0.0.5", ready=True), name="grpc"),
            {"ports": None, "endpoints": None},
        ]
    )
    assert found == {
        Server("10.0.0.1", 8080),
        Server("10.0.0.2", 8080),
        Server("10.0.0.3", 8080, ready=False),
    }


class Slices:
    """An API server with one endpoint for each Service."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str]] = []

    async def endpoint_slices(self, namespace: str, service: str) -> list[dict[str, Any]]:
        """Answer, and remember the service."""
        self.requests.append((namespace, service))
        return [piece(endpoint(f"10.0.0.{len(self.requests)}", ready=True))]


@pytest.mark.parametrize(
    ("versions", "services"), [(("",), ["digits"]), (("a", "b"), ["digits-a", "digits-b"])]
)
def test_each_version_has_a_service_of_its_own(versions: tuple[str, ...], services: list[str]) -> None:
    """Called NAME-VERSION; without versions NAME."""
    slices = Slices()
    found = asyncio.run(EndpointSlices(slices, "models/digits", versions).find_servers())
    assert slices.requests == [("models", service) for service in services]
    assert list(found) == list(versions)
    assert all(len(servers) == 1 for servers in found.values())


def test_name_gives_all_its_addresses_and_keeps_them_when_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that is away for a moment takes no server away."""
    answers: list[list[str]] = [["10.0.0.1", "10.0.0.2"], [], ["10.0.0.2"]]

    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        addresses = answers.pop(0)
        if not addresses:
            raise socket.gaierror("no such name")
        return [(0, 0, 0, "", (address, port)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port, *_, **__: resolve(host, port))
    named = NamedServers({"": ["digits.example:8080"]})

    async def looks() -> list[list[str]]:
        return [sorted(server.name for server in (await named.find_servers())[""]) for _ in range(3)]

    both = ["10.0.0.1:8080", "10.0.0.2:8080"]
    assert asyncio.run(looks()) == [both, both, ["10.0.0.2:8080"]]
