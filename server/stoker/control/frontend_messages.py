"""Messages between the supervisor and a frontend; see `stoker.control.message_codec` for the encoding.

Loaded versions of models are identified by numbers that the supervisor assigns, and each load of a replica by its
generation; neither is reused while the supervisor runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from stoker.control.asks import Ask, Refusal, Reply
from stoker.control.frontend_rules import (
    AdminRules,
    GrpcRules,
    PipelineRules,
    Sampling,
    ServerRules,
    SharedMemoryRules,
)
from stoker.control.message_codec import Codec
from stoker.deployment import Deployment
from stoker.settings.names import VersionStatus
from stoker.system.logs import LogSettings
from stoker.takeover.comparison import Comparison
from stoker.tensors import Signature
from stoker.verdict import Verdict

__all__ = [
    "FRONTEND_END",
    "SUPERVISOR_END",
    "AttachFailed",
    "AttachReplica",
    "Attached",
    "Compare",
    "Compared",
    "DetachReplica",
    "Drain",
    "FromFrontend",
    "Listen",
    "Listening",
    "News",
    "Outgrown",
    "Retire",
    "Retired",
    "Route",
    "RoutedVersion",
    "Serve",
    "StartFrontend",
    "Started",
    "Stop",
    "Stopped",
    "ToFrontend",
    "VerdictChanged",
]


@dataclass(frozen=True, slots=True)
class RoutedVersion:
    """One version of a `Route`.

    Attributes:
        version: The version.
        standing: Its state.
        number: The number of the loaded version that answers for it; None if there is none.
    """

    version: int
    standing: VersionStatus
    number: int | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """The supervisor announces the versions and the routing of a model, valid from now on.

    Attributes:
        name: Name of the model.
        default: The version for requests that name none; None if nothing is served.
        labels: Versions by label.
        versions: All known versions, including unloaded ones, in ascending order.
        shares: Weights of versions by number, for requests that name no version; empty if all go to the default.
        by: The request attribute that ties a caller to a version; see `stoker.settings.traffic.Canary`.
        shadows: The percentage of rows that are copied to a version, by its number.
    """

    name: str
    default: int | None
    labels: Mapping[str, int]
    versions: tuple[RoutedVersion, ...]
    shares: Mapping[str, int] = field(default_factory=dict)
    by: str = ""
    shadows: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StartFrontend:
    """The supervisor's first message, sent once: what to serve. Answered by `Started`.

    Its descriptors are the memory of the metrics, the memory of shared-memory registrations if there are rules for
    them, the frontend's mailbox and those of all frontends if there are several, and the listening sockets.

    Attributes:
        page: The frontend's page of the metrics.
        server: Settings that apply to all services.
        metrics_need_key: Whether `/metrics` requires a key.
        metadata_need_key: Whether metadata, index, statistics and descriptions require a key.
        console: Whether `/console` is served.
        cors_origins: Origins that may read answers; empty to send no CORS headers.
        tells_version: Whether answers include the server's version.
        title, service_version, path_prefix: How API descriptions name the service; see
            `stoker.gateway.describing.swagger.Naming`.
        grpc: Where and how gRPC is served; None if it is not.
        admin: Who may load and unload models.
        services: The versions of models to serve, each with this frontend's share of its limits.
        models: The routing of each model.
        only: The model for paths that name none.
        shared_memory: Who may use tensors in shared memory; None if nobody.
        pipelines: The pipelines to serve.
        log: Its log settings.
    """

    page: int
    server: ServerRules
    metrics_need_key: bool
    metadata_need_key: bool
    console: bool
    cors_origins: tuple[str, ...]
    tells_version: bool
    title: str | None
    service_version: str
    path_prefix: str
    grpc: GrpcRules | None
    admin: AdminRules
    services: tuple[Deployment, ...]
    models: tuple[Route, ...]
    only: str | None
    shared_memory: SharedMemoryRules | None = None
    pipelines: tuple[PipelineRules, ...] = ()
    log: LogSettings = field(default_factory=LogSettings)


@dataclass(frozen=True, slots=True)
class Serve:
    """The supervisor has loaded a further version; no request goes to it before a `Route` names it."""

    service: Deployment


@dataclass(frozen=True, slots=True)
class AttachReplica:
    """The supervisor connects a service to a replica, or reconnects it with larger rows.

    Its descriptors are an arena and a doorbell. Answered by `Attached` or `AttachFailed`, or not at all if the
    service has been retired.

    Attributes:
        number: The number of the service.
        generation: The generation of the replica.
        signature: The layout of the arena's rows.
        capacity_rows: Number of rows in the arena.
        place: Index of the replica within the service, from 0.
        places: Intended number of replicas.
    """

    number: int
    generation: int
    signature: Signature
    capacity_rows: int
    place: int = 0
    places: int = 1


@dataclass(frozen=True, slots=True)
class DetachReplica:
    """The supervisor reports that the device process of a replica has ended."""

    generation: int


@dataclass(frozen=True, slots=True)
class VerdictChanged:
    """The supervisor announces a new verdict on whether rows of a service may share batches.

    Attributes:
        number: The number of the service.
        verdict: The new verdict; the signatures of later `AttachReplica` messages include it too.
    """

    number: int
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Retire:
    """The supervisor no longer routes requests to a service; answered by `Retired` when it is unused."""

    number: int


@dataclass(frozen=True, slots=True)
class Compare:
    """The supervisor requests a comparison of two versions before one replaces the other; answered by `Compared`.

    Attributes:
        ticket: Identifies the request in the answer.
        old: The number of the served version.
        new: The number of the new version.
        sample: A file with a request for both; None to use the sampled requests.
    """

    ticket: int
    old: int
    new: int
    sample: Path | None = None


@dataclass(frozen=True, slots=True)
class Listen:
    """The supervisor has attached all replicas: accept connections. Answered by `Listening`."""


@dataclass(frozen=True, slots=True)
class Drain:
    """The supervisor will stop soon: keep answering, but close each connection with its next answer.

    Attributes:
        port_stays: Whether another server serves on the same sockets: then they are closed at once, and readiness
            does not change. Otherwise the server is not ready any more.
    """

    port_stays: bool = False


@dataclass(frozen=True, slots=True)
class Stop:
    """The supervisor requests that the frontend answers its last requests and ends; answered by `Stopped`.

    Attributes:
        timeout_s: Connections still open after this time are cut off.
    """

    timeout_s: float


ToFrontend = (
    StartFrontend
    | Serve
    | AttachReplica
    | DetachReplica
    | Route
    | VerdictChanged
    | Retire
    | Compare
    | Listen
    | Drain
    | Stop
    | Reply
    | Refusal
    | Sampling
    | LogSettings
)
"""Messages from the supervisor to a frontend."""


@dataclass(frozen=True, slots=True)
class Started:
    """A frontend is ready for `AttachReplica` and `Listen`."""


@dataclass(frozen=True, slots=True)
class Listening:
    """A frontend accepts connections."""


@dataclass(frozen=True, slots=True)
class Attached:
    """A frontend is connected to a replica, and sends it rows."""

    generation: int


@dataclass(frozen=True, slots=True)
class AttachFailed:
    """A frontend lacks descriptors or memory for a replica's arena."""

    generation: int


@dataclass(frozen=True, slots=True)
class Outgrown:
    """Answers were too large for an arena's rows; answered by `AttachReplica` with larger ones.

    Attributes:
        generation: The generation of the replica.
        answer_bytes: Number of bytes that an answer needs.
    """

    generation: int
    answer_bytes: int


@dataclass(frozen=True, slots=True)
class Retired:
    """A frontend has released everything it held for a service."""

    number: int


@dataclass(frozen=True, slots=True)
class Compared:
    """A frontend has compared two versions.

    Attributes:
        ticket: The ticket of the request.
        comparison: The result; without requests if there were none to run.
    """

    ticket: int
    comparison: Comparison


@dataclass(frozen=True, slots=True)
class Stopped:
    """A frontend has stopped.

    Attributes:
        cut_off: Number of connections that had to be cut off.
    """

    cut_off: int


News = Started | Listening | Attached | AttachFailed | Outgrown | Retired | Compared | Stopped
"""Reports of a frontend to the supervisor."""

FromFrontend = News | Ask
"""Messages from a frontend to the supervisor."""

SUPERVISOR_END: Final[Codec[ToFrontend, FromFrontend]] = Codec(ToFrontend, FromFrontend)
FRONTEND_END: Final[Codec[FromFrontend, ToFrontend]] = Codec(FromFrontend, ToFrontend)
