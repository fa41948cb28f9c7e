"""A kubelet's side of `kubectl port-forward` over a WebSocket: channel 0 is the port, channel 1 its errors."""

from __future__ import annotations

import base64
import hashlib
import select
import socket
import ssl
from typing import Final

__all__ = ["PROTOCOL", "accepts", "forward"]

PROTOCOL: Final = "v4.channel.k8s.io"

_GUID: Final = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_BINARY, _CLOSE = 2, 8


def accepts(key: str) -> str:
    """The server's answer to the key of a client."""
    return base64.b64encode(hashlib.sha1((key + _GUID).encode()).digest()).decode()


def forward(connection: ssl.SSLSocket, port: int, address: tuple[str, int]) -> None:
    """Lead a WebSocket that has just been opened to a server, until one of the two ends it."""
    with socket.create_connection(address) as server:
        for channel in (0, 1):
            _send(connection, bytes([channel]) + port.to_bytes(2, "little"))
        while True:
            ready = [connection] if connection.pending() else select.select([connection, server], [], [])[0]
            if connection in ready:
                opcode, payload = _receive(connection)
                if opcode == _CLOSE:
                    return
                if opcode == _BINARY:
                    server.sendall(payload[1:])
            if server in ready:
                part = server.recv(65_536)
                if not part:
                    connection.sendall(bytes([0x80 | _CLOSE, 0]))
                    return
                _send(connection, b"\0" + part)


def _send(connection: ssl.SSLSocket, payload: bytes) -> None:
    size = len(payload)
    length = bytes([size]) if size < 126 else bytes([127]) + size.to_bytes(8, "big")
    connection.sendall(bytes([0x80 | _BINARY]) + length + payload)


def _receive(connection: ssl.SSLSocket) -> tuple[int, bytes]:
    first, second = _exactly(connection, 2)
    size = second & 0x7F
    if size >= 126:
        size = int.from_bytes(_exactly(connection, 2 if size == 126 else 8), "big")
    mask = _exactly(connection, 4)
    payload = _exactly(connection, size)
    return first & 0x0F, bytes(byte ^ mask[number % 4] for number, byte in enumerate(payload))


def _exactly(connection: ssl.SSLSocket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        part = connection.recv(size - len(content))
        if not part:
            raise ConnectionError("the caller has gone")
        content += part
    return content
