"""What frontends are told of the server and of the services that they serve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stoker.collecting.collection import CollectionSettings
from stoker.keys.keyring import Keys
from stoker.non_finite import WORDS, NonFinite
from stoker.settings.endpoint import Endpoint
from stoker.settings.image_input import ImageInput

__all__ = ["AdminRules", "GrpcRules", "ServerRules", "ServiceRules"]


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
        endpoint: The endpoint whose deployments the services are; None if they were not made for one.
    """

    auth: bool
    token_auth: bool
    keys_dir: Path
    max_body_bytes: int
    max_image_pixels: int
    frontends: int
    endpoint: Endpoint | None = None


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
        certificate: PEM file of the certificate chain; None serves without TLS.
        key: PEM file of its private key.
    """

    address: str
    max_message_bytes: int
    certificate: Path | None
    key: Path | None


@dataclass(frozen=True, slots=True)
class ServiceRules:
    """What a frontend is told of a version of a model that it serves.

    Attributes:
        number: The number of the loaded version.
        name: Name of the model.
        version: The version.
        framework: `onnx`, `tensorflow` or `script`.
        slot: Its slot in the metrics.
        timeout_ms: A request not answered by then gets 504.
        max_queue_wait_ms: How long requests beyond `max_concurrent_requests` wait.
        max_concurrent_requests: Most requests in flight in this frontend; None is without limit.
        description: The operator's words for its description.
        swagger_files: The user's own descriptions by Swagger version.
        keys: The keys that the operator gave; None for those of the files.
        image: How images become its input; None if it takes none.
        collection: What is collected of its requests; None for nothing.
        data_dir: Where that is written.
        non_finite: What becomes of NaN and infinities in the JSON of its answers.
    """

    number: int
    name: str
    version: int
    framework: str
    slot: int
    timeout_ms: int
    max_queue_wait_ms: int
    max_concurrent_requests: int | None = None
    description: str | None = None
    swagger_files: Mapping[str, Path] = field(default_factory=dict)
    keys: Keys | None = None
    image: ImageInput | None = None
    collection: CollectionSettings | None = None
    data_dir: Path | None = None
    non_finite: NonFinite = WORDS
