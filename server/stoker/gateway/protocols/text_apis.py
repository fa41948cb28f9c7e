"""The routes of OpenAI's `/v1/embeddings`, and of Cohere's and Jina's `/v1/rerank`, for models that take texts."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from starlette.routing import Route

from stoker.errors import InvalidInput, StokerError, UnknownService, cut
from stoker.gateway.http.responses import JSON_TYPE_LINE, code_line
from stoker.gateway.model_directory import SERVICE_PATH
from stoker.gateway.protocols.endpoint import DialectEndpoint, check_posted, find_service
from stoker.gateway.scoring.dialects import TensorDialect
from stoker.wire.text_apis import TextRequest, decode_embeddings, decode_rerank, encode_answer

if TYPE_CHECKING:
    import numpy as np
    from starlette.types import Scope

    from stoker.gateway.gateway import Gateway
    from stoker.gateway.rows.ticket import Exchange
    from stoker.gateway.scoring.call import Call, Dialect
    from stoker.gateway.scoring.service import Service
    from stoker.wire.script_requests import RequestHead


def text_routes(gateway: Gateway) -> list[Route]:
    """Return the routes, for the default model and for each by its name."""
    return [
        Route(f"{prefix}/v1/{name}", _endpoint(gateway, dialect))
        for prefix in ("", SERVICE_PATH + "{name}")
        for name, dialect in TEXT_APIS.items()
    ]


def _endpoint(gateway: Gateway, dialect: Dialect) -> DialectEndpoint:
    def find(scope: Scope, headers: Mapping[bytes, bytes]) -> tuple[Service, Dialect]:
        check_posted(scope)
        return find_service(gateway, scope, headers), dialect

    return DialectEndpoint(gateway, find, _error_answer)


class _TextApi(TensorDialect):
    """Requests with texts by other names; `Call.write` encodes the fields of the answer."""

    def __init__(self, decode: Callable[[bytes], TextRequest]) -> None:
        self._decode = decode

    def submit(self, call: Call, exchange: Exchange, body: bytes, head: RequestHead | None) -> None:
        """Submit the texts of a body."""
        del head
        name = call.service.name
        if exchange.signature.callers is None:
            raise InvalidInput(f"{name} takes no texts.")
        request = self._decode(body)
        if request.model not in ("", name, f"{name}:{call.service.version}"):
            raise UnknownService(
                f"This path is for the model {name}, not {cut(request.model)}; other models are at "
                f"{SERVICE_PATH}NAME/v1."
            )
        call.write = request.encode
        exchange.submit(call, [request.texts])

    @staticmethod
    def _answer(call: Call, outputs: Mapping[str, np.ndarray]) -> None:
        body = encode_answer(call.write, call.service.name, outputs, call.tokens)
        call.answer_scored(body, time.monotonic_ns(), JSON_TYPE_LINE)

    def refusal(self, error: StokerError) -> tuple[int, bytes, bytes]:
        """Return an error in OpenAI's form."""
        status, body = _error_answer(error)
        return status, code_line(error), body


TEXT_APIS: Final = {"embeddings": _TextApi(decode_embeddings), "rerank": _TextApi(decode_rerank)}


def _error_answer(error: StokerError) -> tuple[int, bytes]:
    status = 400 if isinstance(error, InvalidInput) else error.status
    content = {"message": str(error), "type": "invalid_request_error" if status < 500 else "server_error"}
    return status, json.dumps({"error": {**content, "param": None, "code": error.code}}).encode()
