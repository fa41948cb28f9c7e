"""Work on daemon threads, which do not delay the end of the process."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

_Found = TypeVar("_Found")


def start_thread(work: Callable[[], _Found]) -> Future[_Found]:
    """Run a function on a daemon thread; return the future of its result."""
    future: Future[_Found] = Future()

    def do() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001  # raised where the future is asked
            future.set_exception(error)

    Thread(target=do, daemon=True).start()
    return future
