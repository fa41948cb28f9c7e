"""HAProxy's configuration for a router: paths, versions and weights. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from stoker.errors import UnknownService
from stoker_cluster.router_settings import RouterSettings
from stoker_cluster.traffic_shares import WHOLE

CONNECT_TIMEOUT_MS: Final = 500
"""The timeout of connections to servers, and the delay before a request is retried."""


VERSION_HEADER: Final = "azureml-model-deployment"
"""Names a version in a request, and the one that has answered in its answer; as on Azure."""

FRONTENDS: Final = ("callers", "router")
"""HAProxy's names of the callers' port and of the router's own."""

# Without a common divisor with WHOLE, and near its golden section: any WHOLE requests in a row meet each number once,
# and those to one version are spread evenly among the others.
_STRIDE: Final = 6181
_READY: Final = "/v2/health/ready"
# Requests that had their last answer 503 in a second; above that a 503 is no chance, and repeating makes it worse.
_MOST_REFUSED_A_SECOND: Final = 5


class Files(Struct, frozen=True):
    """The files of a running HAProxy.

    Attributes:
        control: The socket of its runtime API.
        weights: The map from numbers below `WHOLE` to versions.
        state: The map that contains `draining` during a drain.
    """

    control: str
    weights: str
    state: str


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
