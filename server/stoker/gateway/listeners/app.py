"""The Starlette app: every route of the server, under any ASGI server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stoker.errors import MethodNotAllowed, NotFound, NotReady, StokerError, unexpected_error
from stoker.gateway.api_docs.routes import docs_routes
from stoker.gateway.console.routes import console_routes, is_browser, lead_to_console
from stoker.gateway.describing.exposition import render, render_load
from stoker.gateway.describing.swagger import describe
from stoker.gateway.gateway import Gateway
from stoker.gateway.http.request_ids import RequestIds, sent_ids
from stoker.gateway.http.requests import (
    NOT_ALLOWED,
    authorization_in,
    authorization_of,
    check_head,
    requester_of,
)
from stoker.gateway.http.responses import CLOSE_LINE, failed_line, refusal, send_answer, split_lines
from stoker.gateway.http.threads import run_in_thread
from stoker.gateway.model_directory import SERVICE_PATH, service_path
from stoker.gateway.protocols.access import check_metadata_access
from stoker.gateway.protocols.azure import ScoringEndpoint
from stoker.gateway.protocols.mlflow import mlflow_routes
from stoker.gateway.protocols.oip import oip_routes
from stoker.gateway.protocols.text_apis import text_routes
from stoker.gateway.protocols.tfs import tfs_routes
from stoker.gateway.protocols.torchserve import describe_api, torchserve_routes
from stoker.gateway.protocols.torchserve_management import management_routes
from stoker.keys.callers import ONLY_DEFAULT

logger = logging.getLogger(__name__)

_CLIENT_GONE: Final = 499
_AZURE_PATHS: Final = frozenset({"/", "/score", "/swagger.json"})
_AZURE_METHODS: Final = ("GET", "HEAD", "OPTIONS")
_CLOSE: Final = split_lines(CLOSE_LINE)


def create_app(gateway: Gateway, further: Sequence[Route] = ()) -> ASGIApp:
    """Make the app of a frontend, with `further` routes."""
    routes = [
        _azure_route("/", _healthy, describe_api(gateway.settings.tells_version)),
        _azure_route(SERVICE_PATH + "{name}/", _healthy),
        Route("/score", ScoringEndpoint(gateway, names_deployment=True)),
        Route(SERVICE_PATH + "{name}/score", ScoringEndpoint(gateway)),
        _azure_route("/swagger.json", _swagger),
        _azure_route(SERVICE_PATH + "{name}/swagger.json", _swagger),
        Route("/token", _with_ids(_token)),
        Route(SERVICE_PATH + "{name}/token", _with_ids(_token)),
        Route("/metrics", _with_ids(_metrics)),
        Route("/-/reload", _with_ids(_reload), methods=["POST"]),
        *oip_routes(gateway),
        *text_routes(gateway),
        *tfs_routes(gateway),
        *mlflow_routes(gateway),
        *torchserve_routes(gateway),
        *management_routes(gateway),
        *further,
        *console_routes(gateway),
        *docs_routes(gateway),
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={
            StokerError: _on_error,
            HTTPException: _on_http_exception,
            ClientDisconnect: _on_disconnect,
            Exception: _on_fault,
        },
    )
    app.router.redirect_slashes = False
    app.state.gateway = gateway
    return _with_checks(app, gateway)


def _with_checks(app: ASGIApp, gateway: Gateway) -> ASGIApp:
    """Wrap an app: check the head of each request, and add the headers that all answers have."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        if len(headers) < len(scope["headers"]) and b"authorization" in headers:
            headers[b"authorization"] = authorization_in(scope["headers"])
            others = [pair for pair in scope["headers"] if pair[0] != b"authorization"]
            scope = {**scope, "headers": [*others, (b"authorization", headers[b"authorization"])]}
        added = (
            [] if gateway.settings.cors is None else gateway.settings.cors.headers(scope["method"], headers)
        )
        if b"traceid" in headers:
            # Microsoft Office correlates its requests by it.
            added.append((b"traceid", headers[b"traceid"]))
        if gateway.readiness.closes:
            added += _CLOSE

        async def send_with_added(message: Message) -> None:
            if message["type"] == "http.response.start":
                names = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(pair for pair in added if pair[0] not in names)]
            await send(message)

        answer = send_with_added if added else send
        try:
            check_head(scope, gateway.settings.hosts)
        except StokerError as error:
            await send_answer(answer, refusal(error, headers))
            return
        if scope["path"].startswith("//"):
            path = "/" + scope["path"].lstrip("/")
            # A proxy that has a rule for another path must not be bypassed by one more slash.
            if path in _AZURE_PATHS or path.startswith(SERVICE_PATH):
                scope = {**scope, "path": path}
        try:
            await app(scope, receive, answer)
        except asyncio.CancelledError:
            # Requests are cancelled only when the process ends before they are answered. An answer that has begun
            # cannot be replaced by an error.
            with contextlib.suppress(RuntimeError):
                await send_answer(answer, refusal(NotReady("The server is shutting down."), headers))

    return serve


_Handler = Callable[[Request], Awaitable[Response]]


def _with_ids(handler: _Handler) -> _Handler:
    """Wrap a handler: answers carry the request's ids, and ids that cannot be sent back are refused."""

    async def handle(request: Request) -> Response:
        ids = RequestIds(*sent_ids(_headers(request)))
        response = await handler(request)
        response.raw_headers.extend(split_lines(ids.lines))
        return response

    return handle


def _azure_route(path: str, handler: _Handler, description: bytes = b"") -> Route:
    """A route that answers OPTIONS with its methods, as the Azure inference server does, and with a description."""
    media_type = "application/json" if description else "text/html"

    async def handle(request: Request) -> Response:
        if request.method == "OPTIONS":
            allowed = {"allow": ", ".join(_AZURE_METHODS)}
            return Response(description, headers=allowed, media_type=media_type)
        return await handler(request)

    return Route(path, _with_ids(handle), methods=_AZURE_METHODS)


async def _healthy(request: Request) -> Response:
    if "name" in request.path_params:
        _gateway(request).directory.service(request.path_params["name"])
    elif _gateway(request).past is not None and is_browser(request.headers.get("accept", "")):
        return lead_to_console()
    return PlainTextResponse("Healthy", media_type="text/html")


async def _metrics(request: Request) -> Response:
    gateway = _gateway(request)
    if gateway.settings.metrics_need_key:
        authorization = authorization_of(request)
        services = list(gateway.directory.all_services)
        if not services:
            raise NotReady("No model is loaded, so there is no key to check.", retry_after_s=1)
        if not any(service.access.allows(authorization) for service in services):
            raise services[0].access.refusal(authorization)
    models = dict(gateway.directory.models)
    if request.query_params.getlist("only") == ["load"]:
        text = await run_in_thread(render_load, models, gateway.load)
    else:
        gateway.flush_metrics()
        callers = ONLY_DEFAULT if gateway.quotas is None else gateway.quotas.names
        spool = None if gateway.later is None else gateway.later.spool
        text = await run_in_thread(render, gateway.metrics, models, gateway.load, callers, spool)
    return Response(text, media_type=CONTENT_TYPE_LATEST)


async def _reload(request: Request) -> Response:
    """Replace the server by a new one, at the path that Prometheus uses for reloading."""
    administration = _gateway(request).administration
    assert administration is not None, "every frontend has one"
    administration.access.check(requester_of(request))
    await administration.reload()
    return Response()


async def _swagger(request: Request) -> Response:
    gateway = _gateway(request)
    service = gateway.directory.service(request.path_params.get("name"), request.scope["path"])
    check_metadata_access(gateway, requester_of(request), (service,))
    await service.learn_signature()
    prefix = gateway.settings.naming.path_prefix
    if "name" in request.path_params:
        prefix = service_path(service.name)
    versions = request.query_params.getlist("version")
    description = describe(service, gateway.settings.naming, prefix, versions[0] if versions else None)
    response = Response(json.dumps(description), media_type="application/json")
    response.raw_headers.extend(split_lines(failed_line(False)))
    return response


async def _token(request: Request) -> Response:
    service = _gateway(request).directory.service(request.path_params.get("name"), request.scope["path"])
    tokens = service.access.tokens
    if tokens is None:
        raise NotFound(f"{service.name} takes no tokens; the server has to be started with --token-auth.")
    token = tokens.fresh(authorization_of(request))
    return JSONResponse(token.to_json(), headers={"cache-control": "no-store"})


def _gateway(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    return gateway


def _headers(request: Request) -> Mapping[bytes, bytes]:
    return dict(request.headers.raw)


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, StokerError), "registered for this class"
    answer = refusal(error, _headers(request))
    response = Response(answer.body, answer.status)
    response.raw_headers = split_lines(answer.lines)
    return response


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
        methods = tuple(sorted(name.strip() for name in allowed.split(",")))
        return await _on_error(request, MethodNotAllowed(NOT_ALLOWED, allowed=methods))
    return JSONResponse({"message": error.detail, "code": "http"}, error.status_code)


async def _on_disconnect(request: Request, error: Exception) -> Response:
    # The caller has gone, so nobody reads this answer.
    del error
    logger.info("a caller disconnected during the body of %s %s", request.method, request.url.path)
    return Response(status_code=_CLIENT_GONE)


async def _on_fault(request: Request, error: Exception) -> Response:
    # Starlette raises the error again after the answer, and the server logs it.
    return await _on_error(request, unexpected_error(error))
