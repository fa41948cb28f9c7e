"""What the supervisor and a frontend tell each other; see `stoker.control.message_codec` for how.

Loaded versions of models are named by the numbers that the supervisor has for them, and each load of a replica by its
generation; neither is ever used again while the supervisor runs.
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
    ServiceRules,
    SharedMemoryRules,
)
from stoker.control.message_codec import Codec
from stoker.system.log_settings import LogSettings
from stoker.takeover.comparison import Comparison
from stoker.tensors import Signature
from stoker.verdict import Verdict
from stoker.versions import Standing

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
        standing: What has become of it.
        number: The number of the loaded version that answers; None if none does.
    """

    version: int
    standing: Standing
    number: int | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """The supervisor says what the names of a model mean from now on.

    Attributes:
        name: Name of the model.
        default: The version that is meant where none is named; None if nothing is served.
        labels: Versions by label.
        versions: All that is known of versions, those that have been unloaded too, in ascending order.
        shares: The weights by which requests that name no version go to versions, by their numbers; empty if all
            mean the default.
        by: What sticks a caller to a version; see `stoker.settings.takeover.Canary`.
        shadows: By the numbers of versions how many of a hundred rows they get a copy of.
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
    """The supervisor says, first and once, what to serve; answered by `Started`.

    Its descriptors are the memory of the metrics, that of what is registered of callers' shared memory if there are
    rules for it, its mailbox and the way to that of each frontend if there are several, and the listening sockets.

    Attributes:
        page: The frontend's page of the metrics.
        server: What holds for all services.
        metrics_need_key: Whether `/metrics` does.
        metadata_need_key: Whether metadata, index, statistics and descriptions do.
        console: Whether `/console` is there.
        cors_origins: Which origins may read answers; empty to say nothing of it.
        tells_version: Whether answers have the server's version.
        title, service_version, path_prefix: What descriptions call the service; see
            `stoker.gateway.describing.swagger.Naming`.
        grpc: Where and how gRPC is served; None if it is not.
        admin: Who may load and unload models.
        services: What is served.
        models: What the names of models mean.
        only: The model that is meant where a path names none.
        shared_memory: Who may have tensors in shared memory; None if nobody.
        pipelines: The pipelines of models that are served.
        log: What its log has.
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
    services: tuple[ServiceRules, ...]
    models: tuple[Route, ...]
    only: str | None
    shared_memory: SharedMemoryRules | None = None
    pipelines: tuple[PipelineRules, ...] = ()
    log: LogSettings = field(default_factory=LogSettings)


@dataclass(frozen=True, slots=True)
class Serve:
    """The supervisor has a further version; nobody is sent to it before a `Route` names it."""

    service: ServiceRules


@dataclass(frozen=True, slots=True)
class AttachReplica:
    """The supervisor joins a service with a replica, or anew with larger rows.

    Its descriptors are an arena and a doorbell. Answered by `Attached` or `AttachFailed`, or by nothing if the
    service is retired.

    Attributes:
        number: The service.
        generation: The replica.
        signature: How the rows of the arena are laid out.
        capacity_rows: How many there are.
        place: Which of the service's replicas it is, from 0.
        places: How many there are to be.
    """

    number: int
    generation: int
    signature: Signature
    capacity_rows: int
    place: int = 0
    places: int = 1


@dataclass(frozen=True, slots=True)
class DetachReplica:
    """The supervisor says that the device process of a replica has ended."""

    generation: int


@dataclass(frozen=True, slots=True)
class VerdictChanged:
    """The supervisor has been told something new of whether the rows of a service may share batches.

    Attributes:
        number: The service.
        verdict: What is known now; the signatures of later `AttachReplica` have it too.
    """

    number: int
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Retire:
    """The supervisor sends nobody to a service any more; answered by `Retired`."""

    number: int


@dataclass(frozen=True, slots=True)
class Compare:
    """The supervisor wants two versions held against each other before one takes over; answered by `Compared`.

    Attributes:
        ticket: What the answer names.
        old: The number of the version that is served.
        new: That of the other one.
        sample: A file with a request for both; None for the requests that were sampled.
    """

    ticket: int
    old: int
    new: int
    sample: Path | None = None


@dataclass(frozen=True, slots=True)
class Listen:
    """The supervisor has attached what there is: take connections. Answered by `Listening`."""


@dataclass(frozen=True, slots=True)
class Drain:
    """The supervisor will stop soon: answer as ever, and close connections with their answers.

    Attributes:
        port_stays: Whether somebody else serves on the same sockets: they are let go at once, and what was ready
            stays so. Else the server is not ready any more.
    """

    port_stays: bool = False


@dataclass(frozen=True, slots=True)
class Stop:
    """The supervisor wants the last requests answered, and the process ended; answered by `Stopped`.

    Attributes:
        timeout_s: After so long connections are cut off.
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
"""What the supervisor tells a frontend."""


@dataclass(frozen=True, slots=True)
class Started:
    """A frontend can be attached to replicas, and told to listen."""


@dataclass(frozen=True, slots=True)
class Listening:
    """A frontend takes connections."""


@dataclass(frozen=True, slots=True)
class Attached:
    """A frontend scores with a replica."""

    generation: int


@dataclass(frozen=True, slots=True)
class AttachFailed:
    """A frontend has no descriptors or no memory for a replica's arena now."""

    generation: int


@dataclass(frozen=True, slots=True)
class Outgrown:
    """A frontend was given answers that do not fit an arena's rows; answered by `AttachReplica` with larger ones.

    Attributes:
        generation: The replica.
        answer_bytes: The room that its answers should have.
    """

    generation: int
    answer_bytes: int


@dataclass(frozen=True, slots=True)
class Retired:
    """A frontend has nothing left of a service."""

    number: int


@dataclass(frozen=True, slots=True)
class Compared:
    """A frontend has held two versions against each other.

    Attributes:
        ticket: That of the question.
        comparison: What came of it; without requests if there was none to run.
    """

    ticket: int
    comparison: Comparison


@dataclass(frozen=True, slots=True)
class Stopped:
    """A frontend has stopped.

    Attributes:
        cut_off: How many connections had to be cut off.
    """

    cut_off: int


News = Started | Listening | Attached | AttachFailed | Outgrown | Retired | Compared | Stopped
"""What a frontend tells the supervisor of itself."""

FromFrontend = News | Ask
"""What a frontend tells the supervisor, and asks of it."""

SUPERVISOR_END: Final[Codec[ToFrontend, FromFrontend]] = Codec(ToFrontend, FromFrontend)
FRONTEND_END: Final[Codec[FromFrontend, ToFrontend]] = Codec(FromFrontend, ToFrontend)
