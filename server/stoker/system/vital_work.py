"""Work without which a process cannot serve: where it fails, the process ends, and the supervisor starts another one.

If a thread dies in silence, its callers wait forever; if its process ends, they get an error.
"""

from __future__ import annotations

import logging
import mmap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from stoker.system.processes import ExitCode, end_process

logger = logging.getLogger(__name__)

_BEGIN_S: Final = 10
_THREAD_BYTES: Final = 16 << 20
"""More than a thread takes at its start: a stack of 8 MiB, where no other limit is set, and its first frames."""


@contextmanager
def vital(work: str) -> Iterator[None]:
    """End this process if the context is left by an exception.

    Args:
        work: The work in the context, as the subject of a sentence in the log.
    """
    try:
        yield
    except BaseException as error:  # noqa: BLE001  # the process ends of it
        _end(work, error, end_process)


def start_thread(
    run: Callable[[], object], name: str, *, end_process: Callable[[ExitCode], None] = end_process
) -> threading.Thread:
    """Run something on a new thread, if there is memory for one; returns when it has begun.

    The process ends if `run` raises. `Thread.start` alone waits forever for a thread that dies of a lack of memory
    before it runs Python code, and tells nobody of one that dies between that and its work.

    Args:
        run: The thread's work.
        name: The thread's name, for the log.
        end_process: Ends this process.

    Raises:
        MemoryError: There is not, or others took it meanwhile. Then nothing refers to `run`.
        RuntimeError: The system starts no more threads.
    """
    try:
        mmap.mmap(-1, _THREAD_BYTES).close()
    except OSError as error:
        raise MemoryError(f"a new thread has no memory: {error.strerror}") from error
    start = _Start(run)

    def live() -> None:
        # Nothing before `try` takes memory.
        try:
            start.begin()()
        except BaseException as error:  # noqa: BLE001  # the process ends of it
            _end(f"the thread '{name}'", error, end_process)

    thread = threading.Thread(target=live, name=name, daemon=True)
    thread._started = start  # type: ignore[attr-defined]  # noqa: SLF001  # nothing else bounds the wait
    thread.start()
    return thread


class _Start(threading.Event):
    """The start of a thread, for which `Thread.start` waits: its work is begun or given up, never both."""

    def __init__(self, run: Callable[[], object]) -> None:
        super().__init__()
        self._left = [run]

    def set(self) -> None:
        """Called by `Thread` before its work begins; it may still die of a lack of memory."""

    def begin(self) -> Callable[[], object]:
        """Return the thread's work, on its thread: nothing, if nobody waits for it any more."""
        try:
            run = self._left.pop()
        except IndexError:
            return lambda: None
        super().set()
        return run

    def wait(self, _: float | None = None) -> bool:
        # In pieces: a process that was stopped meanwhile has not waited.
        if any(super(_Start, self).wait(1.0) for _ in range(_BEGIN_S)):
            return True
        try:
            self._left.pop()
        except IndexError:
            # It begins just now.
            return True
        raise MemoryError(f"a new thread did not begin within {_BEGIN_S} s")


def _end(work: str, error: BaseException, end_process: Callable[[ExitCode], None]) -> None:
    try:
        logger.exception("%s failed; the process exits", work, exc_info=error)
    finally:
        end_process(ExitCode.NO_MEMORY if isinstance(error, MemoryError) else ExitCode.CRASHED)
