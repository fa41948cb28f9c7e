"""The state of one frontend, which all protocols share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stoker.gateway.direct_targets import DirectTargets
from stoker.gateway.gateway_settings import GatewaySettings
from stoker.gateway.http.body_budget import BodyBudget
from stoker.gateway.http.request_ids import ids_of_refused
from stoker.gateway.model_directory import ModelDirectory
from stoker.gateway.readiness import Readiness
from stoker.gateway.scoring.service import Service
from stoker.gateway.scoring.streams import ScriptStreams
from stoker.gateway.served_models import ServedModel
from stoker.metrics.history import Past
from stoker.metrics.journal import Journal
from stoker.metrics.load import LoadMeter
from stoker.metrics.memory import MetricMemory

if TYPE_CHECKING:
    from stoker.errors import StokerError
    from stoker.gateway.administration import Administration
    from stoker.gateway.later.keeping import Later
    from stoker.gateway.regions.regions import Regions
    from stoker.gateway.rows.urgency import Quotas
    from stoker.gateway.scoring.observers import Observers


@dataclass
class Gateway:
    """The models of one frontend, and the parts that their requests share.

    Attributes:
        past: The counters of the last minutes, for the console; None where there is no console.
        journal: Records of remarkable requests, for the console; None where there is no console.
        administration: Loads and unloads models; set once by the frontend.
        observers: Notified of answered requests (access log, traces); None without any. Set once by the frontend.
        quotas: The quotas of callers and models with limits; None where nobody has a named key, and no model a limit.
        regions: Shared memory of callers; None where it is off. Set once by the frontend.
        later: Keeps requests that are answered later; None where none are. Set once by the frontend.
        streams: Receives answers piece by piece; None until the first request asks for one.
        targets: The request targets that the fast path answers.
        load: Reads the load of the models, for the metrics.
    """

    directory: ModelDirectory
    metrics: MetricMemory
    settings: GatewaySettings = field(default_factory=GatewaySettings)
    past: Past | None = None
    journal: Journal | None = None
    bodies: BodyBudget = field(default_factory=BodyBudget)
    administration: Administration | None = None
    observers: Observers | None = None
    quotas: Quotas | None = None
    regions: Regions | None = None
    later: Later | None = None
    streams: ScriptStreams | None = None
    readiness: Readiness = field(default_factory=Readiness)
    targets: DirectTargets = field(init=False)
    load: LoadMeter = field(init=False)

    def __post_init__(self) -> None:
        self.targets = DirectTargets(self.directory)
        self.load = LoadMeter(self.metrics)

    def route(self, name: str, model: ServedModel) -> None:
        """Replace the versions of a model; a model without versions is removed."""
        if self.directory.route(name, model):
            self.targets.update(self.directory)
        self.readiness.notify()

    def check_ready(self) -> None:
        """Raise NotReady, with the reason, unless every service can score."""
        self.readiness.check()
        self.directory.check_ready()

    def report_refusal(self, service: Service, headers: Mapping[bytes, bytes], error: StokerError) -> None:
        """Count a request that is refused before it is scored, and notify the observers."""
        service.count_refusal(error)
        if self.observers is not None:
            self.observers.record_refusal(service, ids_of_refused(headers), error)

    def flush_metrics(self) -> None:
        """Write the times of all answers of this frontend into the shared counters, before these are read."""
        for service in self.directory.all_services:
            service.metrics.flush()

    def open_streams(self) -> ScriptStreams:
        """Return the receiver of streamed answers; it is opened by the first call."""
        self.streams = self.streams or ScriptStreams()
        return self.streams

    def close(self) -> None:
        """Stop telling observers of requests, and stop receiving streamed answers."""
        if self.observers is not None:
            self.observers.close()
        if self.streams is not None:
            self.streams.close()
