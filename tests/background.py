"""Threads that run beside the body of a `with`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from socketserver import BaseServer

__all__ = ["repeated", "serving"]


@contextmanager
def repeated(look: Callable[[], object]) -> Iterator[None]:
    """Call a function over and over while the body runs; it bounds its calls, and pauses between them, itself."""
    ended = threading.Event()

    def go_on() -> None:
        while not ended.is_set():
            look()

    thread = threading.Thread(target=go_on, name="repeated")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def serving(server: BaseServer) -> Iterator[None]:
    """Have a server take requests while the body runs; it is closed with it."""
    # Its end waits for as long as it polls.
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), name="serving", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
