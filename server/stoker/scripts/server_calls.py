"""Requests of a script to the models of its own server, by the Open Inference Protocol over the loopback.

A call waits for another model while its own model waits for the call. So a call ends with the request that it is
made for, and it names the models that wait: a call to one of these is refused, because it would wait for itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import orjson
from msgspec import Struct

from stoker.wire.datatypes import DATATYPES
from stoker.wire.oip_tensors import datatype_of
from stoker.wire.packed import join_strings, split_strings

CALLERS: Final = "stoker_callers"
"""The parameter of a request that names the models that wait for it, as `NAME:VERSION/…`."""

_JSON_BYTES: Final = "Inference-Header-Content-Length"
_DTYPES: Final = {datatype: dtype for dtype, datatype in DATATYPES.items()}
_LEAST_S: Final = 0.001


class CallFailed(Exception):
    """A call has no answer.

    Attributes:
        status: The status of the answer; 0 without one.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class OwnServer(Struct, frozen=True):
    """The address at which a process reaches its server.

    Attributes:
        key_of: Returns the key for a model; None if callers need no key.
        problem: The reason why the server cannot be called; empty if it can.
    """

    host: str
    port: int
    tls: bool
    key_of: Callable[[str], str | None]
    problem: str = ""


class _Scope(Struct, frozen=True):
    """The requests that a model answers now."""

    callers: tuple[str, ...] = ()
    deadline_s: float = float("inf")


_servers: Final[list[OwnServer]] = []
_OUTSIDE: Final = _Scope()
_scope: Final[ContextVar[_Scope]] = ContextVar("stoker_server_calls", default=_OUTSIDE)


def connect(server: OwnServer) -> None:
    """Let the scripts of this process call the models of a server."""
    _servers[:] = [server]


@contextmanager
def on_behalf_of(callers: Sequence[str], timeout_ms: int) -> Iterator[None]:
    """Bound the calls in this context, and in threads and tasks that copy it.

    Args:
        callers: The models that wait for the calls, as `NAME:VERSION`.
        timeout_ms: How long the requests may take for which the calls are made.
    """
    token = _scope.set(_Scope(tuple(callers), time.monotonic() + timeout_ms / 1000))
    try:
        yield
    finally:
        _scope.reset(token)


def call_model(
    model: str,
    version: int | None,
    inputs: Mapping[str, np.ndarray],
    outputs: Sequence[str],
    *,
    request_id: str = "",
    timeout_us: int = 0,
    parameters: Mapping[str, Any],
) -> dict[str, np.ndarray]:
    """Call a model of this server, and return its outputs by name.

    Args:
        version: The version; None for the version of requests that name none.
        inputs: Numbers, booleans, or `object` arrays of `bytes`.
        outputs: The names of the requested outputs; all if empty.
        timeout_us: How long to wait; 0 for as long as the request may take for which the call is made.

    Raises:
        CallFailed: There is no answer, or it is an error.
    """
    scope = _scope.get()
    _check_callers(model, version, scope)
    left_s = scope.deadline_s - time.monotonic()
    left_s = min(left_s, timeout_us / 1e6) if timeout_us else left_s
    if left_s <= 0:
        raise CallFailed(f"there is no time left to call {model}")
    more: dict[str, Any] = {"binary_data_output": True, CALLERS: "/".join(scope.callers)}
    if left_s < float("inf"):
        more["timeout"] = round(max(left_s, _LEAST_S) * 1e6)
    parts = {
        name: join_strings(array) if array.dtype == object else np.ascontiguousarray(array).tobytes()
        for name, array in inputs.items()
    }
    head = orjson.dumps(
        {
            **({"id": request_id} if request_id else {}),
            "parameters": {**parameters, **more},
            "inputs": [
                {
                    "name": name,
                    "datatype": datatype_of(array),
                    "shape": array.shape,
                    "parameters": {"binary_data_size": len(parts[name])},
                }
                for name, array in inputs.items()
            ],
            "outputs": [{"name": name} for name in outputs],
        }
    )
    path = f"/v2/models/{quote(model, safe='')}{'' if version is None else f'/versions/{version}'}/infer"
    body = b"".join([head, *parts.values()])
    answer, json_bytes = _post(model, path, body, len(head), left_s)
    return dict(_outputs(answer, json_bytes))


def is_ready(model: str, version: str = "") -> bool:
    """Whether the server answers requests to a model now."""
    path = f"/v2/models/{quote(model, safe='')}{version and f'/versions/{quote(version)}'}/ready"
    try:
        return _send("GET", path, None, {}, _READY_S)[0] == HTTPStatus.OK
    except OSError as error:
        raise CallFailed(f"the server cannot be called for {model}: {error}") from error


_READY_S: Final = 10.0


def _check_callers(model: str, version: int | None, scope: _Scope) -> None:
    for caller in scope.callers:
        name, _, number = caller.rpartition(":")
        if name == model and (version is None or number == str(version)):
            raise CallFailed(
                f"{model} waits for this call itself, and would wait for ever: call another model, or the code"
            )


def _post(model: str, path: str, body: bytes, json_bytes: int, left_s: float) -> tuple[bytes, int]:
    """Send a request; return the body of its answer, and the length of the JSON in it."""
    headers = {"Content-Type": "application/octet-stream", _JSON_BYTES: str(json_bytes)}
    key = _server().key_of(model)
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    try:
        status, answer, length = _send("POST", path, body, headers, left_s)
    except OSError as error:
        raise CallFailed(f"{model} cannot be called: {error}") from error
    if status != HTTPStatus.OK:
        raise CallFailed(_reason(answer), status)
    return answer, int(length or len(answer))


def _send(
    method: str, path: str, body: bytes | None, headers: Mapping[str, str], left_s: float
) -> tuple[int, bytes, str | None]:
    # Imported here: each device process imports this module, and few call others.
    import http.client
    import ssl

    server = _server()
    timeout_s = None if left_s == float("inf") else left_s
    connection: http.client.HTTPConnection
    if server.tls:
        # This is our own server, whose certificate need not name this address. The default context would also read
        # the authorities of the system in each call.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(server.host, server.port, timeout=timeout_s, context=context)
    else:
        connection = http.client.HTTPConnection(server.host, server.port, timeout=timeout_s)
    try:
        connection.request(method, path, body, {**headers, "Connection": "close"})
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.getheader(_JSON_BYTES)
    except http.client.HTTPException as error:
        raise ConnectionError(f"the server broke off: {error!r}") from error
    finally:
        connection.close()


def _server() -> OwnServer:
    if not _servers:
        raise CallFailed("there is no server here whose models could be called")
    if _servers[0].problem:
        raise CallFailed(_servers[0].problem)
    return _servers[0]


def _reason(answer: bytes) -> str:
    try:
        return str(orjson.loads(answer)["error"])
    except (ValueError, KeyError, TypeError):
        return answer.decode(errors="replace")


def _outputs(answer: bytes, json_bytes: int) -> Iterator[tuple[str, np.ndarray]]:
    start = json_bytes
    for output in orjson.loads(answer[:json_bytes])["outputs"]:
        size, shape = output["parameters"]["binary_data_size"], output["shape"]
        content = bytearray(answer[start : start + size])
        start += size
        if output["datatype"] == "BYTES":
            count = int(np.prod(shape, dtype=np.int64))
            yield output["name"], split_strings(bytes(content), count).reshape(shape)
        else:
            yield output["name"], np.frombuffer(content, _DTYPES[output["datatype"]]).reshape(shape)
