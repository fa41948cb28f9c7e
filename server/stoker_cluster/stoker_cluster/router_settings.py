"""The settings of a router."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from stoker.errors import InvalidSettings
from stoker.settings.readers import listed_texts, number_of, read_path, read_text, setting, text_of
from stoker_cluster.readers import read_object_name, read_traffic

_HOST_PORT: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9_.-]+)):([0-9]{1,5})", re.ASCII)
_SERVICE: Final = re.compile(
    r"([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/)?[a-z]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII
)
_ADDRESS: Final = re.compile(r"[A-Za-z0-9_.:*-]+", re.ASCII)
_RETRIES: Final = ("conn-failure", "503", "empty-response")
_PORTS: Final = 65_535


def _read_servers(value: Any) -> dict[str, tuple[str, ...]]:
    """Servers as HOST:PORT with commas between them, a list of them, or such by version; `` is the only version."""
    if isinstance(value, Mapping):
        return {read_object_name(name): _addresses(listed) for name, listed in value.items()}
    return {"": _addresses(value)}


def _addresses(value: Any) -> tuple[str, ...]:
    listed = [part for part in value.split(",") if part.strip()] if isinstance(value, str) else value
    if not isinstance(listed, list | tuple) or not all(isinstance(address, str) for address in listed):
        raise ValueError("must be HOST:PORT, several with commas between them, or such lists by version")
    stripped = tuple(dict.fromkeys(address.strip() for address in listed))
    for address in stripped:
        found = _HOST_PORT.fullmatch(address)
        if found is None or not 1 <= int(found[3]) <= _PORTS:
            raise ValueError(f"must have servers as HOST:PORT, which {address} is not")
    return stripped


_read_service: Final = text_of(_SERVICE, "must be a Service as NAME, or as NAMESPACE/NAME")
_read_address: Final = text_of(_ADDRESS, "must be an address to listen on")


def _read_retries(value: Any) -> tuple[str, ...]:
    rule = f"must be of {', '.join(_RETRIES)}, several with commas between them"
    chosen = tuple(dict.fromkeys(listed_texts(value, rule)))
    if not chosen or not set(chosen) <= set(_RETRIES):
        raise ValueError(rule)
    return chosen


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """How a router runs.

    Raises:
        InvalidSettings: Two of them contradict each other; the message says what to do.
    """

    host: str = setting("127.0.0.1", _read_address, "address to listen on", "ADDRESS")
    port: int = setting(8000, number_of(int, 1, _PORTS), "port to listen on")
    metrics_port: int = setting(
        8404, number_of(int, 1, _PORTS), "port of the router's own /metrics, /ready and /live"
    )
    servers: Mapping[str, tuple[str, ...]] | None = setting(
        None,
        _read_servers,
        "servers as HOST:PORT, with commas; a name may stand for several addresses",
        "LIST",
    )
    service: str | None = setting(
        None,
        _read_service,
        "Service in this cluster with the servers as endpoints; of versions, NAME-VERSION",
        "[NAMESPACE/]NAME",
    )
    traffic: Mapping[str, float] | None = setting(
        None, read_traffic, "percentages of the versions: a=80,b=20", "SHARES"
    )
    default_version: str | None = setting(
        None, read_object_name, "version that gets the rest up to 100 (default: the first)", "VERSION"
    )
    timeout_ms: int = setting(
        60_000, number_of(int, 1, 3_600_000), "timeout_ms of the servers; the router times out a second later"
    )
    max_concurrent_requests: int = setting(
        0,
        number_of(int, 0, 65_536),
        "maximum requests of a server at once; others wait (default 0: no limit)",
    )
    max_queue_wait_ms: int = setting(
        500, number_of(int, 1, 3_600_000), "how long they wait before they get 503"
    )
    hold_s: float = setting(
        30.0, number_of(float, 0.5, 3600), "how long requests wait while no server is there"
    )
    retry_on: tuple[str, ...] = setting(
        ("conn-failure", "503"),
        _read_retries,
        "what to retry at another server: conn-failure, 503, empty-response",
        "WHAT",
    )
    max_connections: int = setting(10_000, number_of(int, 1, 1_000_000), "maximum connections of callers")
    threads: int = setting(
        0, number_of(int, 0, 64), "threads of HAProxy; 0 (the default) is one for each core"
    )
    drain_grace_s: float = setting(
        2.0, number_of(float, 0, 3600), "how long it serves after SIGTERM, while /ready fails"
    )
    haproxy: str | None = setting(
        None,
        lambda value: str(read_path(read_text(value))),
        "HAProxy program (default: found on PATH)",
        "FILE",
    )

    def __post_init__(self) -> None:
        for contradiction in _contradictions(self):
            raise InvalidSettings(contradiction)

    @property
    def versions(self) -> tuple[str, ...]:
        """The versions; a single one without a name where there are none."""
        return ("",) if self.traffic is None else tuple(self.traffic)


def _contradictions(settings: RouterSettings) -> Iterator[str]:
    if settings.servers is None and settings.service is None:
        yield "there are no servers; name them with --servers HOST:PORT,…, or in the file of --config"
    if settings.servers is not None and settings.service is not None:
        yield "servers and service are two ways to the same; leave one out"
    if settings.port == settings.metrics_port:
        yield f"port and metrics_port are both {settings.port}; choose two"
    if settings.traffic is None:
        if settings.default_version is not None:
            yield "default_version is one of the versions of traffic; give that too"
        if settings.servers is not None and set(settings.servers) != {""}:
            yield "servers are listed by version; say with traffic which share of the requests each gets"
        return
    if settings.servers is not None and set(settings.servers) != set(settings.traffic):
        yield "servers and traffic must have the same versions, those with 0 percent too"
