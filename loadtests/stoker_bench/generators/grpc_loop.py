"""Callers of a closed loop by unary calls of gRPC.

Each makes the same call again as soon as its answer is complete. It writes and reads the frames of HTTP/2 (RFC 9113)
itself: decision 23 has the measurements.
"""

from __future__ import annotations

import asyncio
import struct
import time
from functools import partial
from typing import Final

from stoker_bench.generators.closed_loop import Caller, KeptConnection, Tally
from stoker_bench.generators.scoring_request import ScoringRequest

_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_ACK: Final = 0x1
_END_STREAM: Final = 0x1
_END_HEADERS: Final = 0x4
_INITIAL_WINDOW: Final = 65535
_MAX_FRAME: Final = 16384
_WHOLE_WINDOW: Final = (1 << 31) - 1
_INITIAL_WINDOW_SIZE: Final = 4
# No table of headers: then the server's trailers can be read without one.
_OWN_SETTINGS: Final = struct.pack(">HIHIHI", 1, 0, 2, 0, _INITIAL_WINDOW_SIZE, _WHOLE_WINDOW)
_OK: Final = b"\x0bgrpc-status\x010"


def _frame(kind: int, flags: int, stream: int, payload: bytes | memoryview = b"") -> bytes:
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream) + payload


def _text(value: str) -> bytes:
    """A string of HPACK, not compressed (RFC 7541, section 5.2)."""
    data = value.encode("latin-1")
    if len(data) < 127:
        return bytes([len(data)]) + data
    length, rest = b"\x7f", len(data) - 127
    while rest > 127:
        length += bytes([rest & 127 | 128])
        rest >>= 7
    return length + bytes([rest]) + data


def _header_block(authority: str, path: str, headers: dict[str, str]) -> bytes:
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": authority,
        "te": "trailers",
        "content-type": "application/grpc",
        **{name.lower(): value for name, value in headers.items()},
    }
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in fields.items())


class _Connection(KeptConnection):
    """One caller: makes the call, awaits the whole answer, makes it again on the next stream."""

    def __init__(self, head: bytes, message: bytes, tally: Tally) -> None:
        super().__init__()
        self._head = head
        self._message = struct.pack(">BI", 0, len(message)) + message
        self._tally = tally
        self._received = bytearray()
        self._stream = -1
        self._unsent = memoryview(b"")
        self._peers_window = _INITIAL_WINDOW
        self._window = _INITIAL_WINDOW
        self._stream_window = 0
        self._taken = 0
        self._succeeded = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._transport.write(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + _frame(_SETTINGS, 0, 0, _OWN_SETTINGS)
            + _frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", _WHOLE_WINDOW - _INITIAL_WINDOW))
        )
        self._call()

    def _call(self) -> None:
        self._stream += 2
        self._succeeded = False
        self._stream_window = self._peers_window
        self._unsent = memoryview(self._message)
        self._started_s = time.perf_counter()
        self._push(_frame(_HEADERS, _END_HEADERS, self._stream, self._head))

    def _push(self, frames: bytes = b"") -> None:
        """Send as much of the message as the server takes now."""
        while (
            self._unsent
            and (size := min(len(self._unsent), self._window, self._stream_window, _MAX_FRAME)) > 0
        ):
            part, self._unsent = self._unsent[:size], self._unsent[size:]
            self._window -= size
            self._stream_window -= size
            frames += _frame(_DATA, 0 if self._unsent else _END_STREAM, self._stream, part)
        if frames:
            self._transport.write(frames)

    def data_received(self, data: bytes) -> None:
        self._received += data
        start = 0
        while len(self._received) - start >= 9:
            size_and_kind, flags, stream = struct.unpack_from(">IBI", self._received, start)
            end = start + 9 + (size_and_kind >> 8)
            if len(self._received) < end:
                break
            payload = bytes(self._received[start + 9 : end])
            start = end
            self._take(size_and_kind & 0xFF, flags, stream, payload)
        del self._received[:start]

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind in (_DATA, _HEADERS) and stream == self._stream:
            self._take_answer(kind, flags, payload)
        elif kind == _SETTINGS and not flags & _ACK:
            self._take_settings(payload)
        elif kind == _PING and not flags & _ACK:
            self._transport.write(_frame(_PING, _ACK, 0, payload))
        elif kind == _WINDOW_UPDATE:
            (more,) = struct.unpack(">I", payload)
            if stream == 0:
                self._window += more
            elif stream == self._stream:
                self._stream_window += more
            self._push()
        elif kind == _RST_STREAM and stream == self._stream:
            self._end_call()
        elif kind == _GOAWAY:
            self._transport.close()

    def _take_answer(self, kind: int, flags: int, payload: bytes) -> None:
        if kind == _HEADERS:
            self._succeeded = _OK in payload
        else:
            self._taken += len(payload)
            if self._taken > _WHOLE_WINDOW // 2:
                self._transport.write(_frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", self._taken)))
                self._taken = 0
        if flags & _END_STREAM:
            self._end_call()

    def _take_settings(self, payload: bytes) -> None:
        for name, value in struct.iter_unpack(">HI", payload):
            if name == _INITIAL_WINDOW_SIZE:
                self._stream_window += value - self._peers_window
                self._peers_window = value
        self._transport.write(_frame(_SETTINGS, _ACK, 0))
        self._push()

    def _end_call(self) -> None:
        if self._tally.closing:
            return
        self._tally.count(self._started_s, succeeded=self._succeeded)
        if self._unsent:
            # The server did not want the rest of the message; the stream has to end from this side too.
            self._transport.write(_frame(_RST_STREAM, 0, self._stream, struct.pack(">I", 8)))
        self._call()

    def connection_lost(self, exc: Exception | None) -> None:
        self._tally.count_error()
        super().connection_lost(exc)


def grpc_caller(request: ScoringRequest) -> Caller:
    """Return how callers of gRPC are made; the body of the request is the message, and its headers are metadata."""
    head = _header_block(f"{request.host}:{request.port}", request.path, request.headers)
    return partial(_Connection, head, request.body)
