"""Messages between the supervisor and a frontend; see `stoker.control.channel` for the encoding.

Loaded versions of models are identified by numbers that the supervisor assigns, and each load of a replica by its
generation; neither is reused while the supervisor runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from stoker.control.channel import Codec
from stoker.deployment import Deployment
from stoker.keys.keyring import Keys
from stoker.row_isolation import RowIsolation
from stoker.settings.choices import Adjustments, NonFinite
from stoker.settings.pipelines import Pipeline
from stoker.settings.traffic import Canary, Endpoint
from stoker.settings.versions import VersionPolicy, VersionStatus
from stoker.system.certificates import TlsFiles
from stoker.system.logs import LogSettings
from stoker.takeover.comparison import Comparison
from stoker.tensors import Signature


class Sampling(Struct, frozen=True):
    """The choice of traced requests; sent as a message, it applies from then on.

    Attributes:
        ratio: The share of traces beginning here that is sampled, 0 to 1; None if tracing is off.
        models: Ratio by model name, for models with one of their own.
    """

    ratio: float | None
    models: Mapping[str, float | None] = msgspec.field(default_factory=dict)


class ServerRules(Struct, frozen=True):
    """Settings that apply to all services of a server.

    Attributes:
        large_bodies_bytes: Limit of the sum of a frontend's large bodies.
        endpoint: The endpoint whose deployments the services are; None without an endpoint.
        connection_age_s: Age at which a connection is closed with its next answer; 0 for no limit.
        trusts_proxy: Whether deadlines and tiers are taken from headers of gateways.
        tls: What HTTP is spoken over TLS with; None serves without.
        hosts: The names in `Host` that are answered; None answers all.
        management_port: The port with TorchServe's management API; 0 for none.
        keys: The keys of all services that the operator has given; None to use those of the keys folder.
        limits_models: Whether groups of models have limits.
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
    management_port: int = 0
    keys: Keys | None = None
    limits_models: bool = False


@dataclass(frozen=True, slots=True)
class AdminRules:
    """The callers that may load and unload models through the API; see `stoker.gateway.administration.admin_access`.

    Attributes:
        key: The key given by the operator, if any.
        local: Whether the server is reachable from this machine only.
    """

    polls: bool
    needs_key: bool
    key: str | None = field(repr=False)
    local: bool


class GrpcRules(Struct, frozen=True):
    """Where and how a frontend serves gRPC.

    Attributes:
        address: `HOST:PORT`.
        tls: What it is spoken over TLS with; None serves without.
        connection_age_s: How old connections become; 0 for any age.
    """

    address: str
    max_message_bytes: int
    tls: TlsFiles | None
    connection_age_s: float = 0.0


class LaterRules(Struct, frozen=True):
    """The limits of requests that are answered later.

    Attributes:
        folder: The spool, of all frontends.
        budget_bytes: Bytes of all files from which on no request is taken; answers may exceed it.
        keep_s: How long after its arrival a request is answered, and its answer is kept.
        callback_hosts: Names and networks that may be told of answers.
        most_requests: Most requests and answers.
    """

    folder: Path
    budget_bytes: int
    keep_s: float
    callback_hosts: tuple[str, ...] = ()
    most_requests: int = 100_000


class SharedMemoryRules(Struct, frozen=True):
    """The callers that may use tensors in shared memory; see `stoker.gateway.regions.regions.Regions`.

    Attributes:
        needs_admin: Whether registering shared memory requires the admin key.
        anywhere: Whether callers on other machines may use it too.
    """

    needs_admin: bool
    anywhere: bool


class PipelineRules(Struct, frozen=True):
    """Settings of a pipeline, as passed to a frontend.

    Attributes:
        timeout_ms: Requests that are not answered within this time get 504.
        non_finite: How NaN and infinities are written in JSON answers.
    """

    pipeline: Pipeline
    slot: int
    timeout_ms: int
    non_finite: NonFinite


class AskIndex(Struct, frozen=True):
    """A frontend requests the list of models."""

    ticket: int
    ready: bool


class AskEvents(Struct, frozen=True):
    """A frontend requests the events of versions.

    Attributes:
        model: Return events of this model only; None for all.
    """

    ticket: int
    model: str | None = None


class AskLoad(Struct, frozen=True):
    """A frontend requests a model to be loaded.

    Attributes:
        version: A single version to load in addition to the served ones.
        policy: The versions to serve instead of those in the model's settings.
        adjustments: Changes to the model's batching settings; ignored if `version` is given.
    """

    ticket: int
    model: str
    version: int | None = None
    policy: VersionPolicy | None = None
    adjustments: Adjustments = msgspec.field(default_factory=Adjustments)


class AskShift(Struct, frozen=True):
    """A frontend requests new canary weights for the versions of a model."""

    ticket: int
    model: str
    canary: Canary


class AskDefault(Struct, frozen=True):
    """A frontend requests a served version of a model to become the default."""

    ticket: int
    model: str
    version: int


class AskUnload(Struct, frozen=True):
    """A frontend requests a model to be unloaded.

    Attributes:
        version: The version to unload; None for all.
    """

    ticket: int
    model: str
    version: int | None = None


class AskWake(Struct, frozen=True):
    """A frontend requests a version that is loaded on demand; answered when every frontend can score with it.

    Attributes:
        timeout_s: How long the request waits that asks for it.
        caller: Whose request it is: callers take turns.
    """

    ticket: int
    model: str
    version: int
    timeout_s: float
    caller: str = ""


class AskReload(Struct, frozen=True):
    """A frontend requests the server to be replaced by a new one (reload)."""

    ticket: int


class AskTraces(Struct, frozen=True):
    """A frontend requests the trace settings, or changes to them.

    Attributes:
        model: Name of the model; empty for the settings of all models without their own.
        changes: The changes, see `stoker.supervisor.trace_settings.TraceSettings.change`.
    """

    ticket: int
    model: str = ""
    changes: Mapping[str, Any] = msgspec.field(default_factory=dict)


class AskLogs(Struct, frozen=True):
    """A frontend requests the log settings of all processes, or changes to them.

    Attributes:
        changes: Fields of `stoker.system.logs.LogSettings` with their new values; without a format, the one
            that the server was started with.
    """

    ticket: int
    changes: Mapping[str, Any] = msgspec.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AskKeys:
    """A frontend requests the primary keys of the services, for a page that has the token of the sign-in link."""

    ticket: int
    token: str = field(repr=False)


Ask = (
    AskIndex
    | AskEvents
    | AskLoad
    | AskUnload
    | AskWake
    | AskShift
    | AskDefault
    | AskReload
    | AskTraces
    | AskLogs
    | AskKeys
)
"""Requests of a frontend to the supervisor; answered by `Reply` or `Refusal`."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The supervisor has carried out a request.

    Attributes:
        entries: The index, the events, the settings, or the keys; empty for other requests.
    """

    ticket: int
    entries: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)


class Refusal(Struct, frozen=True):
    """The supervisor has refused a request, or failed to carry it out.

    Attributes:
        retry_after_s: When to retry, in whole seconds, or None.
    """

    ticket: int
    status: int
    code: str
    error: str
    retry_after_s: int | None = None


class RoutedVersion(Struct, frozen=True):
    """One version of a `Route`.

    Attributes:
        number: The number of the loaded version that answers for it; None if there is none.
        load_s: How long it is expected to load if it is loaded on demand; 0 if nothing is known.
    """

    version: int
    status: VersionStatus
    number: int | None = None
    load_s: float = 0.0


class Route(Struct, frozen=True):
    """The supervisor announces the versions and the routing of a model, valid from now on.

    Attributes:
        default: The version for requests that name none; None if nothing is served.
        versions: All known versions, including unloaded ones, in ascending order.
        shares: Weights of versions by number, for requests that name no version; empty if all go to the default.
        by: The request attribute that ties a caller to a version; see `stoker.settings.traffic.Canary`.
        shadows: The percentage of rows that are copied to a version, by its number.
    """

    name: str
    default: int | None
    labels: Mapping[str, int]
    versions: tuple[RoutedVersion, ...]
    shares: Mapping[str, int] = msgspec.field(default_factory=dict)
    by: str = ""
    shadows: Mapping[str, int] = msgspec.field(default_factory=dict)


class StartFrontend(Struct, frozen=True):
    """The supervisor's first message, sent once: what to serve. Answered by `Started`.

    Its descriptors are the memory of the metrics, the memory of shared-memory registrations if there are rules for
    them, the frontend's mailbox and those of all frontends if there are several, and the listening sockets.

    Attributes:
        metadata_need_key: Whether metadata, index, statistics and descriptions require a key.
        cors_origins: Origins that may read answers; empty to send no CORS headers.
        title, service_version, path_prefix: How API descriptions name the service; see
            `stoker.gateway.describing.swagger.Naming`.
        grpc: Where and how gRPC is served; None if it is not.
        admin: Who may load and unload models.
        services: The versions of models to serve, each with this frontend's share of its limits.
        shared_memory: Who may use tensors in shared memory; None if nobody.
        later: How requests are kept that are answered later; None if none are.
    """

    page: int
    server: ServerRules
    metrics_need_key: bool
    metadata_need_key: bool
    console: bool
    docs: bool
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
    later: LaterRules | None = None
    log: LogSettings = msgspec.field(default_factory=LogSettings)


class Serve(Struct, frozen=True):
    """The supervisor has loaded a further version; no request goes to it before a `Route` names it."""

    service: Deployment


class AttachReplica(Struct, frozen=True):
    """The supervisor connects a service to a replica, or reconnects it with larger rows.

    Its descriptors are an arena and a doorbell. Answered by `Attached` or `AttachFailed`, or not at all if the
    service has been retired.

    Attributes:
        signature: The layout of the arena's rows.
        place: Index of the replica within the service, from 0.
    """

    number: int
    generation: int
    signature: Signature
    capacity_rows: int
    place: int = 0
    places: int = 1


class DetachReplica(Struct, frozen=True):
    """The supervisor reports that the device process of a replica has ended."""

    generation: int


class IsolationChanged(Struct, frozen=True):
    """The supervisor announces a new finding on whether rows of a service may share batches.

    Attributes:
        isolation: The new finding; the signatures of later `AttachReplica` messages include it too.
    """

    number: int
    isolation: RowIsolation


class Retire(Struct, frozen=True):
    """The supervisor no longer routes requests to a service; answered by `Retired` when it is unused."""

    number: int


class Sleep(Struct, frozen=True):
    """The supervisor unloads a version that is loaded on demand; answered by `Slept` when its replicas are unused.

    The service stays: requests that come from now on wait, and ask for the version again.
    """

    number: int


class Compare(Struct, frozen=True):
    """The supervisor requests a comparison of two versions before one replaces the other; answered by `Compared`.

    Attributes:
        sample: A file with a request for both; None to use the sampled requests.
    """

    ticket: int
    old: int
    new: int
    sample: Path | None = None


class Listen(Struct, frozen=True):
    """The supervisor has attached all replicas: accept connections. Answered by `Listening`."""


class Drain(Struct, frozen=True):
    """The supervisor will stop soon: keep answering, but close each connection with its next answer.

    Attributes:
        port_stays: Whether another server serves on the same sockets: then they are closed at once, and readiness
            does not change. Otherwise the server is not ready any more.
    """

    port_stays: bool = False


class Stop(Struct, frozen=True):
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
    | IsolationChanged
    | Retire
    | Sleep
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


class Started(Struct, frozen=True):
    """A frontend is ready for `AttachReplica` and `Listen`."""


class Listening(Struct, frozen=True):
    """A frontend accepts connections."""


class Attached(Struct, frozen=True):
    """A frontend is connected to a replica, and sends it rows."""

    generation: int


class AttachFailed(Struct, frozen=True):
    """A frontend lacks descriptors or memory for a replica's arena."""

    generation: int


class Outgrown(Struct, frozen=True):
    """Answers were too large for an arena's rows; answered by `AttachReplica` with larger ones."""

    generation: int
    answer_bytes: int


class Retired(Struct, frozen=True):
    """A frontend has released everything it held for a service."""

    number: int


class Slept(Struct, frozen=True):
    """A frontend has left the replicas of a version that is unloaded."""

    number: int


class Compared(Struct, frozen=True):
    """A frontend has compared two versions."""

    ticket: int
    comparison: Comparison


class Stopped(Struct, frozen=True):
    """A frontend has stopped."""

    cut_off: int


News = Started | Listening | Attached | AttachFailed | Outgrown | Retired | Slept | Compared | Stopped
"""Reports of a frontend to the supervisor."""

FromFrontend = News | Ask
"""Messages from a frontend to the supervisor."""

SUPERVISOR_END: Final[Codec[ToFrontend, FromFrontend]] = Codec(ToFrontend, FromFrontend)
FRONTEND_END: Final[Codec[FromFrontend, ToFrontend]] = Codec(FromFrontend, ToFrontend)
