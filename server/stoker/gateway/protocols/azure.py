"""The scoring endpoint of the app: every method, scripts that read the head, compressed and chunked bodies.

It shares the scoring core and the bytes of its answers with the fast path.
A body may also be one array, `application/x-npy`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from starlette.types import Scope

from stoker.errors import InvalidInput, MethodNotAllowed, StokerError
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
from stoker.gateway.http.responses import JSON_TYPE_LINE, Answer, code_line, error_body, failed_line
from stoker.gateway.protocols.endpoint import (
    DialectEndpoint,
    ScoringRequest,
    UnreadRequest,
    allowance_of,
    find_service,
    read_body,
    score_and_wait,
    with_deployment,
)
from stoker.gateway.protocols.infer import tensors_of
from stoker.gateway.protocols.pieces import format_for, score_and_stream
from stoker.gateway.scoring.call import Dialect
from stoker.gateway.scoring.call_options import CallOptions
from stoker.gateway.scoring.dialects import JsonDialect, named_outputs, submit_tensors
from stoker.gateway.scoring.service import Service
from stoker.keys.callers import DEFAULT
from stoker.wire.array_bodies import decode_npy, encode_npy
from stoker.wire.tensor_json import check_rows

if TYPE_CHECKING:
    from stoker.gateway.rows.ticket import Exchange
    from stoker.gateway.scoring.call import Call, ServiceBase
    from stoker.wire.script_requests import RequestHead

_NPY: Final = b"application/x-npy"
_NPY_TYPE: Final = b"content-type: application/x-npy\r\n"


def is_array(content_type: bytes) -> bool:
    """Whether a `Content-Type` says that the body is one array."""
    return _kind(content_type) == _NPY


def _kind(content_type: bytes) -> bytes:
    return content_type.partition(b";")[0].strip().lower()


class BinaryDialect(Dialect):
    """Scoring requests whose body is the array of the model's only input; answered in JSON or as an array."""

    def __init__(self, headers: Mapping[bytes, bytes]) -> None:
        """Read from the headers of a request the format of the answer."""
        accepted = headers.get(b"accept", b"").split(b",")
        self._answers_npy = any(_kind(item) == _NPY for item in accepted)

    @classmethod
    def of(cls, service: Service, headers: Mapping[bytes, bytes]) -> BinaryDialect | None:
        """The dialect for a request; None if its body is JSON, an image, or left to an entry script."""
        is_read = service.script is None and is_array(headers.get(b"content-type", b""))
        return cls(headers) if is_read else None

    def blocks_on_long(self, service: ServiceBase, body: bytes, head: RequestHead | None) -> bool:
        """Always False: the body is the array itself, so there is nothing to parse."""
        del service, body, head
        return False

    def submit(self, call: Call, exchange: Exchange, body: bytes, head: RequestHead | None) -> None:
        """Decode the array and queue its rows."""
        del head
        service = call.service
        tensors = tensors_of(service)
        if len(tensors.inputs) != 1:
            raise InvalidInput(
                f"{service.name} has {len(tensors.inputs)} inputs, and such a body is one; "
                f"send JSON, or binary tensors to /v2/models/{quote(service.name)}/infer."
            )
        if self._answers_npy and (len(tensors.outputs) != 1 or tensors.outputs[0].dtype == "string"):
            raise InvalidInput(f"{service.name} does not answer with one array of numbers; accept JSON.")
        (info,) = tensors.inputs
        array = decode_npy(body, info)
        check_rows({info.name: array}, tensors)
        submit_tensors(call, exchange, {info.name: array})

    def complete(self, call: Call) -> None:
        """Answer with the outputs."""
        lines = failed_line(False) + b"x-ms-run-fn-exec-ms: %.3f\r\n" % (
            (call.finished_ns - call.started_ns) / 1e6
        )
        if self._answers_npy:
            (output,) = named_outputs(call).values()
            call.answer_scored(encode_npy(output), time.monotonic_ns(), _NPY_TYPE + lines)
        else:
            json = call.service.dialect
            assert isinstance(json, JsonDialect), "a script reads such bodies itself"
            call.answer_scored(json.encode(call), time.monotonic_ns(), JSON_TYPE_LINE + lines)

    def refusal(self, error: StokerError) -> tuple[int, bytes, bytes]:
        """Return the error in Azure's JSON, with its code as a header."""
        return error.status, code_line(error), error_body(error)


_METHODS_WITHOUT_HEAD: Final = ("GET", "OPTIONS", "POST")
_EMPTY_LINES: Final = b"content-type: text/html; charset=utf-8\r\ncontent-length: 0\r\n"


class ScoringEndpoint(DialectEndpoint):
    """Azure's scoring endpoint, for every method."""

    def __init__(self, gateway: Gateway, *, names_deployment: bool = False) -> None:
        super().__init__(
            gateway, self._choose, lambda error: (error.status, None), names_deployment=names_deployment
        )

    def _choose(self, scope: Scope, headers: Mapping[bytes, bytes]) -> tuple[Service, Dialect | None]:
        service = find_service(self._gateway, scope, headers)
        return service, BinaryDialect.of(service, headers) if scope["method"] == "POST" else None

    async def _answer(self, unread: UnreadRequest) -> Answer | None:
        service, dialect, scope, headers, receive, _ = unread
        method, raw = scope["method"], _is_raw(service)
        if method not in SCORING_METHODS:
            raise MethodNotAllowed(NOT_ALLOWED, allowed=SCORING_METHODS)
        ids = RequestIds(*sent_ids(headers))
        if method == "OPTIONS" and (
            not raw or (self._gateway.settings.cors and is_preflight(method, headers))
        ):
            return Answer(200, _EMPTY_LINES + ids.lines + failed_line(False), b"")
        if method == "HEAD" and not raw:
            raise MethodNotAllowed("Method not allowed", allowed=_METHODS_WITHOUT_HEAD)
        options = self._options(unread)
        if dialect is None:
            service.dialect.check_media(headers.get(b"content-type", b""))
        # A script that gets the whole request gets its body as it was sent.
        inflater = None if raw else inflater_for(content_encodings(scope))
        with allowance_of(self._gateway, unread) as allowance:
            body = await read_body(unread, inflater, allowance)
            if body is None:
                return None
            received_ns = time.monotonic_ns()
            inflated_bytes = None if inflater is None else len(body)
            head = request_head(scope, inflated_bytes) if service.dialect.wants_head else None
            if method == "GET" and not raw:
                body = query_body(scope["query_string"])
            request = ScoringRequest(body, ids, head, received_ns, dialect, options)
            if service.script is not None and service.script.yields and (form := format_for(headers)):
                named = Answer(0, b"", b"")
                if self._names_deployment:
                    named = with_deployment(named, service, self._gateway)
                streams = self._gateway.open_streams()
                return await score_and_stream(unread, request, form, named.lines, streams)
            copy = (
                self._gateway.directory.mirror(headers)
                if method == "POST" and not scope["path_params"]
                else None
            )
            if copy is None or (inflater is None and b"content-encoding" in headers):
                return await score_and_wait(service, request, receive)
            head = request_head(scope, inflated_bytes) if copy.dialect.wants_head else None
            copied = request._replace(head=head)
            return await score_and_wait(service, request, receive, lambda: _score_copy(copy, copied, headers))


def _is_raw(service: Service) -> bool:
    return service.script is not None and service.script.kind == "raw"


def _score_copy(service: Service, request: ScoringRequest, headers: Mapping[bytes, bytes]) -> None:
    """Score a copy of a request (shadow traffic): the answer is dropped, and only failures are counted."""
    # The memory budget covers the body only until its own request is answered, and the copy may wait longer.
    if not service.ready or len(request.body) > LARGE_BODY_BYTES:
        return
    options = (request.options or CallOptions(DEFAULT))._replace(limited=False)
    try:
        service.dialect.check_media(headers.get(b"content-type", b""))
        dialect = BinaryDialect.of(service, headers)
        service.score(
            request.body, request.ids, _drop_answer, request.received_ns, request.head, dialect, options
        )
    except StokerError as error:
        service.count_refusal(error)


def _drop_answer(status: int, lines: bytes, body: bytes) -> None:
    """Drop the answer to a copy of a request."""
