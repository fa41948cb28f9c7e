"""HTTP/1.1 as bytes: requests written by hand, answers taken apart, over plain sockets and over asyncio's streams."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from tests.patience import PATIENCE_S

__all__ = [
    "THE_APP",
    "Answer",
    "AsyncConnection",
    "Connection",
    "bearer",
    "binary_infer",
    "request",
    "rows_body",
    "scoring",
]

Headers = Sequence[tuple[str, str]]
THE_APP = [("Origin", "https://caller.example")]
"""A header that changes nothing but the door: the direct one leaves requests of browsers to the app."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer as it came."""

    raw: bytes
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        """The value of a header that comes at most once, by its lower-case name."""
        values = [value for given, value in self.headers if given.lower() == name]
        assert len(values) <= 1, f"{name} came {len(values)} times"
        return values[0] if values else None

    @property
    def closes(self) -> bool:
        """Whether the answer says that its connection ends."""
        return (self.header("connection") or "").lower() == "close"

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    def error_code(self) -> str:
        """The code of an error, after checking the one shape that all errors have."""
        content = self.json()
        assert set(content) == {
            "message",
            "code",
            *(["error_id"] if content["code"] == "model_failed" else []),
        }
        assert isinstance(content["message"], str)
        assert content["message"]
        assert self.header("content-type") == "application/json"
        return str(content["code"])

    def comparable(self) -> bytes:
        """The raw bytes without what differs from one answer to the next: date, generated ids, times."""
        text = re.sub(rb"(\r\ndate: )[^\r]*", rb"\1-", self.raw)
        text = re.sub(rb"(\r\nx-(?:ms-)?request-id: )[0-9a-f-]{36}(?=\r)", rb"\1-", text)
        text = re.sub(rb"(dur=|\r\nx-ms-run-fn-exec-ms: )[0-9.]+", rb"\1-", text)
        return re.sub(rb'"error_id": "[0-9a-f]{16}"', b'"error_id": "-"', text)


def bearer(key: str) -> tuple[str, str]:
    """The header that carries a key."""
    return ("Authorization", f"Bearer {key}")


def rows_body(*rows: Iterable[Any]) -> bytes:
    """The scoring body of these rows."""
    return json.dumps({"data": [list(row) for row in rows]}).encode()


def request(
    method: str, path: str, headers: Headers = (), body: bytes | None = None, *, version: str = "1.1"
) -> bytes:
    """One request; Host, and Content-Length where there is a body, are added."""
    lines = [
        f"{method} {path} HTTP/{version}",
        "Host: localhost",
        *(f"{name}: {value}" for name, value in headers),
    ]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


def scoring(path: str, key: str, body: bytes, headers: Headers = (), *, version: str = "1.1") -> bytes:
    """One scoring request with its key."""
    return request("POST", path, [bearer(key), *headers], body, version=version)


def binary_infer(model: str, key: str, rows: np.ndarray, datatype: str) -> bytes:
    """The request that gives a model its input `x` in bytes, and asks for bytes."""
    tensor = {
        "name": "x",
        "shape": list(rows.shape),
        "datatype": datatype,
        "parameters": {"binary_data_size": rows.nbytes},
    }
    text = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    headers = [("Inference-Header-Content-Length", str(len(text)))]
    return scoring(f"/v2/models/{model}/infer", key, text + rows.tobytes(), headers)


def take_answer(buffer: bytes, *, bodiless: bool = False) -> tuple[Answer, bytes] | None:
    """Split the first answer off; None while it is incomplete. `bodiless` is for the answer to a HEAD."""
    head, separator, rest = buffer.partition(b"\r\n\r\n")
    if not separator:
        return None
    status_line, *lines = head.decode("latin-1").split("\r\n")
    match = re.fullmatch(r"HTTP/1\.1 ([0-9]{3}) .*", status_line)
    assert match, f"not a status line: {status_line!r}"
    status = int(match[1])
    headers = tuple((name, value) for name, _, value in (line.partition(": ") for line in lines))
    if ("transfer-encoding", "chunked") in headers:
        chunks = _take_chunks(rest)
        if chunks is None:
            return None
        body, left = chunks
        return Answer(buffer[: len(buffer) - len(left)], status, headers, body), left
    lengths = [int(value) for name, value in headers if name.lower() == "content-length"]
    assert len(lengths) <= 1, f"several lengths: {lengths}"
    assert lengths or status < 200 or status == 204, f"an answer without a length: {head!r}"
    length = 0 if bodiless or not lengths else lengths[0]
    if len(rest) < length:
        return None
    raw = head + separator + rest[:length]
    return Answer(raw, status, headers, rest[:length]), rest[length:]


def _take_chunks(rest: bytes) -> tuple[bytes, bytes] | None:
    """The body whose chunks stand first, and what follows; None while it is incomplete."""
    body = b""
    while True:
        size, separator, rest = rest.partition(b"\r\n")
        length = int(size, 16) if separator else 0
        if not separator or len(rest) < length + 2:
            return None
        assert rest[length : length + 2] == b"\r\n", "a chunk of another length than it says"
        body, rest = body + rest[:length], rest[length + 2 :]
        if not length:
            return body, rest


class Connection:
    """One client connection over a blocking socket; every wait is bounded."""

    def __init__(
        self,
        port: int,
        *,
        timeout_s: float = PATIENCE_S,
        receive_buffer: int | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self.socket.connect(("127.0.0.1", port))
            if tls is not None:
                self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        except OSError:
            self.socket.close()
            raise
        self._buffer = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send all of it."""
        self.socket.sendall(data)

    def answer(self, *, bodiless: bool = False) -> Answer:
        """Wait for the next answer."""
        while (taken := take_answer(self._buffer, bodiless=bodiless)) is None:
            data = self.socket.recv(1 << 16)
            assert data, f"the connection ended without an answer, after {self._buffer!r}"
            self._buffer += data
        answer, self._buffer = taken
        return answer

    def read_until(self, marker: bytes) -> bytes:
        """Wait until these bytes have come; takes and returns what has come up to them."""
        while marker not in self._buffer:
            data = self.socket.recv(1 << 16)
            assert data, f"the connection ended without {marker!r}, after {self._buffer[-200:]!r}"
            self._buffer += data
        seen, _, self._buffer = self._buffer.partition(marker)
        return seen + marker

    def ask(self, data: bytes) -> Answer:
        """Send one request and wait for its answer."""
        self.send(data)
        return self.answer()

    def assert_ended(self) -> None:
        """Assert that the server closes, and says nothing more before."""
        try:
            rest = self._buffer + self.socket.recv(1 << 16)
        except ConnectionResetError:
            rest = self._buffer
        assert rest == b"", f"more came before the end: {rest!r}"

    def assert_open(self, path: str = "/") -> None:
        """Assert that the connection still serves: one more request gets its answer on it."""
        assert self.ask(request("GET", path)).status == 200


class AsyncConnection:
    """One client connection over asyncio's streams, for many at once.

    Attributes:
        timeout_s: How long it waits for an answer, or for the end.
    """

    timeout_s = PATIENCE_S

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._buffer = b""

    @classmethod
    async def open(cls, port: int, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> Self:
        """Connect."""
        name = None if tls is None else "localhost"
        return cls(*await asyncio.open_connection(host, port, ssl=tls, server_hostname=name))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the connection."""
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            return

    async def ask(self, data: bytes) -> Answer:
        """Send one request and wait for its answer; raises ConnectionError when none comes."""
        self._writer.write(data)
        await self._writer.drain()
        return await self.answer()

    def tell(self, data: bytes) -> None:
        """Send something and wait for nothing."""
        self._writer.write(data)

    async def answer(self) -> Answer:
        """Wait for the next answer; raises ConnectionError when none comes."""
        async with asyncio.timeout(self.timeout_s):
            while (taken := take_answer(self._buffer)) is None:
                data = await self._reader.read(1 << 16)
                if not data:
                    raise ConnectionError(f"the connection ended without an answer, after {self._buffer!r}")
                self._buffer += data
        answer, self._buffer = taken
        return answer

    async def closes_silently(self) -> bool:
        """Wait until the server closes; whether it said nothing more before."""
        async with asyncio.timeout(self.timeout_s):
            try:
                return not self._buffer and not await self._reader.read(1)
            except ConnectionResetError:
                return True
