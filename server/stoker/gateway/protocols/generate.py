"""Triton's generate extension over HTTP: JSON in, JSON or server-sent events out, for scripts that yield."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from stoker.errors import MethodNotAllowed, NotSupported, StokerError
from stoker.gateway.http.answers import json_lines, told_error
from stoker.gateway.http.asgi import Answer, content_encodings, refusal, request_head, send_answer
from stoker.gateway.http.encodings import inflater_for
from stoker.gateway.http.request_ids import RequestIds, sent_ids
from stoker.gateway.protocols.endpoint import ScoringRequest, allowance_of, read_body, score_and_wait
from stoker.gateway.protocols.infer_dialect import error_answer
from stoker.gateway.protocols.streaming import EventFormat, score_and_stream
from stoker.gateway.scoring.askers import asker_of
from stoker.wire.piece_tensors import PIECE_OUTPUT

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from stoker.gateway.gateway import Gateway
    from stoker.gateway.scoring.service import Service

__all__ = ["GenerateEndpoint"]

_OK: Final = 200
_JSON: Final = "application/json"


class GenerateEndpoint:
    """One request, whose pieces are sent as events; or its only piece, as JSON.

    Args:
        gateway: The frontend's services.
        find: Returns the service for a request, given its scope and headers.
        streams: Whether the answer is sent as events.
    """

    def __init__(
        self,
        gateway: Gateway,
        find: Callable[[Scope, Mapping[bytes, bytes]], Service],
        *,
        streams: bool,
    ) -> None:
        self._gateway, self._find, self._streams = gateway, find, streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        headers = dict(scope["headers"])
        service = None
        try:
            service = self._find(scope, headers)
            answer = await self._answer(service, scope, headers, receive, send)
        except StokerError as error:
            if service is not None:
                self._gateway.note_refusal(service, headers, error)
            answer = refusal(error, headers, *error_answer(error))
        if answer is not None:
            await send_answer(send, answer if answer.status == _OK else _in_words(answer))

    async def _answer(
        self, service: Service, scope: Scope, headers: Mapping[bytes, bytes], receive: Receive, send: Send
    ) -> Answer | None:
        if scope["method"] != "POST":
            raise MethodNotAllowed("Method Not Allowed", allowed=("POST",))
        ids = RequestIds(*sent_ids(headers))
        caller = service.access.check(headers.get(b"authorization", b""))
        asker = asker_of(caller, headers, scope["headers"], trusts_proxy=self._gateway.trusts_proxy)
        _check_yields(service)
        inflater = inflater_for(content_encodings(scope))
        with allowance_of(self._gateway, service, scope, headers) as allowance:
            body = await read_body(service, headers, receive, inflater, allowance)
            if body is None:
                return None
            head = request_head(scope, None if inflater is None else len(body))
            # Clients of this extension need not send a content type, but the forms of scripts require one.
            pairs = [pair for pair in head.headers if pair[0] != "content-type"]
            head.headers[:] = [*pairs, ("content-type", _JSON)]
            head = replace(head, only_piece=not self._streams)
            request = ScoringRequest(body, ids, head, time.monotonic_ns(), asker=asker)
            form = _GeneratedEvents(service)
            if self._streams:
                streams = self._gateway.take_streams()
                return await score_and_stream(service, request, receive, send, form, b"", streams)
            answer = await score_and_wait(service, request, receive)
            if answer is None or answer.status != _OK:
                return answer
            named = form.named(answer.body)
            return Answer(_OK, json_lines(named) + ids.lines, named)


class _GeneratedEvents(EventFormat):
    """Adds the model's name and version to each piece that is a JSON object."""

    def __init__(self, service: Service) -> None:
        names = {"model_name": service.name, "model_version": service.version}
        self._start = json.dumps(names).encode().removesuffix(b"}")

    def named(self, content: bytes) -> bytes:
        """Return a piece with name and version."""
        if content.startswith(b"{"):
            return self._start + (b"}" if content == b"{}" else b", " + content[1:])
        return b'%b, "%b": %b}' % (self._start, PIECE_OUTPUT.encode(), content)

    def piece(self, content: bytes) -> bytes:
        return super().piece(self.named(content))

    def error(self, content: bytes) -> bytes:
        return super().piece(_worded(content))


def _check_yields(service: Service) -> None:
    if service.signature is None:
        raise service.not_ready()
    script = service.script
    if script is None or not script.yields:
        ways = "post bodies to its scoring URI" if script is not None else "send its tensors to infer"
        raise NotSupported(
            f"generate extension is not supported for '{service.name}', which does not yield pieces: {ways}"
        )


def _worded(content: bytes) -> bytes:
    """The JSON of an error in this protocol's form; an error answer of a script keeps its own text."""
    told = told_error(content)
    if told is None:
        told = {"message": content.decode(errors="replace")}
    return json.dumps({"error": told.pop("message"), **told}).encode()


def _in_words(answer: Answer) -> Answer:
    if answer.body.startswith(b'{"error"'):
        return answer
    body = _worded(answer.body)
    length = b"content-length: %d\r\n"
    return answer._replace(
        lines=answer.lines.replace(length % len(answer.body), length % len(body)), body=body
    )
