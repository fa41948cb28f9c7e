"""TensorFlow Serving's REST API: its routes, its errors, its requests as dialects."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stoker.echo import cut
from stoker.errors import InvalidInput, MalformedBody, StokerError
from stoker.gateway.gateway import Gateway
from stoker.gateway.http.request_ids import RequestIds, refusal_id_lines, sent_ids
from stoker.gateway.http.requests import authorization_of
from stoker.gateway.http.responses import JSON_TYPE_LINE, code_line, error_lines, split_lines
from stoker.gateway.protocols.endpoint import DialectEndpoint
from stoker.gateway.protocols.infer_dialect import signatures_of
from stoker.gateway.protocols.metadata_access import check_metadata_access
from stoker.gateway.protocols.tfs_describing import described_signatures, described_versions, service_of
from stoker.gateway.scoring.call import Call
from stoker.gateway.scoring.service import Service
from stoker.gateway.scoring.tensor_dialect import TensorDialect, submit_tensors
from stoker.wire.tfs import PredictRequest, decode_predict, encode_predict
from stoker.wire.tfs_examples import ExamplesRequest, Verb, decode_examples, encode_results

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from stoker.gateway.rows.exchange import Exchange
    from stoker.gateway.scoring.call import Dialect
    from stoker.non_finite import NonFinite
    from stoker.wire.envelope import RequestHead

__all__ = ["tfs_routes"]

_TARGET: Final = re.compile(
    r"/v1/models/(?P<name>[^/:]+)(?:/versions/(?P<version>[0-9]+)|/labels/(?P<label>[^/:]+))?"
    r"(?:(?P<metadata>/metadata)|:(?P<verb>predict|classify|regress))?",
    re.IGNORECASE,
)
_MAX_VERSION: Final = 2**63 - 1
_MAX_DIGITS: Final = 19


def _error_answer(error: StokerError) -> tuple[int, bytes]:
    status = 400 if isinstance(error, InvalidInput) else error.status
    return status, json.dumps({"error": str(error)}).encode()


class _Predict(TensorDialect):
    """Predict in row and column format."""

    def submit(self, call: Call, exchange: Exchange, body: bytes, head: RequestHead | None) -> None:
        del head
        service = call.service
        request = decode_predict(signatures_of(service), body)
        call.write = partial(self._write, request, service.non_finite)
        submit_tensors(call, exchange, request.inputs, request.signature.name)

    @staticmethod
    def _write(
        request: PredictRequest, non_finite: NonFinite, outputs: Mapping[str, np.ndarray]
    ) -> tuple[bytes, bytes]:
        return JSON_TYPE_LINE, encode_predict(request, outputs, non_finite)

    def refusal(self, error: StokerError) -> tuple[int, bytes, bytes]:
        status, body = _error_answer(error)
        return status, code_line(error), body


class _Examples(_Predict):
    """Classify and regress: examples of features in, labels with scores or numbers out."""

    def __init__(self, verb: Verb) -> None:
        self._verb = verb

    def submit(self, call: Call, exchange: Exchange, body: bytes, head: RequestHead | None) -> None:
        del head
        service = call.service
        request = decode_examples(service.name, self._verb, signatures_of(service), body)
        call.write = partial(self._write_results, request, service.non_finite)
        submit_tensors(call, exchange, request.inputs, request.signature.name)

    def _write_results(
        self, request: ExamplesRequest, non_finite: NonFinite, outputs: Mapping[str, np.ndarray]
    ) -> tuple[bytes, bytes]:
        return JSON_TYPE_LINE, encode_results(self._verb, request, outputs, non_finite)


_VERBS: Final[Mapping[str, Dialect]] = {
    "predict": _Predict(),
    "classify": _Examples("classify"),
    "regress": _Examples("regress"),
}


def tfs_routes(gateway: Gateway) -> list[Route]:
    """Return the routes below `/v1`."""
    endpoint = _Endpoint(gateway)
    roots = ("/v1", "/V1")
    return [Route(root + rest, endpoint) for root in roots for rest in ("", "/{rest:path}")]


class _Endpoint:
    """All paths below `/v1`: the API matches them by case-insensitive patterns, and answers 400 to any other."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._scoring = DialectEndpoint(gateway, self._find, _error_answer)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        target = _TARGET.fullmatch(_raw_path(scope))
        if scope["method"] == "POST" and target is not None and target["verb"]:
            await self._scoring(scope, receive, send)
            return
        request = Request(scope, receive)
        sent = sent_ids(dict(scope["headers"]))
        try:
            lines = RequestIds(*sent).lines
            status, body = 200, json.dumps(self._described(request, target), indent=4).encode()
        except StokerError as error:
            lines = refusal_id_lines(sent) + error_lines(error) + code_line(error)
            status, body = _error_answer(error)
        response = Response(body, status, media_type="application/json")
        response.raw_headers.extend(split_lines(lines))
        await response(scope, receive, send)

    def _find(self, scope: Scope, headers: Mapping[bytes, bytes]) -> tuple[Service, Dialect]:
        target = _TARGET.fullmatch(_raw_path(scope))
        assert target is not None, "looked at before"
        service = self._service(target)
        if target["version"] is None and target["label"] is None:
            service = self._gateway.by_weight(service, headers)
        return service, _VERBS[target["verb"].lower()]

    def _described(self, request: Request, target: re.Match[str] | None) -> dict[str, Any]:
        path = _raw_path(request.scope)
        if request.method == "GET" and path.rstrip("/").lower() == "/v1/models":
            raise MalformedBody("Missing model name in request.")
        if request.method not in ("GET", "HEAD") or target is None or target["verb"]:
            raise MalformedBody(f"Malformed request: {cut(request.method)} {cut(path)}")
        if target["metadata"]:
            service = self._service(target)
            check_metadata_access(self._gateway, authorization_of(request), (service,))
            return _metadata(service)
        return described_versions(self._gateway, unquote(target["name"]), _version(target), _label(target))

    def _service(self, target: re.Match[str]) -> Service:
        return service_of(self._gateway, unquote(target["name"]), _version(target), _label(target))


def _label(target: re.Match[str]) -> str | None:
    return None if target["label"] is None else unquote(target["label"])


def _version(target: re.Match[str]) -> str | None:
    """The version number of a path, without leading zeros; raises MalformedBody if it has too many digits."""
    if target["version"] is None:
        return None
    digits = target["version"].lstrip("0") or "0"
    if len(digits) > _MAX_DIGITS or int(digits) > _MAX_VERSION:
        raise MalformedBody(f"Failed to convert version: {cut(target['version'])} to numeric.")
    return digits


def _raw_path(scope: Scope) -> str:
    """The path as it was sent: a name may contain an encoded slash or colon."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw.partition(b"?")[0].decode("latin-1")


def _metadata(service: Service) -> dict[str, Any]:
    return {
        "model_spec": {"name": service.name, "signature_name": "", "version": service.version},
        "metadata": {"signature_def": described_signatures(service)},
    }
