"""Two processes at one folder: what one of them does comes between any two calls of the system of the other."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final

import pytest

__all__ = ["interrupted"]

_CALLS: Final = (
    "fsync", "link", "listdir", "lstat", "mkdir", "open", "pread", "pwrite", "rename", "replace", "rmdir", "scandir",
    "stat", "unlink", "utime",
)  # fmt: skip


class _Waits(BaseException):
    """The other process would wait for a lock that this one has."""


@contextlib.contextmanager
def interrupted(before_call: int, act: Callable[[], object]) -> Iterator[list[str]]:
    """Have another process act once, before the call with this number of the block, or after the block.

    Where it would wait for a lock it acts later, from its beginning.

    Yields:
        The names of the calls that there were.
    """
    calls: list[str] = []
    acts, is_due, process = False, True, os.getpid()

    def act_now() -> None:
        nonlocal acts, is_due
        acts = True
        with contextlib.suppress(_Waits):
            act()
            is_due = False
        acts = False

    def watched(module: ModuleType, name: str) -> Callable[..., Any]:
        call = getattr(module, name)

        def watching(*arguments: Any, **options: Any) -> Any:
            if not acts:
                calls.append(name)
                if is_due and len(calls) > before_call:
                    act_now()
            return call(*arguments, **options)

        return watching

    def lock(descriptor: int, operation: int, flock: Callable[[int, int], None] = fcntl.flock) -> None:
        try:
            flock(descriptor, operation | fcntl.LOCK_NB if acts else operation)
        except BlockingIOError:
            if operation & fcntl.LOCK_NB:
                raise
            raise _Waits from None

    with pytest.MonkeyPatch.context() as patched:
        for name in _CALLS:
            patched.setattr(os, name, watched(os, name))
        # Of `pathlib`.
        patched.setattr(io, "open", watched(io, "open"))
        patched.setattr(fcntl, "flock", lock)
        # Names of temporary files have the process's id.
        patched.setattr(os, "getpid", lambda: process + acts)
        yield calls
        if is_due:
            act_now()
