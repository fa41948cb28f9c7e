"""Triton's generate extension: JSON in, JSON or server-sent events out, for scripts that yield."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from stoker.errors import NotSupported
from stoker.gateway.gateway import Gateway
from stoker.gateway.http.responses import Answer, error_answer, json_lines, parse_error
from stoker.gateway.protocols.endpoint import (
    OK,
    DialectEndpoint,
    ScoringRequest,
    UnreadRequest,
    with_body,
)
from stoker.gateway.protocols.pieces import PieceFormat, score_and_stream
from stoker.gateway.scoring.service import Service
from stoker.wire.script_tensors import PIECE_OUTPUT

if TYPE_CHECKING:
    from starlette.types import Scope

    from stoker.gateway.scoring.call import Dialect

_JSON: Final = "application/json"


class GenerateEndpoint(DialectEndpoint):
    """One request, whose pieces are sent as events if it `streams`; or its only piece, as JSON."""

    def __init__(
        self,
        gateway: Gateway,
        find: Callable[[Scope, Mapping[bytes, bytes]], tuple[Service, Dialect | None]],
        *,
        streams: bool,
    ) -> None:
        super().__init__(gateway, find, error_answer)
        self._streams = streams

    def _check(self, service: Service) -> None:
        if service.signature is None:
            raise service.not_ready()
        script = service.script
        if script is None or not script.yields:
            ways = "post bodies to its scoring URI" if script is not None else "send its tensors to infer"
            raise NotSupported(
                f"generate extension is not supported for '{service.name}', which does not yield pieces: {ways}"
            )

    async def _score(self, unread: UnreadRequest, request: ScoringRequest) -> Answer | None:
        assert request.head is not None, "scripts that yield want it"
        # Clients of this extension need not send a content type, but the forms of scripts require one.
        pairs = [pair for pair in request.head.headers if pair[0] != "content-type"]
        head = replace(request.head, headers=[*pairs, ("content-type", _JSON)], only_piece=not self._streams)
        request, form = request._replace(head=head), _GeneratedEvents(unread.service)
        if self._streams:
            return await score_and_stream(unread, request, form, b"", self._gateway.open_streams())
        answer = await super()._score(unread, request)
        if answer is None or answer.status != OK:
            return answer
        named = form.add_names(answer.body)
        return Answer(OK, json_lines(named) + request.ids.lines, named)

    async def _finish(self, answer: Answer, headers: Mapping[bytes, bytes]) -> Answer:
        del headers
        if answer.status == OK or answer.body.startswith(b'{"error"'):
            return answer
        return with_body(answer, _error_json(answer.body))


class _GeneratedEvents(PieceFormat):
    """Adds the model's name and version to each piece that is a JSON object."""

    def __init__(self, service: Service) -> None:
        super().__init__(b"text/event-stream", b"data: %b\n\n", b"data: %b\n\n")
        names = {"model_name": service.name, "model_version": service.version}
        self._start = json.dumps(names).encode().removesuffix(b"}")

    def add_names(self, content: bytes) -> bytes:
        if content.startswith(b"{"):
            return self._start + (b"}" if content == b"{}" else b", " + content[1:])
        return b'%b, "%b": %b}' % (self._start, PIECE_OUTPUT.encode(), content)

    def piece(self, content: bytes) -> bytes:
        return super().piece(self.add_names(content))

    def error(self, content: bytes) -> bytes:
        return super().error(_error_json(content))


def _error_json(content: bytes) -> bytes:
    """Return the JSON of an error in this protocol's form; a script's own error keeps its text."""
    error = parse_error(content)
    if error is None:
        error = {"message": content.decode(errors="replace")}
    return json.dumps({"error": error.pop("message"), **error}).encode()
