"""What frontends are told of the server and of the services that they serve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stoker.hosting import Hosting
from stoker.keys.keyring import Keys
from stoker.non_finite import NonFinite
from stoker.pipelines.definition import Pipeline
from stoker.settings.endpoint import Endpoint
from stoker.system.certificates import TlsFiles
from stoker.terms import Terms

__all__ = [
    "AdminRules",
    "GrpcRules",
    "PipelineRules",
    "Sampling",
    "ServerRules",
    "ServiceRules",
    "SharedMemoryRules",
]


@dataclass(frozen=True, slots=True)
class Sampling:
    """Which requests are traced; as a message: from now on.

    Attributes:
        ratio: The share of the traces beginning here that are kept, 0 to 1; None if nothing is traced.
        models: The same for models that have one of their own, by name.
    """

    ratio: float | None
    models: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ServerRules:
    """What holds for all services of a server.

    Attributes:
        auth: Whether callers need a key.
        token_auth: Whether callers need a token.
        keys_dir: The folder of the keys.
        max_body_bytes: Longest body of a request.
        max_image_pixels: Largest image of a request.
        frontends: How many frontends there are.
        large_bodies_bytes: What the large bodies of a frontend may add up to.
        endpoint: The endpoint whose deployments the services are; None if they were not made for one.
        connection_age_s: How old connections become before their next answer is their last; 0 for any age.
        trusts_proxy: Whether deadlines and tiers are taken from headers of gateways.
        access_log_sample: The share of scoring requests that have a line in the log.
        sampling: Which requests are traced; None if traces are sent nowhere.
        tls: What HTTP is spoken over TLS with; None serves without.
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


@dataclass(frozen=True, slots=True)
class AdminRules:
    """Who may load and unload models through the API; see `stoker.gateway.administration.admin_access`.

    Attributes:
        polls: Whether the server looks for models by itself.
        needs_key: Whether a key is needed.
        key: The key, if the operator gave one.
        local: Whether only this machine can reach the server.
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
    """Who may have tensors in shared memory; see `stoker.gateway.regions.regions.Regions`.

    Attributes:
        needs_admin: Whether registering it takes the admin key.
        anywhere: Whether callers on other machines may use it, as the server's own may.
    """

    needs_admin: bool
    anywhere: bool


@dataclass(frozen=True, slots=True)
class PipelineRules:
    """What a frontend is told of a pipeline that it serves.

    Attributes:
        pipeline: Its steps.
        slot: Its slot in the metrics.
        timeout_ms: A request that is not answered by then gets 504.
        non_finite: What becomes of NaN and infinities in the JSON of its answers.
        keys: The keys that the operator gave; None for those of the files.
    """

    pipeline: Pipeline
    slot: int
    timeout_ms: int
    non_finite: NonFinite
    keys: Keys | None = None


@dataclass(frozen=True, slots=True)
class ServiceRules:
    """What a frontend is told of a version of a model that it serves.

    Attributes:
        number: The number of the loaded version.
        name: Name of the model.
        version: The version.
        framework: `onnx`, `tensorflow` or `script`.
        slot: Its slot in the metrics.
        terms: What its requests are allowed, and what is told of it: this frontend's share.
        hosting: Where it runs, and in what batches.
        keys: The keys that the operator gave; None for those of the files.
    """

    number: int
    name: str
    version: int
    framework: str
    slot: int
    terms: Terms
    hosting: Hosting
    keys: Keys | None = None
