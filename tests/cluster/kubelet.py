"""The HTTP server of a kubelet, for the API server's requests: logs and forwarded ports of pods."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

from tests.cluster import port_forward

__all__ = ["make_kubelet"]

Address = tuple[str, int]

_TLS: Final = Path(__file__).parents[1] / "tls"


def make_kubelet(find_pod: Callable[[str, str], tuple[str, Address | None]]) -> ThreadingHTTPServer:
    """Make the server of /containerLogs/NAMESPACE/POD/CONTAINER and /portForward/NAMESPACE/POD.

    Args:
        find_pod: Gives the log and the address of a pod by namespace and name.
    """

    class Handler(BaseHTTPRequestHandler):
        # Bytes after the head may belong to a WebSocket, so the handler must not buffer them.
        rbufsize = 0

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            _, action, namespace, name, *_ = url.path.split("/")
            log, address = find_pod(namespace, name)
            query = parse_qs(url.query)
            if action == "containerLogs":
                self._answer_log(log, query)
            elif action == "portForward" and address is not None:
                self._forward(int(query["port"][0]), address)
            else:
                self.send_error(404)

        def _answer_log(self, log: str, query: dict[str, list[str]]) -> None:
            lines = log.splitlines(keepends=True)
            text = "".join(lines[-int(query["tailLines"][0]) :] if "tailLines" in query else lines).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def _forward(self, port: int, address: Address) -> None:
            self.close_connection = True
            self.protocol_version = "HTTP/1.1"
            self.send_response(101)
            self.send_header("Upgrade", "websocket")
            self.send_header("Connection", "Upgrade")
            self.send_header("Sec-WebSocket-Accept", port_forward.accepts(self.headers["Sec-WebSocket-Key"]))
            self.send_header("Sec-WebSocket-Protocol", port_forward.PROTOCOL)
            self.end_headers()
            with contextlib.suppress(OSError):
                port_forward.forward(self.connection, port, address)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(_TLS / "localhost.crt", _TLS / "localhost.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    return server
