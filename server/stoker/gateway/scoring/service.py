"""One served model as a frontend sees it, and the core of scoring that both doors share.

decode -> lease and submit -> (the device) -> encode -> respond. Nothing here knows HTTP beyond header lines.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

import numpy as np
import simdjson

from stoker.errors import (
    BodyTooLarge,
    DeadlineExceeded,
    ImageTooLarge,
    MethodNotAllowed,
    NotReady,
    Overloaded,
    RequestError,
    StokerError,
    Unauthorized,
    UnsupportedEncoding,
)
from stoker.gateway.http.answers import Respond
from stoker.gateway.http.request_ids import RequestIds
from stoker.gateway.rows.exchange import Exchange, device_lost
from stoker.gateway.rows.ticket import Rows, Ticket
from stoker.gateway.scoring.call import Call, JoiningCall
from stoker.gateway.scoring.image_scoring import ImageScoring, content_type_of
from stoker.gateway.scoring.larger_rows import LargerRows
from stoker.gateway.scoring.second_run import submit_again, submitted_with
from stoker.metrics import ModelMetrics
from stoker.non_finite import WORDS, NonFinite
from stoker.script_form import ScriptForm
from stoker.tensors import ModelTensors, Signature
from stoker.wire.column_names import ColumnNames
from stoker.wire.envelope import RequestHead, ScriptRequest
from stoker.wire.images import is_media
from stoker.wire.json_bodies import check_text
from stoker.wire.merging import row_count
from stoker.wire.packed import pack, unpack
from stoker.wire.scoring import ScoringDecoder, encode_each, encode_outputs, encode_texts
from stoker.wire.tensor_json import decode_tensors, encode_tensors

if TYPE_CHECKING:
    from stoker.gateway.scoring.collector import Collector
    from stoker.gateway.scoring.dialect import Dialect
    from stoker.gateway.scoring.facts import Limits, ServiceFacts
    from stoker.keys.access import Access

__all__ = ["Service", "ServiceOptions"]

_LARGE_TURN: Final = 36
"""So many requests that arrive in one turn of the loop go to the device in two halves."""


class ServiceOptions(TypedDict, total=False):
    """What most services have not.

    Attributes:
        images: Reads images.
        collector: Keeps what is collected of the requests.
        non_finite: What becomes of NaN and infinities in the JSON of answers; by default words.
    """

    images: ImageScoring | None
    collector: Collector | None
    non_finite: NonFinite


class Service:
    """A served model: its limits, counters, and the exchanges to the device processes of its replicas.

    Args:
        facts: What is said of it.
        access: Who may score with it, and is told of it.
        metrics: Its counters.
        limits: What its requests may take.
        **options: What most services have not.

    Attributes:
        exchanges: One for each replica that is ready, those first that have been chosen longest ago.
        exchange: The only one of them; None if there are several or none. Most models have one replica, and its
            exchange is found without a search.
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
        self.timeout_ns = limits.timeout_ms * 1_000_000
        self.max_body_bytes = limits.max_body_bytes
        self.images = options.get("images")
        self.collector = options.get("collector")
        self.non_finite: NonFinite = options.get("non_finite", WORDS)
        self.signature: Signature | None = None
        self.exchanges: list[Exchange] = []
        self.exchange: Exchange | None = None
        self.draining = False
        self.closes = False
        """Whether its answers close their connections."""
        self.arriving = 0
        """How many bodies of requests for it are being received."""
        self._decoder: ScoringDecoder | None = None
        self._call: type[Call] = Call
        self.encode_each = encode_each
        """Writes each row of the only output as an answer of its own."""
        self._encode_outputs, self._encode_tensors = encode_outputs, encode_tensors
        self._parser = simdjson.Parser()
        self._staged: list[tuple[Call, bytes]] = []
        self._tensors: ModelTensors | None = None
        self.script: ScriptForm | None = None
        """How the entry script is called, if the model is one that takes whole bodies."""
        self.larger_rows = LargerRows()
        """Where requests go whose answers do not fit; the owner of the exchanges sets another one that can grow."""
        self.codecs: dict[type, Any] = {}
        """What dialects keep for the model as it is loaded, by its class."""

    @property
    def name(self) -> str:
        """The model's name."""
        return self.facts.name

    @property
    def version(self) -> str:
        """The model's version."""
        return self.facts.version

    @property
    def direct(self) -> bool:
        """Whether a POST of JSON or text can be scored without its head."""
        return self.script is None or not self._script_wants_head(self.script)

    @property
    def wants_head(self) -> bool:
        """Whether `score` is to get the head of a request that has one."""
        return self.images is not None or not self.direct

    @staticmethod
    def _script_wants_head(script: ScriptForm) -> bool:
        # A schema asks for the content type, whatever the script itself wants.
        return script.wants_head or script.kind != "string"

    @property
    def ready(self) -> bool:
        """Whether requests can be scored now."""
        return bool(self.exchanges) and not self.draining

    @property
    def idle(self) -> bool:
        """Whether no request is between its arrival and its answer; the direct door's bodies are not known here."""
        return (
            not self.arriving
            and not self._staged
            and (self.images is None or self.images.idle)
            and all(exchange.idle for exchange in self.exchanges)
            and self.larger_rows.idle
        )

    @property
    def leased_rows(self) -> int:
        """Rows that requests hold now, over all replicas."""
        return sum(exchange.leased_rows for exchange in (*self.exchanges, *self.larger_rows.exchanges))

    def attach(self, exchange: Exchange) -> None:
        """Score through this exchange too from now on; what callers see of all replicas is the same."""
        self.signature = exchange.arena.signature
        self.codecs.clear()
        self._decoder = ScoringDecoder(self.signature)
        self.script = self.signature.script
        self._tensors = self.signature.tensors
        outputs = self.signature.outputs
        self._call = JoiningCall if len(outputs) == 1 and not outputs[0].variable else Call
        self._choose_encoders(self.signature)
        if self.images is not None:
            self.images.attach(self.signature)
        self.exchanges.append(exchange)
        self._find_only_exchange()

    def _choose_encoders(self, signature: Signature) -> None:
        """Choose here how answers are written, so that no request has to ask."""
        tensors = signature.model_tensors
        if tensors is None or not any(info.as_objects for info in tensors.outputs):
            self.encode_each = encode_each
            self._encode_outputs, self._encode_tensors = encode_outputs, encode_tensors
            return
        names = ColumnNames(tensors.outputs)
        self.encode_each = names.encode_each
        self._encode_outputs, self._encode_tensors = names.encode_outputs, names.encode_tensors

    def detach(self, exchange: Exchange) -> None:
        """Stop using an exchange whose device process has gone."""
        if exchange in self.exchanges:
            self.exchanges.remove(exchange)
            self._find_only_exchange()
        for call, body in self.larger_rows.lose(exchange):
            if not self.run_elsewhere(call, body):
                call.fail(device_lost())

    def replace(self, old: Exchange, new: Exchange) -> None:
        """Submit nothing more to an exchange whose rows are too small: another one was attached instead of it."""
        self.exchanges.remove(old)
        self._find_only_exchange()
        self.larger_rows.replace(old, new)

    def run_in_larger_rows(self, call: Call) -> bool:
        """Run a request again whose answer has not fitted its row; False if it never will."""
        exchange = call.exchange
        assert isinstance(exchange, Exchange), "all calls are submitted to exchanges"
        return self.larger_rows.take(call, exchange)

    def run_elsewhere(self, call: Call, body: bytes | None = None) -> bool:
        """Run a request again whose device process has died; False if that may not be, or nobody else can.

        Once, for it may have been this request that the process died of. An entry script may do more than compute:
        its requests are told.

        Args:
            call: The request.
            body: What it was submitted with, if it is in no arena; else only valid inside its `complete`.
        """
        other = None if self.facts.framework == "script" or call.ran_again else self.least_loaded()
        if other is None or not call.wanted:
            return False
        content = submitted_with(call) if body is None else body
        call.reopen()
        call.ran_again = True
        submit_again(call, other, content)
        return True

    def sweep(self, now_ns: int) -> None:
        """Fail the requests whose deadline has passed; call this every few dozen milliseconds."""
        for exchange in (*self.exchanges, *self.larger_rows.exchanges):
            exchange.sweep(now_ns)
        self.larger_rows.sweep(now_ns)
        if self.images is not None:
            self.images.sweep(now_ns)

    def leave_exchanges(self) -> None:
        """Stop using all exchanges, and close them; requests in flight are answered with an error."""
        leaving = (*self.exchanges, *self.larger_rows.exchanges)
        # First all of them: no request is to run again in the next one.
        for exchange in leaving:
            self.detach(exchange)
        for exchange in leaving:
            exchange.close()

    def _find_only_exchange(self) -> None:
        self.exchange = self.exchanges[0] if len(self.exchanges) == 1 else None

    def least_loaded(self) -> Exchange | None:
        """The exchange whose requests hold the fewest rows; of equals, the one chosen longest ago."""
        chosen, fewest_rows = None, 0
        for exchange in self.exchanges:
            rows = exchange.leased_rows
            # A lost one is in the list until its requests have been told; they may be followed by others at once.
            if (chosen is None or rows < fewest_rows) and not exchange.lost:
                chosen, fewest_rows = exchange, rows
        if chosen is not None:
            self.exchanges.remove(chosen)
            self.exchanges.append(chosen)
        return chosen

    def too_large(self) -> BodyTooLarge:
        """The error for a body above the limit."""
        return BodyTooLarge(f"The request body is larger than {self.max_body_bytes / 2**20:.4g} MiB.")

    def count_refusal(self, error: StokerError) -> None:
        """Count a scoring request that is answered with an error."""
        self.metrics.count_request(error.status)
        reason = _rejection(error)
        if reason is not None:
            self.metrics.count_rejection(reason)

    def check_media(self, content_type: bytes) -> None:
        """Refuse an image or a form that a model of rows does not read, and a form that is to be text.

        Raises:
            UnsupportedEncoding: It takes JSON alone, or text.
        """
        if self.images is not None or self.signature is None or not is_media(content_type):
            return
        if self.script is None:
            raise UnsupportedEncoding(
                f"{self.name} takes JSON; images need a model that is served with an image input."
            )
        if self.script.kind == "string" and content_type.lower().startswith(b"multipart/"):
            raise UnsupportedEncoding(
                f"The script of {self.name} takes the body as text, and cannot read multipart; "
                "send what it is to read as the body."
            )

    def score(
        self,
        body: bytes,
        ids: RequestIds | None,
        respond: Respond,
        received_ns: int,
        head: RequestHead | None = None,
        dialect: Dialect | None = None,
    ) -> Call:
        """Score one request; `respond` is called once, at once or later.

        Args:
            body: The request's body.
            ids: Ids that go into the answer and the log; None makes fresh ones.
            respond: Takes the answer.
            received_ns: When the body was complete, `time.monotonic_ns`.
            head: Method, query and headers, for a script that wants them.
            dialect: The protocol that the request speaks, if that is not Azure's.
        """
        if self.collector is not None:
            ids = ids or RequestIds()
            respond = self.collector.watch(body, content_type_of(head), ids.request_id, respond)
        call = self._call(self, ids, respond, received_ns, dialect)
        self._submit(call, body, head)
        return call

    def score_soon(
        self, body: bytes, ids: RequestIds | None, respond: Respond, dialect: Dialect | None = None
    ) -> Call:
        """Like `score`, at the end of this turn of the event loop.

        What arrives in one turn is then decoded in one go, while the code and the tables of the decoder are in
        the processor's caches, and goes to the device in one message.
        """
        if self.collector is not None:
            ids = ids or RequestIds()
            respond = self.collector.watch(body, b"", ids.request_id, respond)
        call = self._call(self, ids, respond, time.monotonic_ns(), dialect)
        if not self._staged:
            asyncio.get_running_loop().call_soon(self._score_staged)
        self._staged.append((call, body))
        return call

    def is_staged(self, call: Call) -> bool:
        """Whether a call waits for the end of this turn of the loop."""
        return any(staged is call for staged, _ in self._staged)

    def _score_staged(self) -> None:
        staged, self._staged = self._staged, []
        if len(staged) >= _LARGE_TURN:
            # A device that has nothing to do is not to wait until all of them are decoded: both work at once then.
            half = len(staged) // 2
            self._score_all(staged[:half])
            staged = staged[half:]
        self._score_all(staged)

    def _score_all(self, staged: Sequence[tuple[Call, bytes]]) -> None:
        """Queue requests, and tell the devices of all of them in one message."""
        for call, body in staged:
            if call.wanted:
                self._submit(call, body, None)
        for exchange in self.exchanges:
            exchange.ring()

    def _submit(self, call: Call, body: bytes, head: RequestHead | None) -> None:
        exchange, decoder = self.exchange or self.least_loaded(), self._decoder
        if exchange is None or decoder is None:
            call.refuse(self._not_ready())
            return
        if exchange.full:
            call.refuse(exchange.overloaded())
            return
        try:
            if call.dialect is not None:
                call.dialect.submit(self, call, exchange, body)
            elif self.script is not None:
                exchange.submit_body(call, self._pack(self.script, call.ids.request_id, body, head))
            elif self.images is not None and self.images.claims(body, head):
                call.await_rows(exchange)
                self.images.read(body, head, call.check_wanted, lambda rows: self._submit_rows(call, rows))
            elif self._tensors is not None:
                exchange.submit_body(call, pack(decode_tensors(body, self._tensors)))
            else:
                exchange.submit(call, decoder.decode(body))
        except StokerError as error:
            call.refuse(error)
        except Exception as error:  # noqa: BLE001  # a fault of ours must not cost the connection
            call.refuse_for_fault(error)

    def submit_tensors(
        self, call: Call, exchange: Exchange, inputs: Mapping[str, np.ndarray], signature_name: str = ""
    ) -> None:
        """Queue a request whose inputs have been checked against `Signature.model_tensors`.

        Args:
            call: The request.
            exchange: Where it goes.
            inputs: Its inputs by name.
            signature_name: The one of `Signature.named` that they are for, and were checked against, if it is not the
                first.

        Raises:
            StokerError: As `Exchange.submit`.
        """
        signature = exchange.arena.signature
        if signature.takes == "tensors":
            exchange.submit_body(call, pack(inputs, signature_name))
            return
        rows = [inputs[spec.name] for spec in signature.inputs]
        if len(rows[0]):
            exchange.submit(call, rows)
        else:
            call.complete_empty(exchange)

    def _submit_rows(self, call: Call, rows: Rows | BaseException) -> None:
        """Go on with a call whose images have been decoded, or could not be."""
        exchange = self.exchange or self.least_loaded()
        if not call.wanted:
            return
        if isinstance(rows, StokerError):
            call.refuse(rows)
        elif isinstance(rows, BaseException):
            call.refuse_for_fault(rows)
        elif exchange is None:
            call.refuse(self._not_ready())
        else:
            try:
                exchange.submit(call, rows)
            except StokerError as error:
                call.refuse(error)
            except Exception as error:  # noqa: BLE001  # as in `_submit`
                call.refuse_for_fault(error)

    def _not_ready(self) -> NotReady:
        return NotReady(f"{self.name} is not ready: it is loading or its device restarts.", retry_after_s=1)

    def _pack(self, script: ScriptForm, request_id: bytes, body: bytes, head: RequestHead | None) -> bytes:
        if script.kind == "string":
            check_text(body)
        rows = row_count(self._parser, body, script.merge_key) if script.batching == "merge" else 0
        return ScriptRequest(request_id, body, rows, head).pack()

    def encode(self, ticket: Ticket) -> bytes:
        """The answer's body for a ticket without an error."""
        signature = ticket.exchange.arena.signature
        if signature.tensors is not None:
            return self._encode_tensors(unpack(ticket.output_texts(0)[0]), self.non_finite)
        if signature.outputs[0].variable:
            return encode_texts(ticket.output_texts(0))
        return self._encode_outputs(signature.outputs, ticket.outputs(), self.non_finite)


def _rejection(error: StokerError) -> str | None:
    match error:
        case Overloaded():
            return "overloaded"
        case NotReady():
            return "not_ready"
        case DeadlineExceeded():
            return "deadline"
        case Unauthorized():
            return "unauthorized"
        case BodyTooLarge() | ImageTooLarge():
            return "body_too_large"
        case MethodNotAllowed():
            return None
        case RequestError():
            return "malformed"
        case _:
            return None
