"""Keeps processes that a model's code forks out of serving: only their parent answers callers.

A fork inherits everything of its parent: the descriptors of its doorbells, the memory of its rows, and the stack of
the thread that forked, at whose bottom the device loop waits for the script to return. So:

- `CHILDREN` replaces each channel and doorbell by a dead socket: a child neither receives nor sends anything.
- `call_in_this_process` ends a child that returns from a call of the script, whatever it raises or returns.
- `OWN` identifies this process without a system call: writers of rows compare it.

`multiprocessing`, and forks that end by `os._exit` or `exec`, work as elsewhere.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import socket
import sys
from collections.abc import Callable, Iterable
from typing import Final, NoReturn, Protocol, TypeVar
from weakref import WeakSet

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")

# <linux/mman.h>; Python has no name for it.
_MADV_WIPEONFORK: Final = 18


def _own_word() -> memoryview:
    """Return a word with the id of this process, which the kernel sets to 0 in each fork, however it is made."""
    page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):
        # Kernels before 4.14 cannot; there only `os.fork` is noticed.
        page.madvise(_MADV_WIPEONFORK)
    word = memoryview(page).cast("q")[:1]
    word[0] = os.getpid()
    return word


OWN: Final = _own_word()
"""One word with the id of this process; reading it costs a fifth of `os.getpid`."""


class _HasDescriptors(Protocol):
    def descriptors(self) -> Iterable[int]:
        """Return the open descriptors that a child must not use."""
        ...


class _Forked(Protocol):
    def after_fork(self) -> None:
        """Adjust to being in a child; called there before any other code runs."""
        ...


class Children:
    """Detaches forked processes from this one's connections."""

    def __init__(self) -> None:
        self._cut_off: WeakSet[_HasDescriptors] = WeakSet()
        self._forked: WeakSet[_Forked] = WeakSet()

    def cut_off(self, holder: _HasDescriptors) -> None:
        """Replace these descriptors by a dead socket in each child from now on.

        They are not closed, because the child may open files, and whatever still uses the numbers must not find
        those.
        """
        self._cut_off.add(holder)

    def notify(self, forked: _Forked) -> None:
        """Call `after_fork` in each child from now on."""
        self._forked.add(forked)

    def after_fork(self) -> None:
        """Detach this process, a child, which may have children of its own."""
        OWN[0] = os.getpid()
        descriptors = [descriptor for holder in self._cut_off for descriptor in holder.descriptors()]
        if descriptors:
            _make_dead(descriptors)
        for forked in self._forked:
            forked.after_fork()


def _make_dead(descriptors: list[int]) -> None:
    """Replace descriptors by a socket whose other end is closed."""
    try:
        dead, other = socket.socketpair()
    except OSError:
        # No further descriptors are available; so the child cannot get other files under the closed numbers either.
        for descriptor in descriptors:
            os.close(descriptor)
        return
    other.close()
    with dead:
        for descriptor in descriptors:
            os.dup2(dead.fileno(), descriptor, inheritable=False)


CHILDREN: Final = Children()
os.register_at_fork(after_in_child=CHILDREN.after_fork)


def call_in_this_process(function: Callable[[], _Result]) -> _Result:
    """Call code of a script, and end a process that it forks when that process returns from the call.

    Such a process exits as Python would: with the code of `sys.exit`, 1 after any other exception, else 0. Functions
    registered by `atexit` run only in the parent.

    Raises:
        BaseException: The exception of the function, in this process.
    """
    process = OWN[0]
    try:
        result = function()
    except BaseException as error:
        if OWN[0] != process:
            _end_child(error)
        raise
    if OWN[0] != process:
        _end_child(None)
    return result


def _end_child(error: BaseException | None) -> NoReturn:
    code = 1
    try:
        code = _exit_code(error)
        raised = None if error is None or isinstance(error, SystemExit) else error
        logger.warning(
            "process %d, which the script has forked, came back from its call: it ends with code %d",
            os.getpid(),
            code,
            exc_info=raised,
        )
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:
        os._exit(code)


def _exit_code(error: BaseException | None) -> int:
    """Return the exit code that Python would choose."""
    if error is None:
        return 0
    if not isinstance(error, SystemExit):
        return 1
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    logger.error("%s", error.code)
    return 1
