"""Routing of a router: its settings, and the rules of paths, versions and weights. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from stoker.errors import InvalidSettings, UnknownService
from stoker.settings.readers import listed_texts, number_of, read_path, read_text, setting, text_of
from stoker_cluster.readers import read_object_name, read_traffic

CONNECT_TIMEOUT_MS: Final = 500
"""The timeout of connections to servers, and the delay before a request is retried."""

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


VERSION_HEADER: Final = "azureml-model-deployment"
"""Names a version in a request, and the one that has answered in its answer; as on Azure."""

WHOLE: Final = 10_000
"""The sum of weights, which are hundredths of a percent."""

FRONTENDS: Final = ("callers", "router")
"""HAProxy's names of the callers' port and of the router's own."""

_HUNDREDTHS: Final = 100
# Without a common divisor with WHOLE, and near its golden section: any WHOLE requests in a row meet each number once,
# and those to one version are spread evenly among the others.
_STRIDE: Final = 6181
_READY: Final = "/v2/health/ready"
# Requests that had their last answer 503 in a second; above that a 503 is no chance, and repeating makes it worse.
_MOST_REFUSED_A_SECOND: Final = 5


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a running HAProxy.

    Attributes:
        control: The socket of its runtime API.
        weights: The map from numbers below `WHOLE` to versions.
        state: The map that contains `draining` during a drain.
    """

    control: str
    weights: str
    state: str


def effective_weights(traffic: Mapping[str, float], default: str | None) -> dict[str, int]:
    """Return the weight of each version in hundredths of a percent, without rounding.

    Percentages need not add up to 100: what is left goes to the default version, as on Azure.

    Args:
        default: The default version; None is the first.

    Raises:
        InvalidSettings: There are no versions, the default is none of them, they are more than 100 percent together,
            or one is finer than a hundredth of a percent.
    """
    if not traffic:
        raise InvalidSettings("traffic has no versions; give their percentages, for instance a=80,b=20")
    leading = next(iter(traffic)) if default is None else default
    if leading not in traffic:
        raise InvalidSettings(
            f"traffic has no {leading}, the default version; name all versions, those with 0 too"
        )
    shares = {version: _hundredths(version, share) for version, share in traffic.items()}
    left = WHOLE - sum(shares.values())
    if left < 0:
        raise InvalidSettings(
            f"traffic adds up to {Decimal(WHOLE - left) / _HUNDREDTHS} percent; have at most 100"
        )
    shares[leading] += left
    return shares


def _hundredths(version: str, share: float) -> int:
    # The shortest text that means the number: 33.33, which no float is, is meant as it is written.
    exact = Decimal(str(share)) * _HUNDREDTHS
    if not exact.is_finite() or not 0 <= exact <= WHOLE or exact != int(exact):
        raise InvalidSettings(
            f"traffic of {version} is {share}; have percentages from 0 to 100 with at most two digits after the point"
        )
    return int(exact)


def weight_map(weights: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return the map of a router: ranges of the numbers below `WHOLE`, and the version that gets them."""
    ranges, first = [], 0
    for version, weight in weights.items():
        if weight:
            ranges.append((f"{first}:{first + weight - 1}", version))
        first += weight
    return ranges


def backend_of(version: str) -> str:
    """Return the HAProxy backend of a version."""
    return f"version-{version}" if version else "servers"


def configuration(settings: RouterSettings, files: Files) -> str:
    """Return HAProxy's configuration, without servers: those come and go by its runtime API.

    Each backend has one that always refuses, `hold`, which gets requests only while there is no other. Such a request
    asks again every half a second, and goes to the server that has come meanwhile.
    """
    parts = [_global(settings, files), _defaults(settings), _own_port(settings, files)]
    if settings.traffic is None:
        parts.append(_frontend(settings, files, ["default_backend servers"]))
    else:
        parts += [_counter(), _frontend(settings, files, _choice(settings, files)), _unknown_version()]
    parts += [_backend(settings, version) for version in settings.versions]
    return "\n\n".join(parts) + "\n"


def _section(title: str, lines: list[str]) -> str:
    return "\n".join([title, *(f"  {line}" for line in lines)])


def _global(settings: RouterSettings, files: Files) -> str:
    lines = [
        f"stats socket {files.control} mode 600 level admin expose-fd listeners",
        "log stderr format raw local0 err",
        f"maxconn {settings.max_connections}",
        f"hard-stop-after {_server_timeout_ms(settings) + 5_000}ms",
    ]
    if settings.threads:
        lines.append(f"nbthread {settings.threads}")
    return _section("global", lines)


def _server_timeout_ms(settings: RouterSettings) -> int:
    # The server's own answer, 504, comes first.
    return settings.timeout_ms + 1_000


def _defaults(settings: RouterSettings) -> str:
    retries = math.ceil(settings.hold_s * 1_000 / CONNECT_TIMEOUT_MS)
    return _section(
        "defaults",
        [
            "mode http",
            "log global",
            "option dontlog-normal",
            "balance leastconn",
            f"timeout connect {CONNECT_TIMEOUT_MS}ms",
            "timeout client 60s",
            "timeout http-request 60s",
            "timeout http-keep-alive 75s",
            f"timeout server {_server_timeout_ms(settings)}ms",
            f"timeout queue {settings.max_queue_wait_ms}ms",
            f"retries {retries}",
            "option redispatch 1",
            f"retry-on {' '.join(settings.retry_on)}",
        ],
    )


def _own_port(settings: RouterSettings, files: Files) -> str:
    return _section(
        f"frontend {FRONTENDS[1]}",
        [
            f"bind {settings.host}:{settings.metrics_port}",
            "http-request use-service prometheus-exporter if { path /metrics }",
            f"http-request return status 503 if {{ path /ready }} {_draining(files)}",
            "http-request return status 200 if { path /ready /live }",
            "http-request return status 404",
        ],
    )


def _draining(files: Files) -> str:
    return f"{{ str(draining),map({files.state}) -m found }}"


def _frontend(settings: RouterSettings, files: Files, choice: list[str]) -> str:
    lines = [
        f"bind {settings.host}:{settings.port}",
        # A stopping HAProxy closes idle connections, even if a request is already on its way.
        f"http-after-response set-header connection close if {_draining(files)}",
    ]
    return _section(f"frontend {FRONTENDS[0]}", [*lines, *choice])


def _counter() -> str:
    """The place in the sequence of requests, one for all threads."""
    return _section("backend sequence", ["stick-table type integer size 1 store gpc0"])


def _choice(settings: RouterSettings, files: Files) -> list[str]:
    """By the header, else by the place in the sequence, so that shares are kept exactly and evenly."""
    place = f"sc0_get_gpc0(sequence),mul({_STRIDE}),mod({WHOLE}),map_int({files.weights})"
    lines = [
        f"http-request set-var(txn.version) req.hdr({VERSION_HEADER})",
        "acl chosen var(txn.version) -m found",
        "http-request track-sc0 int(1) table sequence unless chosen",
        "http-request sc-inc-gpc0(0) unless chosen",
        f"http-request set-var(txn.version) {place} unless chosen",
        # It has done its work: to a server of its own endpoint it would mean another one.
        f"http-request del-header {VERSION_HEADER}",
        f"http-response set-header {VERSION_HEADER} %[var(txn.version)]",
    ]
    lines += [
        f"use_backend {backend_of(version)} if {{ var(txn.version) -m str {version} }}"
        for version in settings.versions
    ]
    return [*lines, "default_backend unknown-version"]


def _unknown_version() -> str:
    body = json.dumps({"message": "there is no version of this name", "code": UnknownService.code})
    quoted = body.replace('"', '\\"').replace(" ", "\\ ")
    answer = f"http-request return status 404 content-type application/json string {quoted}"
    return _section("backend unknown-version", [answer])


def _backend(settings: RouterSettings, version: str) -> str:
    lines = ["option httpchk", f"http-check send meth GET uri {_READY}", "http-check expect status 200"]
    if {"503", "empty-response"} & set(settings.retry_on):
        lines += [
            # HAProxy only retries what it had as a whole before it sent the first byte; bodies may come later.
            "option http-buffer-request",
            "stick-table type integer size 1 expire 10s store gpc0_rate(1s)",
            "http-request track-sc1 int(1)",
            f"http-request disable-l7-retry if {{ sc1_gpc0_rate gt {_MOST_REFUSED_A_SECOND} }}",
            "http-response sc-inc-gpc0(1) if { status 503 }",
        ]
    lines.append("server hold 127.0.0.1:1 backup")
    return _section(f"backend {backend_of(version)}", lines)
