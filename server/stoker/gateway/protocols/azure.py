"""The scoring endpoint of the app: every method, scripts that read the head, compressed and chunked bodies.

It shares the scoring core and the bytes of its answers with the direct door.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from starlette.types import Receive, Scope, Send

from stoker.errors import MethodNotAllowed, StokerError
from stoker.gateway.gateway import Gateway
from stoker.gateway.http.body_budget import LARGE_BODY_BYTES
from stoker.gateway.http.encodings import inflater_for
from stoker.gateway.http.request_ids import RequestIds, sent_ids
from stoker.gateway.http.requests import (
    NOT_ALLOWED,
    SCORING_METHODS,
    content_encodings,
    is_preflight,
    query_body,
    request_head,
)
from stoker.gateway.http.responses import Answer, failed_line, refusal, send_answer
from stoker.gateway.protocols.binary_dialect import BinaryDialect
from stoker.gateway.protocols.endpoint import (
    ScoringRequest,
    allowance_of,
    read_body,
    score_and_wait,
    with_deployment,
)
from stoker.gateway.protocols.streaming import PieceFormat, format_for, score_and_stream
from stoker.gateway.scoring.askers import asker_of
from stoker.gateway.scoring.service import Service

__all__ = ["ScoringEndpoint"]

_METHODS_WITHOUT_HEAD: Final = ("GET", "OPTIONS", "POST")
_EMPTY_LINES: Final = b"content-type: text/html; charset=utf-8\r\ncontent-length: 0\r\n"


class ScoringEndpoint:
    """Scoring as a raw ASGI endpoint."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        headers = dict(scope["headers"])
        name = scope["path_params"].get("name")
        service = None
        try:
            service = self._gateway.deployment(headers) if name is None else self._gateway.service(name)
            service = self._gateway.by_weight(service, headers)
            answer = await self._answer(service, scope, headers, receive, send)
        except StokerError as error:
            if service is not None:
                self._gateway.note_refusal(service, headers, error)
            answer = refusal(error, headers)
        if answer is None:
            return
        if name is None:
            answer = with_deployment(answer, service, self._gateway)
        await send_answer(send, answer)

    async def _answer(
        self, service: Service, scope: Scope, headers: Mapping[bytes, bytes], receive: Receive, send: Send
    ) -> Answer | None:
        """Check all that can be checked before the body is read, then score; None if the caller has gone."""
        method, raw = scope["method"], _is_raw(service)
        if method not in SCORING_METHODS:
            raise MethodNotAllowed(NOT_ALLOWED, allowed=SCORING_METHODS)
        ids = RequestIds(*sent_ids(headers))
        if method == "OPTIONS" and (not raw or (self._gateway.cors and is_preflight(method, headers))):
            return Answer(200, _EMPTY_LINES + ids.lines + failed_line(False), b"")
        if method == "HEAD" and not raw:
            raise MethodNotAllowed("Method not allowed", allowed=_METHODS_WITHOUT_HEAD)
        caller = service.access.check(headers.get(b"authorization", b""))
        asker = asker_of(caller, headers, scope["headers"], trusts_proxy=self._gateway.trusts_proxy)
        service.dialect.check_media(headers.get(b"content-type", b""))
        # A script that gets the whole request gets its body as it was sent.
        inflater = None if raw else inflater_for(content_encodings(scope))
        with allowance_of(self._gateway, service, scope, headers) as allowance:
            body = await read_body(service, headers, receive, inflater, allowance)
            if body is None:
                return None
            received_ns = time.monotonic_ns()
            inflated_bytes = None if inflater is None else len(body)
            head = request_head(scope, inflated_bytes) if service.dialect.wants_head else None
            dialect = BinaryDialect.of(service, headers) if method == "POST" else None
            if method == "GET" and not raw:
                body = query_body(scope["query_string"])
            request = ScoringRequest(body, ids, head, received_ns, dialect, asker)
            if service.script is not None and service.script.yields and (form := format_for(headers)):
                return await self._stream(service, request, form, scope, receive, send)
            copy = self._gateway.mirror(headers) if method == "POST" and not scope["path_params"] else None
            if copy is None or (inflater is None and b"content-encoding" in headers):
                return await score_and_wait(service, request, receive)
            head = request_head(scope, inflated_bytes) if copy.dialect.wants_head else None
            copied = request._replace(head=head)
            return await score_and_wait(service, request, receive, lambda: _score_copy(copy, copied, headers))

    async def _stream(
        self,
        service: Service,
        request: ScoringRequest,
        form: PieceFormat,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> Answer | None:
        """Score with a script that yields, and send its answer piece by piece."""
        named = Answer(0, b"", b"")
        if scope["path_params"].get("name") is None:
            named = with_deployment(named, service, self._gateway)
        return await score_and_stream(
            service, request, receive, send, form, named.lines, self._gateway.take_streams()
        )


def _is_raw(service: Service) -> bool:
    return service.script is not None and service.script.kind == "raw"


def _score_copy(service: Service, request: ScoringRequest, headers: Mapping[bytes, bytes]) -> None:
    """Score a copy of a request (shadow traffic): the answer is dropped, and only failures are counted."""
    # Copied, for the memory budget covers the body only until its own request is answered, and the copy may wait
    # longer.
    if not service.ready or len(request.body) > LARGE_BODY_BYTES:
        return
    asker = None if request.asker is None else request.asker.unlimited
    try:
        service.dialect.check_media(headers.get(b"content-type", b""))
        dialect = BinaryDialect.of(service, headers)
        service.score(request.body, request.ids, _nobody, request.received_ns, request.head, dialect, asker)
    except StokerError as error:
        service.count_refusal(error)


def _nobody(status: int, lines: bytes, body: bytes) -> None:
    """Drop the answer to a copy of a request."""
