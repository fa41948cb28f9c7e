"""One served model in a frontend, and the core of scoring that both paths share.

A protocol passes a body to `score` or `score_soon`; the `Call` made of it goes through a `Dialect` to an `Exchange`,
and back the same way. Nothing here knows HTTP beyond header lines.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from stoker.errors import BodyTooLarge, DeviceLost, OutputTooLarge, StokerError
from stoker.gateway.http.body_budget import LARGE_BODY_BYTES
from stoker.gateway.http.request_ids import RequestIds
from stoker.gateway.http.responses import Respond
from stoker.gateway.readiness import Readiness
from stoker.gateway.rows.exchange import device_lost
from stoker.gateway.rows.ticket import Exchange
from stoker.gateway.scoring.call import Call, Dialect, JoiningCall, ServiceBase
from stoker.gateway.scoring.dialect_choice import loaded_dialect
from stoker.gateway.scoring.dialects import AzureDialect, JsonDialect, Unloaded
from stoker.gateway.scoring.images import ImageDialect, content_type_of
from stoker.gateway.scoring.long_bodies import BodiesInDecoding, submit_decoded_body
from stoker.gateway.scoring.replicas import Replicas
from stoker.gateway.scoring.service_facts import Limits, ServiceFacts
from stoker.gateway.scoring.staging import LONG_BODY_BYTES, DecodeQueue, StagedCall, Staging
from stoker.keys.callers import DEFAULT
from stoker.metrics.counters import ModelMetrics
from stoker.script_form import ScriptForm
from stoker.tensors import Signature
from stoker.wire.script_requests import RequestHead

if TYPE_CHECKING:
    from stoker.gateway.rows.ticket import Rows
    from stoker.gateway.scoring.call_options import CallOptions
    from stoker.gateway.scoring.collector import Collector
    from stoker.gateway.scoring.images import ImageScoring
    from stoker.gateway.scoring.load_reports import LoadReports
    from stoker.gateway.scoring.long_bodies import LongBodies
    from stoker.gateway.scoring.on_demand import OnDemand
    from stoker.gateway.scoring.parcels import Parcel
    from stoker.keys.access import Access


class ServiceOptions(TypedDict, total=False):
    """Parts that most services do not have.

    Attributes:
        long_bodies: Decodes bodies above 1 MiB beside the event loop; if absent, they are decoded on it.
        turns: Decides in which order bodies are decoded; by default short ones first.
    """

    images: ImageScoring | None
    collector: Collector | None
    long_bodies: LongBodies | None
    turns: DecodeQueue


class Service(ServiceBase):
    """A served model: its limits, counters, and the exchanges to the device processes of its replicas.

    Attributes:
        readiness: Its frontend's; its own until it is added to one.
        staging: The requests whose bodies are being received, wait for a turn of the event loop, or are decoded.
        replicas: The exchanges to the device processes that have the model.
        on_demand: The requests that wait until the model is loaded; None if it is always loaded.
    """

    def __init__(
        self,
        facts: ServiceFacts,
        access: Access,
        metrics: ModelMetrics,
        limits: Limits,
        **options: Unpack[ServiceOptions],
    ) -> None:
        self.facts = facts
        self.access = access
        self.metrics = metrics
        self.limits = limits
        self.images = options.get("images")
        self.collector = options.get("collector")
        self.codecs: dict[type, Any] = {}
        self.signature: Signature | None = None
        self.replicas = Replicas()
        self.readiness = Readiness()
        self.dialect: AzureDialect = Unloaded()
        self.load_reports: LoadReports | None = None
        self.on_demand: OnDemand | None = None
        self.call_type: type[Call] = Call
        self.staging = Staging(
            options.get("turns", DecodeQueue()), self._score_all, BodiesInDecoding(options.get("long_bodies"))
        )

    @property
    def script(self) -> ScriptForm | None:
        """How the entry script is called, if the model is a script that takes whole bodies."""
        return None if self.signature is None else self.signature.script

    @property
    def exchanges(self) -> list[Exchange]:
        """The exchanges of its ready replicas."""
        return self.replicas.exchanges

    @property
    def ready(self) -> bool:
        """Whether requests can be scored now."""
        return bool(self.exchanges) and not self.readiness.draining

    @property
    def idle(self) -> bool:
        """Whether all its requests are answered; bodies that the fast path is receiving are not known here."""
        return (
            self.staging.idle
            and (self.images is None or self.images.idle)
            and all(exchange.idle for exchange in self.exchanges)
            and self.replicas.larger_rows.idle
            and (self.on_demand is None or self.on_demand.idle)
        )

    @property
    def is_dormant(self) -> bool:
        """Whether its model is not loaded, and nobody waits for it: then there is nothing to look after."""
        return self.on_demand is not None and not self.exchanges and self.on_demand.idle

    @property
    def has_left(self) -> bool:
        """Whether the last requests in an unloaded model's device processes are answered."""
        leaving = () if self.on_demand is None else self.on_demand.leaving
        return (
            self.staging.decoding.idle
            and (self.images is None or self.images.idle)
            and all(exchange.idle for exchange in leaving)
            and self.replicas.larger_rows.idle
        )

    def _all_exchanges(self) -> Iterator[Exchange]:
        yield from self.exchanges
        yield from self.replicas.larger_rows.exchanges
        if self.on_demand is not None:
            yield from self.on_demand.leaving

    @property
    def leased_rows(self) -> int:
        """Rows held by requests, over all replicas."""
        return sum(exchange.leased_rows for exchange in self._all_exchanges())

    def attach(self, exchange: Exchange) -> None:
        """Use this exchange too from now on; all replicas have the same tensors for callers."""
        self.signature = signature = exchange.signature
        self.codecs.clear()
        self.dialect = self._dialect_for(signature)
        outputs = signature.outputs
        self.call_type = JoiningCall if len(outputs) == 1 and not outputs[0].variable else Call
        self.replicas.add(exchange)
        if self.on_demand is not None:
            asyncio.get_running_loop().call_soon(self.on_demand.release)

    def sleep(self) -> None:
        """Give the device processes no further requests: they finish those that they have."""
        assert self.on_demand is not None, "others are retired"
        self.on_demand.leaving += self.replicas.clear()

    async def learn_signature(self, caller: str = DEFAULT.name) -> int:
        """Have a model loaded whose tensors are not known, because it is loaded on demand and never was.

        Returns:
            How many nanoseconds that took; 0 if they are known.

        Raises:
            StokerError: It cannot be loaded now.
        """
        if self.signature is None and self.on_demand is not None:
            return await self.on_demand.load(self.limits.timeout_ns, caller)
        return 0

    def _dialect_for(self, signature: Signature) -> AzureDialect:
        """Choose the dialect once, so that requests need not check."""
        dialect = loaded_dialect(self.name, signature, self.facts.non_finite)
        if self.images is None:
            return dialect
        self.images.attach(signature)
        if not isinstance(dialect, JsonDialect):
            return dialect
        return ImageDialect(self.name, self.images, dialect, self.choose)

    def detach(self, exchange: Exchange) -> None:
        """Stop using an exchange whose device process has ended."""
        is_ready = self.replicas.remove(exchange)
        if not is_ready and self.on_demand is not None and exchange in self.on_demand.leaving:
            self.on_demand.leaving.remove(exchange)
        for call, body in self.replicas.larger_rows.disconnect(exchange):
            if not self.run_elsewhere(call, body):
                call.fail(device_lost())

    def replace(self, old: Exchange, new: Exchange) -> None:
        """Stop submitting to an exchange whose rows are too small; another one was attached in its place."""
        self.replicas.remove(old)
        self.replicas.larger_rows.replace(old, new)

    def run_again(self, call: Call, error: StokerError) -> bool:
        """Run a failed request again, within its `complete`; False if the caller is to get the error."""
        if isinstance(error, DeviceLost):
            return self.run_elsewhere(call)
        if not isinstance(error, OutputTooLarge):
            return False
        return self.replicas.larger_rows.run_again(call, call.exchange)

    def run_elsewhere(self, call: Call, body: bytes | None = None) -> bool:
        """Run a request again whose device process has died.

        False if that is not allowed or no other replica is left.

        At most once, for the process may have died of this request. Requests may change more than their answer by
        an entry script or a model that keeps state, so those fail instead.

        Args:
            body: What it was submitted with, if it is in no arena; otherwise only valid inside its `complete`.
        """
        if self.facts.framework == "script" or (self.signature is not None and self.signature.keeps_state):
            return False
        other = None if call.was_rerun else self.replicas.least_loaded()
        if other is None or not call.is_awaited:
            return False
        content = call.submission() if body is None else body
        call.reopen()
        call.was_rerun = True
        call.resubmit(other, content)
        return True

    def sweep(self, now_ns: int) -> None:
        """Fail the requests whose deadline has passed; call this every few dozen milliseconds."""
        for call in self.staging.late_calls:
            if call.is_awaited and call.deadline_ns <= now_ns:
                call.refuse(call.timeout_error(begun=False))
        self.staging.decoding.sweep()
        for exchange in (*self.exchanges, *self.replicas.larger_rows.exchanges):
            exchange.sweep(now_ns)
        self.replicas.larger_rows.sweep(now_ns)
        if self.on_demand is not None:
            self.on_demand.sweep(now_ns)
        if self.images is not None:
            self.images.sweep(now_ns)

    def leave_exchanges(self) -> None:
        """Stop using all exchanges, and close them; requests in flight are answered with an error."""
        leaving = tuple(self._all_exchanges())
        # First the list is cleared: no request may be run again in one of the others.
        for exchange in leaving:
            self.detach(exchange)
        for exchange in leaving:
            exchange.close()

    def choose(self) -> Exchange | None:
        """The exchange for a request that has begun; None if no device process has the model."""
        leaving = None if self.on_demand is None else next(iter(self.on_demand.leaving), None)
        return self.replicas.only or self.replicas.least_loaded() or leaving

    def too_large(self) -> BodyTooLarge:
        """The error for a body above the limit."""
        return BodyTooLarge(f"The request body is larger than {self.limits.max_body_bytes / 2**20:.4g} MiB.")

    def score(
        self,
        body: bytes,
        ids: RequestIds | None,
        respond: Respond,
        received_ns: int,
        head: RequestHead | None = None,
        dialect: Dialect | None = None,
        options: CallOptions | None = None,
    ) -> Call:
        """Score one request; `respond` is called once, at once or later. Decoding of a long body may wait.

        Args:
            ids: Ids for the answer and the log; None makes fresh ones.
            head: Method, query and headers, where the service's dialect needs them.
        """
        if self.collector is not None:
            ids = ids or RequestIds()
            respond = self.collector.observe(body, content_type_of(head), ids.request_id, respond)
        call = self.call_type(self, ids, respond, received_ns, dialect)
        if options:
            options.apply_to(call)
        if len(body) > LONG_BODY_BYTES:
            self.staging.add(call, body, head)
        else:
            self.submit(call, body, head)
        return call

    def score_soon(
        self, body: bytes, ids: RequestIds | None, respond: Respond, dialect: Dialect | None = None
    ) -> Call:
        """Like `score`, at the end of this turn of the event loop; see `Staging`."""
        if self.collector is not None:
            ids = ids or RequestIds()
            respond = self.collector.observe(body, b"", ids.request_id, respond)
        call = self.call_type(self, ids, respond, time.monotonic_ns(), dialect)
        self.staging.add(call, body, None)
        return call

    def submit_lone(self) -> None:
        """Submit the request that `score_soon` has staged now, if its row is likely to remain alone."""
        exchange = self.replicas.only
        if exchange is not None and exchange.expects_lone_row:
            self.staging.score_now()

    def _score_all(self, staged: Sequence[StagedCall]) -> None:
        """Queue requests, and notify the devices of all of them in one message."""
        for call, body, head in staged:
            if call.is_awaited:
                self.submit(call, body, head)
        for exchange in self.replicas.exchanges:
            exchange.ring()

    def submit(self, call: Call, body: bytes, head: RequestHead | None) -> None:
        """Submit a call of this service's class; if that fails, it is answered with an error."""
        replicas = self.replicas
        exchange = replicas.only or replicas.least_loaded()
        if exchange is None:
            self._await_model(call, body, head)
            return
        if (refused := exchange.refusal(call)) is not None:
            call.refuse(refused)
            return
        dialect = call.dialect or self.dialect
        try:
            if len(body) > LONG_BODY_BYTES:
                call.check_quota()
            if (
                len(body) > LARGE_BODY_BYTES
                and self.staging.decoding.is_possible
                and dialect.blocks_on_long(self, body, head)
            ):
                go_on = partial(self._go_on, call, exchange.signature)
                self.staging.decoding.read(call, body, head, go_on, dialect.unlocked_decoder(body))
            else:
                dialect.submit(call, exchange, body, head)
        except StokerError as error:
            call.refuse(error)
        except Exception as error:  # noqa: BLE001  # a fault of ours must not cost the connection
            call.refuse_for_fault(error)

    def _await_model(self, call: Call, body: bytes, head: RequestHead | None) -> None:
        """Hold a request while no device process has the model, if it is loaded on demand; else refuse it."""
        if self.on_demand is None:
            call.refuse(self.not_ready())
        else:
            timeout_ns = (call.dialect or self.dialect).timeout_ns(self, body)
            self.on_demand.hold(call, body, head, timeout_ns)

    def _go_on(self, call: Call, read_for: Signature, read: Parcel | Rows | BaseException) -> None:
        """Submit the decoded content of a long body, unless a pipeline was joined with other models meanwhile."""
        if not call.is_awaited:
            return
        exchange = self.choose()
        if exchange is None or not exchange.signature.reads_as(read_for):
            call.refuse(self.not_ready())
            return
        submit_decoded_body(call, exchange, read)
