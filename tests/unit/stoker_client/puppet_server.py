"""A small HTTP server on a real socket; each test sets its behaviour, such as closing without an answer."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np

KEY = "a-key-for-the-puppet-server"


@dataclass(frozen=True)
class Request:
    """A request, with its place: the connection's number and its own on that connection, both from 0."""

    connection: int
    number: int
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Behaviour: TypeAlias = Callable[[Request], bytes | None]
"""Returns the bytes to answer, whose `connection: close` is obeyed; None closes without an answer."""


def answer(value: Any, status: int = 200, **headers: str) -> bytes:
    """A complete HTTP/1.1 answer; underscores in header names stand for dashes."""
    body = value.encode() if isinstance(value, str) else json.dumps(value).encode()
    lines = [f"HTTP/1.1 {status} Puppet", f"content-length: {len(body)}"]
    headers = {"content_type": "application/json", **headers}
    lines += [f"{name.replace('_', '-')}: {content}" for name, content in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def like_stoker(request: Request) -> bytes:
    """Answer as a Stoker server with one model, whose class of a row is its whole sum modulo 10."""
    if request.path == "/v2/health/ready":
        return answer({"ready": True})
    if request.path == "/later/1-2":
        return answer([7])
    if request.path == "/v2/models":
        return answer({"models": ["digits"]})
    if request.path == "/v2/models/digits":
        inputs = [{"name": "x", "datatype": "FP32", "shape": [-1, 784]}]
        outputs = [{"name": "y", "datatype": "INT64", "shape": [-1]}]
        return answer({"name": "digits", "inputs": inputs, "outputs": outputs})
    if request.path == "/v2/models/digits/infer":
        return _infer(request)
    if request.path not in {"/score", "/api/v1/service/digits/score"}:
        return answer({"message": "no such service", "code": "unknown_service"}, 404)
    if request.headers.get("authorization") != f"Bearer {KEY}":
        return answer({"message": "a valid key is needed", "code": "unauthorized"}, 401)
    if request.headers.get("prefer") == "respond-async":
        return answer({"status": "waiting"}, 202, location="/later/1-2")
    body = json.loads(request.body)
    if "prompt" in body:
        return answer('{"word": "upon"}\n', content_type="application/x-ndjson")
    rows = body["data"]
    for index, row in enumerate(rows):
        if len(row) != 784:
            message = f"expected rows of 784 numbers, row {index} has {len(row)}"
            return answer({"message": message, "code": "invalid_input"}, 422, x_ms_request_id="r-1")
    return answer([int(sum(row)) % 10 for row in rows])


def _infer(request: Request) -> bytes:
    """Answer a request with one binary input in JSON, which clients read with any requested form."""
    start = int(request.headers["inference-header-content-length"])
    (info,) = json.loads(request.body[:start])["inputs"]
    rows = np.frombuffer(request.body[start:], np.float32).reshape(info["shape"])
    classes = [int(sum(row.tolist())) % 10 for row in rows]
    output = {"name": "y", "datatype": "INT64", "shape": [len(rows)], "data": classes}
    return answer({"model_name": "digits", "outputs": [output]})


class PuppetServer:
    """Listens on a free port of the loopback while it is entered; a thread for each connection.

    Descriptions of models are those of `like_stoker`; requests for them are in `descriptions`, others in `requests`.
    """

    def __init__(self, behaviour: Behaviour) -> None:
        self.requests: list[Request] = []
        self.descriptions: list[Request] = []
        self._behaviour = behaviour
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self.origin = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.uri = f"{self.origin}/score"

    @property
    def connections(self) -> int:
        """How many connections were made so far."""
        return len(self._connections)

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listener.close()
        for connection in self._connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:  # closed before
                continue
        for thread in self._threads[1:]:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # the listener was shut down
                return
            thread = threading.Thread(target=self._serve, args=(connection, len(self._connections)))
            self._connections.append(connection)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        with connection, connection.makefile("rb") as stream:
            for count in range(1_000_000):
                request = self._read(stream, number, count)
                if request is None:
                    return
                if request.method == "GET" and request.path.startswith("/v2/models"):
                    self.descriptions.append(request)
                    reply: bytes | None = like_stoker(request)
                else:
                    self.requests.append(request)
                    reply = self._behaviour(request)
                if reply is None:
                    return
                try:
                    connection.sendall(reply)
                except OSError:  # the client has gone
                    return
                if b"\r\nconnection: close\r\n" in reply:
                    return

    @staticmethod
    def _read(stream: Any, connection: int, number: int) -> Request | None:
        try:
            start = stream.readline().decode().split()
            headers = {}
            while line := stream.readline().strip().decode():
                name, _, value = line.partition(":")
                headers[name.lower()] = value.strip()
            if not start:
                return None
            body = stream.read(int(headers.get("content-length", 0)))
        except OSError:  # reset by the client, or by the end of the test
            return None
        return Request(connection, number, start[0], start[1], headers, body)
