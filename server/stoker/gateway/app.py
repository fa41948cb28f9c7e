"""The Starlette app: every route of the server, under any ASGI server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stoker.errors import (
    MethodNotAllowed,
    NotFound,
    NotReady,
    Overloaded,
    RequestError,
    StokerError,
    UnsupportedEncoding,
)
from stoker.gateway.answers import CLOSE_LINE, error_body, error_lines, json_lines, split_lines
from stoker.gateway.direct import LARGE_BODY_BYTES
from stoker.gateway.exposition import CONTENT_TYPE_LATEST, render
from stoker.gateway.gateway import SERVICE_PATH, Gateway
from stoker.gateway.request_ids import RequestIds
from stoker.gateway.service import Service
from stoker.gateway.swagger import describe

__all__ = ["create_app"]

_ID_HEADERS: Final = ("x-request-id", "x-ms-request-id", "x-ms-client-request-id")
_Answer = tuple[int, bytes, bytes]
_SHORT_BODY_BYTES: Final = 1 << 16


def create_app(gateway: Gateway) -> ASGIApp:
    """Make the app of a frontend."""
    score = _ScoreEndpoint(gateway)
    routes = [
        Route("/", _identified(_healthy)),
        Route("/score", score),
        Route(SERVICE_PATH + "{name}/score", score),
        Route("/swagger.json", _identified(_swagger)),
        Route(SERVICE_PATH + "{name}/swagger.json", _identified(_swagger)),
        Route("/v2/health/live", _identified(_live)),
        Route("/v2/health/ready", _identified(_ready)),
        Route("/metrics", _identified(_metrics)),
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={StokerError: _on_error, HTTPException: _on_http_exception},
    )
    app.router.redirect_slashes = False
    app.state.gateway = gateway
    return _closing(app, gateway)


def _closing(app: ASGIApp, gateway: Gateway) -> ASGIApp:
    """An app whose answers close their connections while the server drains."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_closing(message: Message) -> None:
            if message["type"] == "http.response.start" and not any(
                name == b"connection" for name, _ in message["headers"]
            ):
                message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        await app(scope, receive, send_closing if gateway.draining else send)

    return serve


def _identified(
    handler: Callable[[Request], Awaitable[Response]],
) -> Callable[[Request], Awaitable[Response]]:
    """A handler whose answers carry the request's ids, and that refuses ids that cannot be carried."""

    async def handle(request: Request) -> Response:
        ids = RequestIds(*_sent_ids(request.headers.get))
        response = await handler(request)
        response.raw_headers.extend(split_lines(ids.lines))
        return response

    return handle


async def _healthy(_: Request) -> Response:
    return PlainTextResponse("Healthy", media_type="text/html")


async def _live(_: Request) -> Response:
    return JSONResponse({"live": True})


async def _ready(request: Request) -> Response:
    try:
        _gateway(request).check_ready()
    except NotReady as error:
        # "error" is where clients of the Open Inference Protocol look.
        content = {"ready": False, "error": str(error), **json.loads(error_body(error))}
        headers = {"retry-after": str(error.retry_after_s)} if error.retry_after_s else None
        return JSONResponse(content, error.status, headers)
    return JSONResponse({"ready": True})


async def _metrics(request: Request) -> Response:
    gateway = _gateway(request)
    if gateway.metrics_need_key:
        authorization = request.headers.get("authorization", "").encode("latin-1")
        services = list(gateway.services.values())
        if not any(service.authorized(authorization) for service in services):
            raise services[0].unauthorized()
    text = render(gateway.metrics, list(gateway.services))
    return Response(text, media_type=CONTENT_TYPE_LATEST)


async def _swagger(request: Request) -> Response:
    service = _gateway(request).service(request.path_params.get("name"))
    return JSONResponse(describe(service, request.url.path, request.query_params.get("version")))


def _gateway(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    return gateway


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, StokerError), "registered for this class"
    lines = _usable_ids(_sent_ids(request.headers.get)).lines + error_lines(error)
    return _error_response(error, lines)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for this class"
    if error.status_code == 404:
        return await _on_error(
            request,
            NotFound(
                "The requested URL was not found on the server. If you entered the URL manually please check your "
                "spelling and try again."
            ),
        )
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        methods = tuple(name.strip() for name in allowed.split(","))
        return await _on_error(
            request, MethodNotAllowed("The method is not allowed for the requested URL.", allowed=methods)
        )
    return JSONResponse({"message": error.detail, "code": "http"}, error.status_code)


def _error_response(error: StokerError, lines: bytes) -> Response:
    body = error_body(error)
    response = Response(body, error.status)
    response.raw_headers = split_lines(json_lines(body) + lines)
    return response


def _sent_ids(header: Callable[[str], str | None]) -> list[bytes]:
    return [(header(name) or "").encode("latin-1") for name in _ID_HEADERS]


def _usable_ids(sent: Sequence[bytes]) -> RequestIds:
    """The ids for an error's answer: all, else the request's own, else fresh ones."""
    for usable in (sent, sent[:1]):
        try:
            return RequestIds(*usable)
        except RequestError:
            continue
    return RequestIds()


class _ScoreEndpoint:
    """Scoring as a raw ASGI endpoint: the same core and the same bytes as the direct door."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        sent_ids = [headers.get(name.encode(), b"") for name in _ID_HEADERS]
        ids = _usable_ids(sent_ids)
        try:
            ids = RequestIds(*sent_ids)
            service = self._admit(scope, headers)
            length = _content_length(headers)
            answer = await self._receive_and_score(service, length, ids, receive)
        except StokerError as error:
            answer = _refusal(error, ids, _content_length(headers))
        if answer is not None:
            await _send_answer(send, *answer)

    def _admit(self, scope: Scope, headers: dict[bytes, bytes]) -> Service:
        """Check everything that can be checked before the body is read."""
        service = self._gateway.service(scope["path_params"].get("name"))
        if scope["method"] != "POST":
            service.metrics.count_request(405)
            raise MethodNotAllowed("The method is not allowed for the requested URL.", allowed=("POST",))
        if not service.authorized(headers.get(b"authorization", b"")):
            raise service.unauthorized()
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            service.metrics.count_request(415)
            raise UnsupportedEncoding(
                "A compressed request body is not read; send it without Content-Encoding."
            )
        if _content_length(headers) > service.max_body_bytes:
            raise service.too_large()
        return service

    async def _receive_and_score(
        self, service: Service, length: int, ids: RequestIds, receive: Receive
    ) -> _Answer | None:
        reserved = length if length >= 0 else service.max_body_bytes
        if reserved <= LARGE_BODY_BYTES:
            reserved = 0
        elif not self._gateway.reserve_body(reserved):
            raise Overloaded("Too many large request bodies are being received.", retry_after_s=1)
        try:
            body = await _read_body(service, receive)
            if body is None:
                return None
            return await self._score(service, body, ids, receive)
        finally:
            self._gateway.release_body(reserved)

    async def _score(
        self, service: Service, body: bytes, ids: RequestIds, receive: Receive
    ) -> _Answer | None:
        answered: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()

        def respond(status: int, lines: bytes, content: bytes) -> None:
            if not answered.done():
                answered.set_result((status, lines, content))

        call = service.score(body, ids, respond, time.monotonic_ns())
        if answered.done():
            return answered.result()
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait((answered, gone), return_when=asyncio.FIRST_COMPLETED)
            if answered.done():
                return answered.result()
            return None
        finally:
            gone.cancel()
            call.abandon()


def _refusal(error: StokerError, ids: RequestIds, length: int) -> _Answer:
    body = error_body(error)
    lines = json_lines(body) + ids.lines + error_lines(error)
    # Rather end the connection than receive a long body for nothing.
    return error.status, lines if 0 <= length <= _SHORT_BODY_BYTES else lines + CLOSE_LINE, body


def _content_length(headers: dict[bytes, bytes]) -> int:
    value = headers.get(b"content-length")
    if value is None:
        return -1
    return int(value) if value.isdigit() else -1


async def _read_body(service: Service, receive: Receive) -> bytes | None:
    """The whole body; None if the caller went away."""
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > service.max_body_bytes:
            raise service.too_large()
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


async def _disconnected(receive: Callable[[], Awaitable[Message]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_answer(send: Send, status: int, lines: bytes, body: bytes) -> None:
    start: dict[str, Any] = {"type": "http.response.start", "status": status, "headers": split_lines(lines)}
    await send(start)
    await send({"type": "http.response.body", "body": body})
