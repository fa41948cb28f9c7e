"""Bodies that are one array, posted to a scoring URI: `application/octet-stream` and `application/x-npy`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from stoker.errors import InvalidInput, StokerError
from stoker.gateway.http.responses import JSON_TYPE_LINE, code_line, error_body, failed_line
from stoker.gateway.protocols.infer_dialect import tensors_of
from stoker.gateway.scoring.call import Dialect
from stoker.gateway.scoring.json_dialects import JsonDialect
from stoker.gateway.scoring.tensor_dialect import named_outputs, submit_tensors
from stoker.wire.array_bodies import decode_npy, decode_octets, encode_npy
from stoker.wire.tensor_json import check_rows

if TYPE_CHECKING:
    from stoker.gateway.rows.exchange import Exchange
    from stoker.gateway.scoring.call import Call, Scorer
    from stoker.gateway.scoring.service import Service
    from stoker.wire.envelope import RequestHead

__all__ = ["BinaryDialect", "is_array"]

_OCTETS: Final = b"application/octet-stream"
_NPY: Final = b"application/x-npy"
_DTYPE: Final = b"x-stoker-dtype"
_SHAPE: Final = b"x-stoker-shape"
_NPY_TYPE: Final = b"content-type: application/x-npy\r\n"


def is_array(content_type: bytes) -> bool:
    """Whether a `Content-Type` is one of these, so that the body may be one array."""
    return _kind(content_type) in (_OCTETS, _NPY)


def _kind(content_type: bytes) -> bytes:
    return content_type.partition(b";")[0].strip().lower()


class BinaryDialect(Dialect):
    """Scoring requests whose body is the array of the model's only input; answered in JSON or as an array."""

    def __init__(self, headers: Mapping[bytes, bytes]) -> None:
        """Read from the headers of a request the format of its body and of the answer."""
        self._is_npy = _kind(headers.get(b"content-type", b"")) == _NPY
        self._dtype = _text(headers.get(_DTYPE))
        self._shape = _text(headers.get(_SHAPE))
        accepted = headers.get(b"accept", b"").split(b",")
        self._answers_npy = any(_kind(item) == _NPY for item in accepted)

    @classmethod
    def of(cls, service: Service, headers: Mapping[bytes, bytes]) -> BinaryDialect | None:
        """The dialect for a request; None if its body is JSON, an image, or left to an entry script."""
        if service.script is not None or not is_array(headers.get(b"content-type", b"")):
            return None
        if service.images is not None and _DTYPE not in headers:
            # Images are also sent as application/octet-stream.
            return None
        return cls(headers)

    def reads_long(self, service: Scorer, body: bytes, head: RequestHead | None) -> bool:
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
        array = (
            decode_npy(body, info) if self._is_npy else decode_octets(body, info, self._dtype, self._shape)
        )
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


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1").strip()
