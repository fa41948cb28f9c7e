"""The settings of a server that hold for all requests to a frontend."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from stoker.gateway.describing.swagger import Naming
from stoker.gateway.http.requests import AllowedHosts, Cors


class GatewaySettings(Struct, frozen=True):
    """The settings that hold for all requests.

    Attributes:
        keyless: Whether no service asks for keys; the console asks for none then either.
        cors: The origins that may read answers; None to send no CORS headers.
        tells_version: Whether answers name the server's version.
        trusts_proxy: Whether deadlines and tiers are taken from the headers of API gateways.
        hosts: The hosts that requests over HTTP may be for; None for any.
        docs: Whether `/docs` and `/openapi.json` are served.
        management_port: The port with TorchServe's management API; 0 for none.
    """

    keyless: bool = False
    metrics_need_key: bool = False
    metadata_need_key: bool = True
    cors: Cors | None = None
    naming: Naming = msgspec.field(default_factory=Naming)
    tells_version: bool = True
    trusts_proxy: bool = False
    hosts: AllowedHosts | None = None
    docs: bool = True
    management_port: int = 0
