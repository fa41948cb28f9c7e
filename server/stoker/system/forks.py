"""Processes that the code of a model forks have no part in serving: their parent alone answers its callers.

A fork has all that its parent has: the descriptors of its doorbells, the memory of its rows, and the stack of the
thread that forked, at whose bottom the device loop waits for the script to return. Three things keep it out:

- `CHILDREN` puts a dead socket in the place of each channel and doorbell: a child neither hears nor tells anything.
- `call_in_this_process` ends a child that comes back from a call of the script, whatever it raises or returns.
- `OWN` says which process this is, without a call to the kernel: who writes rows compares it.

`multiprocessing`, and what forks and ends by `os._exit` or `exec`, works as elsewhere.
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

__all__ = ["CHILDREN", "OWN", "Children", "call_in_this_process"]

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")

# <linux/mman.h>; Python has no name for it.
_MADV_WIPEONFORK: Final = 18


def _own_word() -> memoryview:
    """A word with the id of this process, which the kernel sets to 0 in each fork, however it is made."""
    page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):
        # Kernels before 4.14 cannot; there `os.fork` alone is noticed.
        page.madvise(_MADV_WIPEONFORK)
    word = memoryview(page).cast("q")[:1]
    word[0] = os.getpid()
    return word


OWN: Final = _own_word()
"""One word: the id of this process, for a fifth of what `os.getpid` costs."""


class _HasDescriptors(Protocol):
    def descriptors(self) -> Iterable[int]:
        """Those that are open now, and of no use to a child."""
        ...


class _Forked(Protocol):
    def after_fork(self) -> None:
        """Be in a child; called there before anything else runs."""
        ...


class Children:
    """What processes that are forked from this one do without."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._cut_off: WeakSet[_HasDescriptors] = WeakSet()
        self._told: WeakSet[_Forked] = WeakSet()

    def cut_off(self, holder: _HasDescriptors) -> None:
        """From now on put a dead socket in the place of these descriptors in each child.

        They are not closed: the child may open files, and what still holds the numbers must not find those.
        """
        self._cut_off.add(holder)

    def tell(self, forked: _Forked) -> None:
        """Call `after_fork` in each child."""
        self._told.add(forked)

    def after_fork(self) -> None:
        """Be in a child, which may have children of its own."""
        OWN[0] = os.getpid()
        descriptors = [descriptor for holder in self._cut_off for descriptor in holder.descriptors()]
        if descriptors:
            _make_dead(descriptors)
        for forked in self._told:
            forked.after_fork()


def _make_dead(descriptors: list[int]) -> None:
    """Let these descriptors be of a connection whose other end has gone."""
    try:
        dead, other = socket.socketpair()
    except OSError:
        # There is no room for two more; so there is at least none for what the child would take for them.
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
    """Call code of a script; a process that it forks, and that comes back from it, ends here.

    Such a process ends as Python would: with the code of `sys.exit`, with 1 after any other exception, else with 0.
    What is registered by `atexit` belongs to the parent.

    Raises:
        BaseException: Whatever the function raises, in this process.
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
    """What Python would exit with."""
    if error is None:
        return 0
    if not isinstance(error, SystemExit):
        return 1
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    logger.error("%s", error.code)
    return 1
