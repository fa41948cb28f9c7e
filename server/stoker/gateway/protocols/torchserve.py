"""TorchServe's inference API: its routes, its errors, and its requests as a dialect (decision 55)."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stoker import __version__
from stoker.errors import InvalidInput, NotSupported, StokerError, UnknownService, cut
from stoker.gateway.http.responses import code_line, parse_error
from stoker.gateway.protocols.azure import BinaryDialect, ScoringEndpoint
from stoker.gateway.protocols.tfs import PREDICT
from stoker.gateway.scoring.call import Dialect
from stoker.gateway.scoring.dialect_choice import loaded_dialect
from stoker.gateway.scoring.dialects import JsonDialect, named_outputs
from stoker.gateway.scoring.script_dialect import ScriptDialect
from stoker.wire.images import form_parts
from stoker.wire.script_requests import ScriptAnswer

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from stoker.gateway.gateway import Gateway
    from stoker.gateway.rows.ticket import Exchange
    from stoker.gateway.scoring.call import Call, ServiceBase
    from stoker.gateway.scoring.service import Service
    from stoker.wire.script_requests import RequestHead

_TYPES: Final = {
    401: "InvalidKeyException",
    403: "InvalidKeyException",
    404: "ModelNotFoundException",
    405: "MethodNotAllowedException",
    503: "ServiceUnavailableException",
}
"""TorchServe's types of errors by status; others are those of a bad request or of the server."""
_FIRST_ERROR, _SERVER_ERROR = 400, 500
_SIGNED: Final = re.compile(rb'\s*\{\s*"(?:instances|inputs|signature_name)"')
"""How the JSON of KServe's protocol v1 begins."""
_ROWS: Final = re.compile(rb"\s*\[")


class UnknownVersion(UnknownService):
    """The model has no such version."""


def find_version(gateway: Gateway, name: str, version: str | None) -> Service:
    """Find a version of a model; TorchServe's `2.0` means 2, and None the default."""
    if not gateway.directory.model_versions(name):
        raise UnknownService(f"Model not found: {cut(name)}")
    return gateway.directory.find(
        name, None if version is None else number_of_version(gateway, name, version)
    )


def number_of_version(gateway: Gateway, name: str, version: str) -> str:
    """Return the number of a known version of a model, loaded or not."""
    number = version.removesuffix(".0")
    if number not in gateway.directory.model_versions(name):
        raise UnknownVersion(f"Model version: {cut(version)} does not exist for model: {cut(name)}")
    return number


def error_answer(error: StokerError) -> tuple[int, bytes]:
    """Return status and body of an error as TorchServe answers: input that does not fit is 400."""
    status = 400 if isinstance(error, InvalidInput) else error.status
    kind = "ModelVersionNotFoundException" if isinstance(error, UnknownVersion) else ""
    return status, _error_body(status, str(error), kind)


def _error_body(status: int, message: str, kind: str = "") -> bytes:
    of_others = "InternalServerException" if status >= _SERVER_ERROR else "BadRequestException"
    return to_json({"code": status, "type": kind or _TYPES.get(status, of_others), "message": message})


def to_json(content: Any) -> bytes:
    """Write JSON as TorchServe does, in lines: its users read it in a terminal."""
    return json.dumps(content, indent=2).encode() + b"\n"


HEALTHY: Final = to_json({"status": "Healthy"})
"""The answer to a ping when all models can score."""


class Predictions(Dialect):
    """A body for whatever serves a model: entry scripts get it as it is, other models get rows or images.

    Args:
        form_type: The `Content-Type` of a form with rows of a model that takes no images.
        array: Reads a body that is one array.
    """

    def __init__(self, form_type: bytes = b"", array: BinaryDialect | None = None) -> None:
        self._form_type, self._array = form_type, array

    @classmethod
    def of(cls, service: Service, headers: Mapping[bytes, bytes]) -> Predictions:
        """Return the dialect for a request; raises UnsupportedEncoding if the model cannot read its type."""
        content_type = headers.get(b"content-type", b"")
        if (
            content_type[:19].lower() == b"multipart/form-data"
            and service.script is None
            and service.images is None
        ):
            return cls(content_type)
        service.dialect.check_media(content_type)
        array = BinaryDialect.of(service, headers)
        return PREDICTIONS if array is None else cls(array=array)

    def _own(self, service: ServiceBase) -> Dialect:
        if self._array is not None:
            return self._array
        # The process that decodes long bodies has no dialect of the service.
        own = getattr(service, "dialect", None)
        if own is None:
            assert service.signature is not None, "it is loaded"
            own = loaded_dialect(service.name, service.signature, service.facts.non_finite)
        return own

    def blocks_on_long(self, service: ServiceBase, body: bytes, head: RequestHead | None) -> bool:
        """Whether the dialect of the model blocks."""
        return self._own(service).blocks_on_long(service, body, head)

    def submit(self, call: Call, exchange: Exchange, body: bytes, head: RequestHead | None) -> None:
        """Submit a body as the dialect of the model does; a list is rows, `instances` and `inputs` are KServe's."""
        own = self._own(call.service)
        if self._form_type:
            body = _only_part(body, self._form_type)
        if isinstance(own, JsonDialect):
            if _SIGNED.match(body):
                own = PREDICT
            elif _ROWS.match(body):
                body = b'{"data": %b}' % body
        own.submit(call, exchange, body, head)

    def complete(self, call: Call) -> None:
        """Answer as the dialect does that has read the body."""
        write, own = getattr(call, "write", None), self._own(call.service)
        if isinstance(own, ScriptDialect):
            own.send(call, _with_error(ScriptAnswer.unpack(call.output_texts(0)[0])))
        elif write is None:
            own.complete(call)
        else:
            lines, body = write(named_outputs(call))
            call.answer_scored(body, time.monotonic_ns(), lines)

    def refusal(self, error: StokerError) -> tuple[int, bytes, bytes]:
        """Return TorchServe's JSON of an error, with its code as a header."""
        status, body = error_answer(error)
        return status, code_line(error), body


PREDICTIONS: Final = Predictions()
"""Reads all bodies but forms with rows, and arrays."""


def _with_error(answer: ScriptAnswer) -> ScriptAnswer:
    """The answer of a script; of an error that was not written by the script itself, in TorchServe's JSON."""
    error = None if answer.status < _FIRST_ERROR else parse_error(answer.body)
    if error is None or "code" not in error:
        return answer
    return replace(answer, body=_error_body(answer.status, str(error["message"])))


def _only_part(body: bytes, content_type: bytes) -> bytes:
    parts = form_parts(body, content_type, 1)
    if not parts:
        raise InvalidInput("The multipart form has no parts.")
    return parts[0][1]


class _PredictionEndpoint(ScoringEndpoint):
    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway)
        self._refuse = error_answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "PUT":
            # `curl -T` puts.
            scope = {**scope, "method": "POST"}
        await super().__call__(scope, receive, send)

    def _choose(self, scope: Scope, headers: Mapping[bytes, bytes]) -> tuple[Service, Dialect]:
        name, version = scope["path_params"]["name"], scope["path_params"].get("version")
        service = find_version(self._gateway, name, version)
        if version is None:
            service = self._gateway.directory.choose_version(service, headers)
        return service, Predictions.of(service, headers)


class _ExplanationEndpoint(_PredictionEndpoint):
    def _choose(self, scope: Scope, headers: Mapping[bytes, bytes]) -> tuple[Service, Dialect]:
        service, _ = super()._choose(scope, headers)
        raise NotSupported(
            f"{service.name} is not explained: the server computes predictions only; ask /predictions/{service.name}."
        )


def torchserve_routes(gateway: Gateway) -> list[Route]:
    """Return the routes."""
    predict, explain = _PredictionEndpoint(gateway), _ExplanationEndpoint(gateway)

    async def ping(_: Request) -> Response:
        gateway.check_ready()
        return Response(HEALTHY, media_type="application/json")

    return [
        Route("/ping", ping),
        *(
            Route(f"/{verb}/{{name}}{version}", endpoint)
            for verb, endpoint in (("predictions", predict), ("explanations", explain))
            for version in ("", "/{version}")
        ),
    ]


_DESCRIBED: Final = {
    "/ping": ("get", "200 if all models can score, else 503"),
    "/predictions/{model_name}": ("post", "score a body with the default version of a model"),
    "/predictions/{model_name}/{model_version}": ("post", "score a body with a version of a model"),
    "/v1/models/{model_name}:predict": ("post", "KServe's protocol v1"),
    "/v2/models/{model_name}/infer": ("post", "KServe's protocol v2"),
}
_VARIABLE: Final = re.compile(r"\{(\w+)\}")


def describe_api(tells_version: bool) -> bytes:
    """Return the description of the API, OpenAPI 3.0.1; /swagger.json describes the tensors of a model."""
    paths = {
        path: {
            method: {
                "summary": summary,
                "parameters": [
                    {"in": "path", "name": name, "required": True, "schema": {"type": "string"}}
                    for name in _VARIABLE.findall(path)
                ],
                "responses": {"default": {"description": "an answer, or an error as JSON"}},
            }
        }
        for path, (method, summary) in _DESCRIBED.items()
    }
    info = {"title": "Stoker", "version": __version__ if tells_version else ""}
    return to_json({"openapi": "3.0.1", "info": info, "paths": paths})
