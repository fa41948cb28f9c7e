"""A server of the web in this process, for code that fetches a file."""

from __future__ import annotations

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Web:
    """A server of one file, which knows no ranges; whatever the address says, the file is the same."""

    def __init__(self) -> None:
        self.content, self.fetched = b"one", 0
        web = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(web.content)))
                self.send_header("ETag", hashlib.sha256(web.content).hexdigest())
                self.end_headers()

            def do_GET(self) -> None:
                self.do_HEAD()
                self.wfile.write(web.content)
                web.fetched += 1

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.place = f"127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def stop(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
