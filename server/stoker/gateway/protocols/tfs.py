"""TensorFlow Serving's REST API: its routes, its errors, its requests as dialects."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stoker.errors import MalformedBody, NotFound, StokerError, cut
from stoker.gateway.gateway import Gateway
from stoker.gateway.http.requests import requester_of
from stoker.gateway.http.responses import error_answer, respond_or_refuse
from stoker.gateway.protocols.access import check_metadata_access
from stoker.gateway.protocols.endpoint import DialectEndpoint
from stoker.gateway.protocols.infer import signatures_of
from stoker.gateway.scoring.call import Call
from stoker.gateway.scoring.dialects import TensorDialect, submit_tensors, write_json
from stoker.gateway.scoring.service import Service
from stoker.wire.tfs import PredictRequest, decode_predict, encode_predict
from stoker.wire.tfs_examples import decode_examples, encode_results

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from stoker.gateway.rows.ticket import Exchange
    from stoker.gateway.scoring.call import Dialect
    from stoker.gateway.served_models import ServedVersion
    from stoker.tensors import NamedSignature, TensorInfo
    from stoker.wire.script_requests import RequestHead

DTYPES: Final = {
    "bool": "DT_BOOL",
    "uint8": "DT_UINT8",
    "uint16": "DT_UINT16",
    "uint32": "DT_UINT32",
    "uint64": "DT_UINT64",
    "int8": "DT_INT8",
    "int16": "DT_INT16",
    "int32": "DT_INT32",
    "int64": "DT_INT64",
    "float16": "DT_HALF",
    "bfloat16": "DT_BFLOAT16",
    "float32": "DT_FLOAT",
    "float64": "DT_DOUBLE",
    "string": "DT_STRING",
}
"""TensorFlow's name of each dtype."""

_LOAD_ERRORS: Final = {
    "load_timeout": "DEADLINE_EXCEEDED",
    "unknown_model": "NOT_FOUND",
    "corrupt_model": "DATA_LOSS",
    "invalid_settings": "INVALID_ARGUMENT",
    "repository_error": "FAILED_PRECONDITION",
    "environment_unusable": "FAILED_PRECONDITION",
    "device_unavailable": "UNAVAILABLE",
}
"""TensorFlow's error code by the code of the error with which a version was not loaded; INTERNAL for all others."""


def find_version(gateway: Gateway, name: str, number: str | None, label: str | None) -> Service:
    """Find a version of a model by number, else by label; the default version if both are None."""
    states = gateway.directory.model_versions(name)
    if not states or (number is not None and number not in states):
        requested = f"Latest({cut(name)})" if number is None else f"Specific({cut(name)}, {cut(number)})"
        raise NotFound(f"Servable not found for request: {requested}")
    try:
        return gateway.directory.find(name, number, label)
    except StokerError as error:
        if label is not None:
            raise MalformedBody(f"Unrecognized servable version label: {cut(label)}") from error
        raise


def describe_versions(gateway: Gateway, name: str, number: str | None, label: str | None) -> dict[str, Any]:
    """Return the states of one version, by number or else label, or of all, as a `GetModelStatusResponse` in JSON."""
    model = gateway.directory.models.get(name)
    if model is None:
        raise NotFound(f"Could not find any versions of model {cut(name)}")
    if label is not None:
        number = find_version(gateway, name, None, label).version
    versions = model.versions
    if number is not None:
        if number not in versions:
            raise NotFound(f"Could not find version {cut(number)} of model {cut(name)}")
        versions = {number: versions[number]}
    return {"model_version_status": [_version_status(number, one) for number, one in versions.items()]}


def _version_status(number: str, version: ServedVersion) -> dict[str, Any]:
    # A version that is served counts as well, even if its changed files could not be loaded again.
    status = version.status
    failed = status.state == "END" and status.error
    code = _LOAD_ERRORS.get(status.error, "INTERNAL") if failed else "OK"
    shown = {"error_code": code, "error_message": status.reason if failed else ""}
    return {"version": number, "state": status.shown_state, "status": shown}


def describe_signatures(service: Service) -> dict[str, Any]:
    """Return the signatures that are served, as the JSON of a `SignatureDefMap`; raises as `signatures_of`."""
    signatures = {signature.name: _described_signature(signature) for signature in signatures_of(service)}
    return {"signature_def": signatures}


def _described_signature(signature: NamedSignature) -> dict[str, Any]:
    inputs, outputs = (
        {info.name: _tensor_info(info) for info in side}
        for side in (signature.tensors.inputs, signature.tensors.outputs)
    )
    return {"inputs": inputs, "outputs": outputs, "method_name": f"tensorflow/serving/{signature.method}"}


def _tensor_info(info: TensorInfo) -> dict[str, Any]:
    # Protobuf's JSON writes 64-bit integers as strings.
    dims = [{"size": str(size), "name": ""} for size in info.shape]
    return {
        "dtype": DTYPES[info.dtype],
        "tensor_shape": {"dim": dims, "unknown_rank": info.any_rank},
        "name": f"{info.name}:0",
    }


_TARGET: Final = re.compile(
    r"/v1/models/(?P<name>[^/:]+)(?:/versions/(?P<version>[0-9]+)|/labels/(?P<label>[^/:]+))?"
    r"(?:(?P<metadata>/metadata)|:(?P<verb>predict|classify|regress))?",
    re.IGNORECASE,
)
_MAX_VERSION: Final = 2**63 - 1
_MAX_DIGITS: Final = 19


class _Signed(TensorDialect):
    """Requests for a signature of a model: one function decodes them, given the signatures, another the answers."""

    def __init__(self, decode: Callable[..., Any], encode: Callable[..., bytes]) -> None:
        self._decode, self._encode = decode, encode

    def submit(self, call: Call, exchange: Exchange, body: bytes, head: RequestHead | None) -> None:
        del head
        service = call.service
        request = self._decode(service.name, signatures=signatures_of(service), body=body)
        call.write = partial(write_json, partial(self._encode, request, non_finite=service.facts.non_finite))
        submit_tensors(call, exchange, request.inputs, request.signature.name)


def _decode_predict(model: str, signatures: Sequence[NamedSignature], body: bytes) -> PredictRequest:
    del model
    return decode_predict(signatures, body)


PREDICT: Final = _Signed(_decode_predict, encode_predict)
"""Predict in row and column format."""
_VERBS: Final[Mapping[str, Dialect]] = {
    "predict": PREDICT,
    "classify": _Signed(partial(decode_examples, verb="classify"), partial(encode_results, "classify")),
    "regress": _Signed(partial(decode_examples, verb="regress"), partial(encode_results, "regress")),
}
"""Classify and regress get examples of features, and answer with labels and scores, or with numbers."""


def tfs_routes(gateway: Gateway) -> list[Route]:
    """Return the routes below `/v1`."""
    endpoint = _Endpoint(gateway)
    roots = ("/v1", "/V1")
    return [Route(root + rest, endpoint) for root in roots for rest in ("", "/{rest:path}")]


class _Endpoint:
    """All paths below `/v1`. The API matches them by case-insensitive patterns, and answers 400 to others."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._scoring = DialectEndpoint(gateway, self._find, error_answer)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        target = _TARGET.fullmatch(_raw_path(scope))
        if scope["method"] == "POST" and target is not None and target["verb"]:
            await self._scoring(scope, receive, send)
            return

        async def describe(request: Request) -> Response:
            body = json.dumps(await self._describe(request, target), indent=4)
            return Response(body, media_type="application/json")

        response = await respond_or_refuse(Request(scope, receive), describe, error_answer)
        await response(scope, receive, send)

    def _find(self, scope: Scope, headers: Mapping[bytes, bytes]) -> tuple[Service, Dialect]:
        target = _TARGET.fullmatch(_raw_path(scope))
        assert target is not None, "looked at before"
        service = self._service(target)
        if target["version"] is None and target["label"] is None:
            service = self._gateway.directory.choose_version(service, headers)
        return service, _VERBS[target["verb"].lower()]

    async def _describe(self, request: Request, target: re.Match[str] | None) -> dict[str, Any]:
        path = _raw_path(request.scope)
        if request.method == "GET" and path.rstrip("/").lower() == "/v1/models":
            raise MalformedBody("Missing model name in request.")
        if request.method not in ("GET", "HEAD") or target is None or target["verb"]:
            raise MalformedBody(f"Malformed request: {cut(request.method)} {cut(path)}")
        if target["metadata"]:
            service = self._service(target)
            check_metadata_access(self._gateway, requester_of(request), (service,))
            await service.learn_signature()
            return _metadata(service)
        return describe_versions(self._gateway, unquote(target["name"]), _version(target), _label(target))

    def _service(self, target: re.Match[str]) -> Service:
        return find_version(self._gateway, unquote(target["name"]), _version(target), _label(target))


def _label(target: re.Match[str]) -> str | None:
    return None if target["label"] is None else unquote(target["label"])


def _version(target: re.Match[str]) -> str | None:
    """Return the version of a path, without leading zeros; raises MalformedBody if it has too many digits."""
    if target["version"] is None:
        return None
    digits = target["version"].lstrip("0") or "0"
    if len(digits) > _MAX_DIGITS or int(digits) > _MAX_VERSION:
        raise MalformedBody(f"Failed to convert version: {cut(target['version'])} to numeric.")
    return digits


def _raw_path(scope: Scope) -> str:
    """Return the path as it was sent: a name may contain an encoded slash or colon."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw.partition(b"?")[0].decode("latin-1")


def _metadata(service: Service) -> dict[str, Any]:
    return {
        "model_spec": {"name": service.name, "signature_name": "", "version": service.version},
        "metadata": {"signature_def": describe_signatures(service)},
    }
