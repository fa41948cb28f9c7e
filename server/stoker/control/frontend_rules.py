"""Settings of the server and its services, as passed to frontends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stoker.keys.keyring import Keys
from stoker.settings.choices import NonFinite
from stoker.settings.pipelines import Pipeline
from stoker.settings.traffic import Endpoint
from stoker.system.certificates import TlsFiles

__all__ = [
    "AdminRules",
    "GrpcRules",
    "PipelineRules",
    "Sampling",
    "ServerRules",
    "SharedMemoryRules",
]


@dataclass(frozen=True, slots=True)
class Sampling:
    """Which requests are traced; sent as a message, it applies from then on.

    Attributes:
        ratio: The share of traces beginning here that is sampled, 0 to 1; None if tracing is off.
        models: Ratio by model name, for models with one of their own.
    """

    ratio: float | None
    models: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ServerRules:
    """Settings that apply to all services of a server.

    Attributes:
        auth: Whether callers need a key.
        token_auth: Whether callers need a token.
        keys_dir: The folder of the keys.
        max_body_bytes: Limit of a request's body.
        max_image_pixels: Limit of an image in a request.
        frontends: Number of frontends.
        large_bodies_bytes: Limit of the sum of a frontend's large bodies.
        endpoint: The endpoint whose deployments the services are; None without an endpoint.
        connection_age_s: Age at which a connection is closed with its next answer; 0 for no limit.
        trusts_proxy: Whether deadlines and tiers are taken from headers of gateways.
        access_log_sample: The share of scoring requests that have a line in the log.
        sampling: Which requests are traced; None if traces are sent nowhere.
        tls: What HTTP is spoken over TLS with; None serves without.
        hosts: The names in `Host` that are answered; None answers all.
        keys: The keys of all services that the operator has given; None to use those of the keys folder.
    """

    auth: bool
    token_auth: bool
    keys_dir: Path
    max_body_bytes: int
    max_image_pixels: int
    frontends: int
    large_bodies_bytes: int
    endpoint: Endpoint | None = None
    connection_age_s: float = 0.0
    trusts_proxy: bool = False
    access_log_sample: float = 0.0
    sampling: Sampling | None = None
    tls: TlsFiles | None = None
    hosts: tuple[str, ...] | None = None
    keys: Keys | None = None


@dataclass(frozen=True, slots=True)
class AdminRules:
    """Who may load and unload models through the API; see `stoker.gateway.administration.admin_access`.

    Attributes:
        polls: Whether the server polls the model repository.
        needs_key: Whether a key is needed.
        key: The key given by the operator, if any.
        local: Whether the server is reachable from this machine only.
    """

    polls: bool
    needs_key: bool
    key: str | None = field(repr=False)
    local: bool


@dataclass(frozen=True, slots=True)
class GrpcRules:
    """Where and how a frontend serves gRPC.

    Attributes:
        address: `HOST:PORT`.
        max_message_bytes: Longest message that is received.
        tls: What it is spoken over TLS with; None serves without.
        connection_age_s: How old connections become; 0 for any age.
    """

    address: str
    max_message_bytes: int
    tls: TlsFiles | None
    connection_age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SharedMemoryRules:
    """Who may use tensors in shared memory; see `stoker.gateway.regions.regions.Regions`.

    Attributes:
        needs_admin: Whether registering shared memory requires the admin key.
        anywhere: Whether callers on other machines may use it too.
    """

    needs_admin: bool
    anywhere: bool


@dataclass(frozen=True, slots=True)
class PipelineRules:
    """Settings of a pipeline, as passed to a frontend.

    Attributes:
        pipeline: The pipeline's steps.
        slot: Its slot in the metrics.
        timeout_ms: Requests that are not answered within this time get 504.
        non_finite: How NaN and infinities are written in JSON answers.
    """

    pipeline: Pipeline
    slot: int
    timeout_ms: int
    non_finite: NonFinite
