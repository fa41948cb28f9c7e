"""The fast path: plain scoring requests are answered inside uvicorn's HTTP protocol, without an ASGI cycle.

A request is plain when it is HTTP/1.1 with one Host, a POST to a scoring path with a valid key, has a
Content-Length within the limit, has no header that needs the app (Expect, Transfer-Encoding, Content-Encoding,
Upgrade, Origin, TraceId, Prefer, the name of a deployment, an image, a form or an array as Content-Type), its model's
script does not read the head, and no other request of its connection is unanswered. Every other request goes
through uvicorn to the Starlette app, which gives the same answers byte for byte, except for upper case in the names
of a script's own headers.

Clients send the same head (request line and headers) with every request. So the heads of plain requests are cached
(decision 2),
as bytes, together with their meaning. A request that arrives in one piece with a cached head is not parsed; only its
key is verified each time.

To uvicorn a direct request looks like one of its own cycles (`DirectRequest`), so that its pipelining, its shutdown
and its bookkeeping of connections keep working. This depends on uvicorn's internals: pyproject.toml pins the
versions that passed the tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from stoker.errors import Overloaded, StokerError
from stoker.gateway.direct_targets import PlainHead
from stoker.gateway.gateway import Gateway
from stoker.gateway.http.body_budget import LARGE_BODY_BYTES, Allowance, Caller
from stoker.gateway.http.request_ids import TRACEPARENT, RequestIds
from stoker.gateway.http.requests import MAX_HEADERS
from stoker.gateway.http.responses import CLOSE_LINE, refusal
from stoker.gateway.listeners.body_receiver import STRAIGHT_BODY_BYTES, BodyReceiver, allocate_body
from stoker.gateway.listeners.bounded import BoundedProtocol
from stoker.gateway.listeners.direct_request import DirectRequest
from stoker.gateway.protocols.azure import is_array
from stoker.gateway.protocols.infer import JSON_LENGTH, InferDialect
from stoker.gateway.protocols.text_apis import TEXT_APIS
from stoker.gateway.protocols.torchserve import PREDICTIONS
from stoker.gateway.scoring.call_options import (
    GATEWAY_HEADERS,
    PATIENCE_HEADERS,
    CallOptions,
    read_call_options,
)
from stoker.gateway.scoring.caller_identity import identify_caller
from stoker.gateway.traffic import DEPLOYMENT_HEADER
from stoker.keys.callers import DEFAULT, CallerTerms
from stoker.wire.images import is_media

if TYPE_CHECKING:
    from stoker.gateway.scoring.call import Dialect
    from stoker.gateway.scoring.service import Service

# Headers of scoring requests: what the fast path reads, and what it leaves to the app.
(
    _AUTHORIZATION,
    _LENGTH,
    _TYPE,
    _HOST,
    _JSON_LENGTH,
    _ACCEPTS,
    _REQUEST_ID,
    _LEGACY_ID,
    _CLIENT_ID,
    _TRACE,
    _PATIENCE,
    _NOT_PLAIN,
) = range(12)
_HEADERS: Final = {
    b"authorization": _AUTHORIZATION,
    b"content-length": _LENGTH,
    b"content-type": _TYPE,
    b"host": _HOST,
    JSON_LENGTH: _JSON_LENGTH,
    b"accept-encoding": _ACCEPTS,
    b"x-request-id": _REQUEST_ID,
    b"x-ms-request-id": _LEGACY_ID,
    b"x-ms-client-request-id": _CLIENT_ID,
    TRACEPARENT: _TRACE,
    b"expect": _NOT_PLAIN,
    b"transfer-encoding": _NOT_PLAIN,
    b"content-encoding": _NOT_PLAIN,
    b"upgrade": _NOT_PLAIN,
    b"origin": _NOT_PLAIN,
    b"traceid": _NOT_PLAIN,
    b"prefer": _NOT_PLAIN,
    DEPLOYMENT_HEADER: _NOT_PLAIN,
    **dict.fromkeys((*PATIENCE_HEADERS, *GATEWAY_HEADERS), _PATIENCE),
}
# If these headers are repeated, the app answers with the error; an empty one may be the first of several.
_ONCE: Final = (_HOST, _JSON_LENGTH, _AUTHORIZATION)


def plain_headers(headers: Sequence[tuple[bytes, bytes]]) -> list[bytes] | None:
    """The values of the names above, in their order, empty where absent; None if the request is not plain."""
    values = [b""] * _NOT_PLAIN
    for name, value in headers:
        known = _HEADERS.get(name)
        if known == _NOT_PLAIN or (known in _ONCE and (values[known] or not value)):
            return None
        if known is not None:
            values[known] = value
    return values if values[_HOST] and len(headers) <= MAX_HEADERS else None


def is_plain_head(head: bytes, headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether these bytes are exactly the request line of a POST and the headers that were parsed."""
    return head.startswith(b"POST ") and head.count(b"\r\n") == head.count(b"\n") == len(headers) + 2


_NO_TARGET: Final = (None, "")
_DIALECTS: Final[dict[str, Dialect]] = {"predictions": PREDICTIONS, **TEXT_APIS}
_END_OF_HEAD: Final = b"\r\n\r\n"
_REMEMBERED_HEAD_BYTES: Final = 4096


class DirectProtocol(BoundedProtocol):
    """uvicorn's protocol with a short path for scoring requests."""

    def __init__(self, *args: Any, gateway: Gateway, **kwargs: Any) -> None:
        super().__init__(*args, gateway=gateway, **kwargs)
        self._direct = DirectRequest()
        self._readiness = gateway.readiness
        self._targets = gateway.targets
        self._heads = gateway.targets.heads
        self._new_head = b""
        self._head_ends = 0
        self._receives_straight = False
        self._receiver: BodyReceiver | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        regions = self._gateway.regions
        if regions is not None:
            self._heads = self._targets.heads_of(self._address, regions)

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""

    @property
    def _receives_body(self) -> bool:
        return self._direct.service is not None or super()._receives_body

    @property
    def _speaks_1_1(self) -> bool:
        # The parser does not see a request behind a cached head.
        direct = self.cycle is self._direct  # type: ignore[comparison-overlap]  # see _score
        return direct or super()._speaks_1_1

    def retire(self) -> None:
        """Close the connection with its next answer; set in a field that is read anyway, so it costs nothing."""
        super().retire()
        if self.old:
            self._direct.keep_alive = False

    def receives_for(self, service: Service) -> bool:
        """Whether the body of a plain request to this service is arriving."""
        return self._direct.service is service

    def data_received(self, data: bytes) -> None:
        if self._between:
            # Usually the head is the same as the last one, whose length is known; only whole heads are cached.
            known = self._heads.get(data[: self._head_ends])
            if known is None:
                self._head_ends = data.find(_END_OF_HEAD, 0, _REMEMBERED_HEAD_BYTES) + 4
                known = self._heads.get(data[: self._head_ends])
            end = self._head_ends
            if known is None:
                self._new_head = data[:end]
            elif (
                len(data) == end + known.body_bytes
                and (self.cycle is None or self.cycle.response_complete)
                and (caller := known.service.access.holder(known.authorization))
            ):
                if self.timeout_keep_alive_task is not None:
                    self._unset_keepalive_if_required()
                self.fresh = False
                if known.closes:
                    self._direct.keep_alive = False
                self._score(known.service, data[end:], None, known.dialect)
                if caller is not DEFAULT or known.options is not None:
                    self._direct.set_caller(caller, known.options)
                known.service.submit_lone()
                return
            elif known.body_bytes >= STRAIGHT_BODY_BYTES and self._begin_straight(known, data, end):
                return
        # As in the base class, but without calling it: clients that send head and body separately come here twice.
        self._unset_keepalive_if_required()
        self._feed(data)
        if self.in_head or self._bounds.framing_bytes is not None:
            self._bound(len(data))
        elif self._receives_straight:
            # This request waits for its body, whose end the parser does not see.
            self.parser = httptools.HttpRequestParser(self)
            self._receive_straight()

    def _begin_straight(self, known: PlainHead, data: bytes, end: int) -> bool:
        """Receive a long body without the parser, if the cached head announces one that has not arrived."""
        if (
            known.body_bytes > LARGE_BODY_BYTES
            or end + known.body_bytes <= len(data)
            or not (self.cycle is None or self.cycle.response_complete)
            or not (caller := known.service.access.holder(known.authorization))
        ):
            return False
        self._unset_keepalive_if_required()
        self.on_message_begin()
        self.in_head = False
        direct = self._direct
        direct.dialect, direct.ids, direct.options = known.dialect, None, known.options
        if caller is not DEFAULT:
            direct.options = (
                CallOptions(caller) if known.options is None else known.options._replace(caller=caller)
            )
        self._expect(known.service, known.body_bytes, closes=known.closes)
        self.on_body(data[end:])
        self._receive_straight()
        return True

    def _expect(self, service: Service, length: int, *, closes: bool) -> None:
        direct = self._direct
        direct.service, direct.first_chunk = service, b""
        if length >= STRAIGHT_BODY_BYTES:
            direct.gathered, self._receives_straight = allocate_body(length), True
        direct.response_complete = False
        direct.keep_alive = not (closes or self.old)
        self.cycle = direct  # type: ignore[assignment]  # it has all that uvicorn uses of a cycle

    def _receive_straight(self) -> None:
        """Receive the rest of a long body without the parser, unless its beginning was refused."""
        self._receives_straight = False
        direct = self._direct
        if direct.service is None or direct.gathered is None:
            return
        if self._receiver is None:
            self._receiver = BodyReceiver(self)
        self._receiver.receive(direct.gathered)

    def body_grew(self, more_bytes: int) -> bool:
        """Count bytes of a body that have arrived; False if there is no room for them and the request was refused."""
        self.idle_sweeps = 0
        self.arrived_bytes += more_bytes
        allowance = self._direct.allowance
        return allowance is None or self._cover_body(allowance)

    def _handle_directly(self) -> bool:
        gateway, targets, parser, url = self._gateway, self._targets, self.parser, self.url
        service = targets.scoring.get(url) or targets.infer.get(url) or targets.others.get(url, _NO_TARGET)[0]
        if (
            service is None
            or not service.dialect.direct
            or (self.cycle is not None and not self.cycle.response_complete)
            or parser.get_method() != b"POST"
            or parser.get_http_version() != "1.1"
        ):
            return False
        values = plain_headers(self.headers)
        if values is None:
            return False
        authorization, length_text, content_type, host, json_length, accepts, *sent_ids, patience = values
        length = int(length_text or 0)
        hosts = gateway.settings.hosts
        if (
            not 0 < length <= service.limits.max_body_bytes
            or not (caller := service.access.holder(authorization))
            or not (hosts is None or hosts.have(host))
        ):
            return False
        if not self._choose_dialect(content_type, json_length, accepts):
            return False
        closes = not parser.should_keep_alive()
        direct = self._direct
        try:
            direct.options = self._read_options(caller) if patience or caller is not DEFAULT else None
        except StokerError:
            return False
        direct.ids = None
        if any(sent_ids):
            try:
                direct.ids = RequestIds(*sent_ids)
            except StokerError:
                return False
        elif is_plain_head(self._new_head, self.headers):
            head = PlainHead(service, authorization, length, direct.dialect, closes, direct.options)
            targets.cache_head(self._heads, self._new_head, head)
        if length > LARGE_BODY_BYTES and not self._announce(service, authorization, length):
            return False
        self._expect(service, length, closes=closes)
        return True

    def _read_options(self, caller: CallerTerms) -> CallOptions | None:
        headers, settings = self.headers, self._gateway.settings
        return read_call_options(caller, dict(headers), headers, trusts_proxy=settings.trusts_proxy)

    def _announce(self, service: Service, authorization: bytes, length: int) -> bool:
        """Announce a large body; False if there is no room, and the app has to answer."""

        def find_caller() -> Caller:
            return identify_caller(service, authorization, self._address)

        allowance = Allowance(self._gateway.bodies, find_caller)
        try:
            allowance.announce(length)
        except Overloaded:
            return False
        self._direct.allowance = allowance
        return True

    def _choose_dialect(self, content_type: bytes, json_length: bytes, accepts: bytes) -> bool:
        """Set the dialect of the path; False if the app has to read the body."""
        if self.url in self._targets.infer:
            return self._choose_infer_dialect(json_length, accepts)
        self._direct.dialect = _DIALECTS.get(self._targets.others.get(self.url, _NO_TARGET)[1])
        return not (is_media(content_type) or is_array(content_type))

    def _choose_infer_dialect(self, json_length: bytes, accepts: bytes) -> bool:
        if b"gzip" in accepts or b"deflate" in accepts:
            return False
        regions = self._gateway.regions
        if regions is not None and not regions.serves(self._address):
            regions = None
        try:
            self._direct.dialect = InferDialect.for_length(json_length, regions)
        except StokerError:
            return False
        return True

    def on_body(self, body: bytes) -> None:
        direct = self._direct
        if direct.service is None:
            super().on_body(body)
            return
        self.idle_sweeps = 0
        self.arrived_bytes += len(body)
        if direct.gathered is not None:
            if direct.allowance is None or self._cover_body(direct.allowance):
                direct.gathered.write(body)
        elif direct.first_chunk:
            direct.gather(body)
        else:
            direct.first_chunk = body

    def on_message_complete(self) -> None:
        direct = self._direct
        service = direct.service
        if service is None:
            super().on_message_complete()
            self._new_head = b""
            return
        self._between = True
        self._new_head = b""
        self._receives_straight = False
        direct.service = None
        body = direct.first_chunk if direct.gathered is None else direct.gathered.getvalue()
        direct.first_chunk, direct.gathered = b"", None
        self._score(service, body, direct.ids, direct.dialect)
        if direct.options is not None:
            direct.set_caller(direct.options.caller, direct.options)

    def _score(self, service: Service, body: bytes, ids: RequestIds | None, dialect: Dialect | None) -> None:
        direct = self._direct
        direct.response_complete = False
        self.cycle = direct  # type: ignore[assignment]  # it has all that uvicorn uses of a cycle
        # All calls of this turn of the loop are scored together at its end (decision 14).
        direct.call = service.score_soon(body, ids, self._respond, dialect)

    def _respond(self, status: int, lines: bytes, body: bytes) -> None:
        direct = self._direct
        direct.response_complete = True
        direct.call = None
        self.idle_sweeps = 0
        if direct.allowance is not None:
            direct.release_allowance()
        state = self.server_state
        state.total_requests += 1
        transport = self.transport
        if transport.is_closing():
            return
        closes = self._readiness.closes
        closing = closes or not direct.keep_alive
        if closing and not closes:
            lines += CLOSE_LINE
        transport.write(b"".join((STATUS_LINE[status], state.default_lines, lines, b"\r\n", body)))
        if closing:
            transport.close()
        elif self.pipeline:
            self.on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._direct.abandon()
        self._receiver = None
        super().connection_lost(exc)

    def _cover_body(self, allowance: Allowance) -> bool:
        """Reserve memory for the bytes of a large body that have arrived; refuse the request if there is no room."""
        direct = self._direct
        service = direct.service
        assert service is not None, "its body arrives"
        try:
            allowance.cover(self.arrived_bytes)
        except Overloaded as error:
            self._gateway.report_refusal(service, dict(self.headers), error)
            status, body = error.status, None
            if direct.dialect is not None:
                status, _, body = direct.dialect.refusal(error)
            answer = refusal(error, dict(self.headers), status, body)
            direct.service = direct.gathered = None
            direct.response_complete = True
            direct.release_allowance()
            # The body is too long to read it only to drop it, so the answer closes the connection.
            self._answer_last(*answer)
            return False
        return True
