"""One served model in a frontend, and the core of scoring that both doors share.

A door passes a body to `score` or `score_soon`; the `Call` made of it goes through a `Dialect` to an `Exchange`,
and back the same way. Nothing here knows HTTP beyond header lines.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Unpack

from stoker.errors import (
    BodyTooLarge,
    DeadlineExceeded,
    DeviceLost,
    ImageTooLarge,
    MethodNotAllowed,
    NotReady,
    OutOfScope,
    OutputTooLarge,
    Overloaded,
    QuotaExceeded,
    RequestError,
    RequestOverQuota,
    StokerError,
    TooManySequences,
    Unauthorized,
)
from stoker.gateway.http.body_budget import LARGE_BODY_BYTES
from stoker.gateway.http.request_ids import RequestIds
from stoker.gateway.http.responses import Respond
from stoker.gateway.rows.exchange import Exchange
from stoker.gateway.rows.failures import device_lost
from stoker.gateway.rows.routing import CHOICES, earliest_end, fewest_rows
from stoker.gateway.scoring.azure_dialect import AzureDialect, Unloaded
from stoker.gateway.scoring.call import Call, Dialect
from stoker.gateway.scoring.fair_turns import LONG_BODY_BYTES, TURN_BYTES, FairTurns, Staged
from stoker.gateway.scoring.image_scoring import content_type_of
from stoker.gateway.scoring.joining_call import JoiningCall
from stoker.gateway.scoring.json_dialects import JsonDialect
from stoker.gateway.scoring.larger_rows import LargerRows
from stoker.gateway.scoring.loaded_dialect import loaded_dialect
from stoker.gateway.scoring.long_body import submit_found
from stoker.gateway.scoring.second_run import submit_again, submitted_with
from stoker.metrics.counters import ModelMetrics
from stoker.placed import NORMAL_TIER
from stoker.settings.choices import WORDS, NonFinite
from stoker.tensors import ScriptForm, Signature
from stoker.wire.script_requests import RequestHead

if TYPE_CHECKING:
    import numpy as np

    from stoker.gateway.rows.answer_cache import AnswerCache
    from stoker.gateway.rows.ticket import Rows, Ticket
    from stoker.gateway.scoring.askers import Asker
    from stoker.gateway.scoring.call import Scorer, UnlockedReader
    from stoker.gateway.scoring.facts import Limits, ServiceFacts, ServiceOptions
    from stoker.gateway.scoring.image_scoring import ImageScoring
    from stoker.gateway.scoring.load_reports import LoadReports
    from stoker.gateway.scoring.parcels import Parcel
    from stoker.keys.credentials import Access

__all__ = ["ImageDialect", "Service", "choose_replica", "count_refused"]


# Which of a model's replicas a request goes to.


def choose_replica(
    exchanges: Sequence[Exchange], clock_ns: Callable[[], int] = time.monotonic_ns
) -> Exchange | None:
    """Choose the exchange for a request; None if there is none.

    Where devices report their queues, three replicas are compared and the one that would be done first with one
    more row is chosen; those without room are skipped. Otherwise it is the one in which this frontend has the
    fewest rows. Of equals the first one is chosen.

    Args:
        exchanges: Those of all replicas.
        clock_ns: `time.monotonic_ns`.
    """
    # A lost exchange stays in the list until its requests have failed, which may submit others in the meantime.
    living = [exchange for exchange in exchanges if not exchange.lost]
    if not living:
        return None
    if living[0].timeliness is None:
        return living[fewest_rows(living)]
    drawn = [exchange for exchange in living if exchange.free_rows] or living
    if len(drawn) > CHOICES:
        drawn = random.sample(drawn, CHOICES)  # chance, not cryptography
    timed = [exchange.timeliness for exchange in drawn if exchange.timeliness is not None]
    if all(one.knows_times() for one in timed):
        return drawn[earliest_end(timed, clock_ns(), 1)]
    return drawn[fewest_rows(drawn)]


# The reasons under which refused requests are counted.


def count_refused(metrics: ModelMetrics, error: StokerError, tier: int) -> None:
    """Count an error answer to a request of a tier."""
    metrics.count_request(error.status)
    if error.refusal is not None:
        metrics.count_refusal(error.refusal.reason, tier)
    reason = _rejection(error)
    if reason is not None:
        metrics.count_rejection(reason)


def _rejection(error: StokerError) -> str | None:
    """Return the reason for `stoker_rejections_total`; None for errors that are not counted there."""
    match error:
        case Overloaded() | TooManySequences():
            return "overloaded"
        case NotReady():
            return "not_ready"
        case DeadlineExceeded():
            return "deadline"
        case Unauthorized() | OutOfScope():
            return "unauthorized"
        case BodyTooLarge() | ImageTooLarge():
            return "body_too_large"
        case QuotaExceeded() | RequestOverQuota():
            return "quota"
        case MethodNotAllowed():
            return None
        case RequestError():
            return "malformed"
        case _:
            return None


# Images in the bodies of Azure's scoring endpoint; JSON is taken as well.


class ImageDialect(JsonDialect):
    """Images, and everything that the JSON dialect of the model accepts; answers are those of that dialect.

    Args:
        name: The model's name.
        images: Reads images.
        numbers: The JSON dialect of the model.
        choose: Returns the exchange for decoded rows; None if no device process has the model.
    """

    wants_head = True

    def __init__(
        self,
        name: str,
        images: ImageScoring,
        numbers: JsonDialect,
        choose: Callable[[], Exchange | None],
    ) -> None:
        super().__init__(name)
        self._images = images
        self._numbers = numbers
        self._choose = choose

    def check_media(self, content_type: bytes) -> None:
        """Accept every type."""

    def reads_long(self, service: Scorer, body: bytes, head: RequestHead | None) -> bool:
        """Whether a body is JSON; images are decoded on threads of their own."""
        del service
        return not self._images.claims(body, head)

    def unlocked_reader(self, body: bytes) -> UnlockedReader | None:
        """As for JSON alone."""
        return self._numbers.unlocked_reader(body)

    def submit(self, call: Call, exchange: Exchange, body: bytes, head: RequestHead | None) -> None:
        """Submit the rows of images once they are decoded, those of JSON at once."""
        if self._images.claims(body, head):
            call.await_rows(exchange)
            self._images.read(body, head, call.check_wanted, partial(self.submit_rows, call))
        else:
            self._numbers.submit(call, exchange, body, head)

    def submit_rows(self, call: Call, rows: Rows | BaseException) -> None:
        """Continue a request whose images were decoded, or could not be."""
        exchange = self._choose()
        if not call.wanted:
            return
        if isinstance(rows, StokerError):
            call.refuse(rows)
        elif isinstance(rows, BaseException):
            call.refuse_for_fault(rows)
        elif exchange is None:
            call.refuse(call.service.not_ready())
        else:
            try:
                exchange.submit(call, rows)
            except StokerError as error:
                call.refuse(error)
            except Exception as error:  # noqa: BLE001  # a fault of ours must not cost the connection
                call.refuse_for_fault(error)

    def encode(self, ticket: Ticket) -> bytes:
        """Return the answer in JSON."""
        return self._numbers.encode(ticket)

    def complete_together(self, calls: Sequence[Call], rows: np.ndarray) -> None:
        """Answer as for JSON."""
        self._numbers.complete_together(calls, rows)


_LARGE_TURN: Final = 36
"""When this many requests arrive in one turn of the loop, they are sent to the device in two halves."""


class Service:
    """A served model: its limits, counters, and the exchanges to the device processes of its replicas.

    Args:
        facts: Its description.
        access: Who may score with it, and read its metadata.
        metrics: Its counters.
        limits: The limits of its requests.
        **options: Parts that most services do not have.

    Attributes:
        exchanges: One per ready replica, ordered by when it was last chosen, the longest ago first.
        exchange: The only exchange, so that it is found without a search; None if there are several or none.
        dialect: The dialect of requests that come without one.
        closes: Whether its answers close their connections.
        arriving: How many bodies of requests for it are being received.
        larger_rows: Runs requests again whose answers do not fit; set by the owner of the exchanges where rows can
            grow.
        codecs: What dialects cache for the loaded model, by class.
        urgency, by_target: The default urgency of its requests, and whether late ones are refused.
        load_reports: Reports its load to balancers; None if that is not set up.
        cache: Cached answers; None if none are kept.
        call_type: The class of its calls; see `AccessLog.watch`.
        quotas: The quotas of callers with limits; None if nobody has a limit.
    """

    def __init__(
        self,
        facts: ServiceFacts,
        access: Access,
        metrics: ModelMetrics,
        limits: Limits,
        **options: Unpack[ServiceOptions],
    ) -> None:
        self.facts, self.access, self.metrics = facts, access, metrics
        self.timeout_ns, self.by_target = limits.timeout_ms * 1_000_000, limits.by_target
        self.max_body_bytes, self.urgency, self.quotas = limits.max_body_bytes, limits.urgency, limits.quotas
        self.images, self.collector = options.get("images"), options.get("collector")
        self.non_finite: NonFinite = options.get("non_finite", WORDS)
        self._long_bodies, self._beside = options.get("long_bodies"), set[Call]()
        self.signature: Signature | None = None
        self.exchanges: list[Exchange] = []
        self.exchange: Exchange | None = None
        self.draining = self.closes = False
        self.dialect: AzureDialect = Unloaded()
        self.larger_rows = LargerRows()
        self.load_reports: LoadReports | None = None
        self.cache: AnswerCache | None = None
        self.codecs: dict[type, Any] = {}
        self.call_type: type[Call] = Call
        self._staged, self._turns = list[Staged](), options.get("turns", FairTurns())
        self.arriving, self._long_bytes, self._turn_comes = 0, 0, False

    @property
    def name(self) -> str:
        """The model's name."""
        return self.facts.name

    @property
    def version(self) -> str:
        """The model's version."""
        return self.facts.version

    @property
    def script(self) -> ScriptForm | None:
        """How the entry script is called, if the model is a script that takes whole bodies."""
        return None if self.signature is None else self.signature.script

    @property
    def ready(self) -> bool:
        """Whether requests can be scored now."""
        return bool(self.exchanges) and not self.draining

    @property
    def idle(self) -> bool:
        """Whether all its requests are answered; bodies that the direct door is receiving are not known here."""
        return (
            not self.arriving
            and not self._staged
            and not self._turns
            and not self._beside
            and (self.images is None or self.images.idle)
            and all(exchange.idle for exchange in self.exchanges)
            and self.larger_rows.idle
        )

    @property
    def leased_rows(self) -> int:
        """Rows held by requests, over all replicas."""
        return sum(exchange.leased_rows for exchange in (*self.exchanges, *self.larger_rows.exchanges))

    def attach(self, exchange: Exchange) -> None:
        """Use this exchange too from now on; all replicas have the same tensors for callers."""
        self.signature = signature = exchange.arena.signature
        self.codecs.clear()
        self.dialect = self._dialect_for(signature)
        outputs = signature.outputs
        self.call_type = JoiningCall if len(outputs) == 1 and not outputs[0].variable else Call
        self.exchanges.append(exchange)
        self._find_only_exchange()

    def _dialect_for(self, signature: Signature) -> AzureDialect:
        """Choose the dialect once, so that requests need not check."""
        dialect = loaded_dialect(self.name, signature, self.non_finite)
        if self.images is None:
            return dialect
        self.images.attach(signature)
        if not isinstance(dialect, JsonDialect):
            return dialect
        return ImageDialect(self.name, self.images, dialect, self.choose)

    def detach(self, exchange: Exchange) -> None:
        """Stop using an exchange whose device process has ended."""
        if exchange in self.exchanges:
            self.exchanges.remove(exchange)
            self._find_only_exchange()
        for call, body in self.larger_rows.lose(exchange):
            if not self.run_elsewhere(call, body):
                call.fail(device_lost())

    def replace(self, old: Exchange, new: Exchange) -> None:
        """Stop submitting to an exchange whose rows are too small; another one was attached in its place."""
        self.exchanges.remove(old)
        self._find_only_exchange()
        self.larger_rows.replace(old, new)

    def run_again(self, call: Call, error: StokerError) -> bool:
        """Run a failed request again, within its `complete`; False if the caller is to get the error."""
        if isinstance(error, DeviceLost):
            return self.run_elsewhere(call)
        if not isinstance(error, OutputTooLarge):
            return False
        exchange = call.exchange
        assert isinstance(exchange, Exchange), "all calls are submitted to exchanges"
        return self.larger_rows.take(call, exchange)

    def run_elsewhere(self, call: Call, body: bytes | None = None) -> bool:
        """Run a request again whose device process has died.

        False if that is not allowed or no other replica is left.

        At most once, for the process may have died of this request. Requests may change more than their answer by
        an entry script or a model that keeps state, so those fail instead.

        Args:
            call: The request.
            body: What it was submitted with, if it is in no arena; otherwise only valid inside its `complete`.
        """
        if self.facts.framework == "script" or (self.signature is not None and self.signature.keeps_state):
            return False
        other = None if call.ran_again else self.least_loaded()
        if other is None or not call.wanted:
            return False
        content = submitted_with(call) if body is None else body
        call.reopen()
        call.ran_again = True
        submit_again(call, other, content)
        return True

    def sweep(self, now_ns: int) -> None:
        """Fail the requests whose deadline has passed; call this every few dozen milliseconds."""
        for call in (*(call for call, *_ in self._turns), *self._beside):
            if call.wanted and call.deadline_ns <= now_ns:
                call.refuse(call.lateness(begun=False))
            if not call.wanted and self._long_bodies is not None:
                self._beside.discard(call)
                self._long_bodies.forget(call)
        for exchange in (*self.exchanges, *self.larger_rows.exchanges):
            exchange.sweep(now_ns)
        self.larger_rows.sweep(now_ns)
        if self.images is not None:
            self.images.sweep(now_ns)

    def leave_exchanges(self) -> None:
        """Stop using all exchanges, and close them; requests in flight are answered with an error."""
        leaving = (*self.exchanges, *self.larger_rows.exchanges)
        # First the list is cleared: no request may be run again in one of the others.
        for exchange in leaving:
            self.detach(exchange)
        for exchange in leaving:
            exchange.close()

    def _find_only_exchange(self) -> None:
        self.exchange = self.exchanges[0] if len(self.exchanges) == 1 else None

    def choose(self) -> Exchange | None:
        """The exchange for the next request; None if no device process has the model."""
        return self.exchange or self.least_loaded()

    def least_loaded(self) -> Exchange | None:
        """The exchange that would be done first; of equals, the one chosen longest ago."""
        chosen = choose_replica(self.exchanges)
        if chosen is not None:
            self.exchanges.remove(chosen)
            self.exchanges.append(chosen)
        return chosen

    def too_large(self) -> BodyTooLarge:
        """The error for a body above the limit."""
        return BodyTooLarge(f"The request body is larger than {self.max_body_bytes / 2**20:.4g} MiB.")

    def count_refusal(self, error: StokerError, tier: int = NORMAL_TIER) -> None:
        """Count an error answer to a scoring request."""
        count_refused(self.metrics, error, tier)

    def score(
        self,
        body: bytes,
        ids: RequestIds | None,
        respond: Respond,
        received_ns: int,
        head: RequestHead | None = None,
        dialect: Dialect | None = None,
        asker: Asker | None = None,
    ) -> Call:
        """Score one request; `respond` is called once, at once or later. Decoding of a long body may wait.

        Args:
            body: The request's body.
            ids: Ids for the answer and the log; None makes fresh ones.
            respond: Receives the answer.
            received_ns: When the body was complete, `time.monotonic_ns`.
            head: Method, query and headers, where the service's dialect needs them.
            dialect: The request's dialect, if it is not the service's.
            asker: Caller, deadline and tier, where they are told apart.
        """
        if self.collector is not None:
            ids = ids or RequestIds()
            respond = self.collector.watch(body, content_type_of(head), ids.request_id, respond)
        call = self.call_type(self, ids, respond, received_ns, dialect)
        if asker:
            asker.put_on(call)
        if len(body) > LONG_BODY_BYTES:
            self._stage(call, body, head)
        else:
            self.submit(call, body, head)
        return call

    def score_soon(
        self, body: bytes, ids: RequestIds | None, respond: Respond, dialect: Dialect | None = None
    ) -> Call:
        """Like `score`, at the end of this turn of the event loop.

        All requests of one turn are decoded together, while the code and the tables of the decoder are in the
        processor's caches, and are sent to the device in one message.
        """
        if self.collector is not None:
            ids = ids or RequestIds()
            respond = self.collector.watch(body, b"", ids.request_id, respond)
        call = self.call_type(self, ids, respond, time.monotonic_ns(), dialect)
        # Inlined from `_stage`: this runs once per request.
        if not self._staged:
            self._await_turn()
        self._staged.append((call, body, None))
        if len(body) > LONG_BODY_BYTES:
            self._long_bytes += len(body)
        return call

    def _stage(self, call: Call, body: bytes, head: RequestHead | None) -> None:
        self._await_turn()
        self._staged.append((call, body, head))
        self._long_bytes += len(body)

    def _await_turn(self) -> None:
        if not self._turn_comes:
            self._turn_comes = True
            asyncio.get_running_loop().call_soon(self._score_staged)

    def _score_staged(self) -> None:
        staged, self._staged = self._staged, []
        long_bytes, self._long_bytes, self._turn_comes = self._long_bytes, 0, False
        if long_bytes > TURN_BYTES or self._turns:
            staged = self._turns.portion(staged)
            if self._turns:
                self._await_turn()
        if len(staged) >= _LARGE_TURN:
            # An idle device should not wait until all of them are decoded: frontend and device then work in
            # parallel.
            half = len(staged) // 2
            self._score_all(staged[:half])
            staged = staged[half:]
        self._score_all(staged)

    def _score_all(self, staged: Sequence[Staged]) -> None:
        """Queue requests, and notify the devices of all of them in one message."""
        for call, body, head in staged:
            if call.wanted:
                self.submit(call, body, head)
        for exchange in self.exchanges:
            exchange.ring()

    def submit(self, call: Call, body: bytes, head: RequestHead | None) -> None:
        """Submit a call of this service's class; if that fails, it is answered with an error."""
        exchange = self.exchange or self.least_loaded()
        if exchange is None:
            call.refuse(self.not_ready())
            return
        if (refused := exchange.refusal(call)) is not None:
            call.refuse(refused)
            return
        dialect = call.dialect or self.dialect
        beside = self._long_bodies if len(body) > LARGE_BODY_BYTES else None
        try:
            if len(body) > LONG_BODY_BYTES:
                call.check_quota()
            if beside is not None and dialect.reads_long(self, body, head):
                self._beside.add(call)
                reader = dialect.unlocked_reader(body)
                beside.read(call, body, head, partial(self._go_on, call, exchange.arena.signature), reader)
            else:
                dialect.submit(call, exchange, body, head)
        except StokerError as error:
            call.refuse(error)
        except Exception as error:  # noqa: BLE001  # a fault of ours must not cost the connection
            call.refuse_for_fault(error)

    def _go_on(self, call: Call, read_for: Signature, read: Parcel | Rows | BaseException) -> None:
        """Submit the decoded content of a long body, unless a pipeline was joined with other models meanwhile."""
        self._beside.discard(call)
        if not call.wanted:
            return
        exchange = self.choose()
        if exchange is None or not exchange.arena.signature.reads_as(read_for):
            call.refuse(self.not_ready())
            return
        submit_found(call, exchange, read)

    def not_ready(self) -> NotReady:
        """Return the error for a request while no device process has the model."""
        return NotReady(f"{self.name} is not ready: it is loading or its device restarts.", retry_after_s=1)
