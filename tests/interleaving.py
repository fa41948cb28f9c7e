"""Two processes at one folder: what one of them does comes between any two calls of the system of the other."""

from __future__ import annotations

import contextlib
import fcntl
import io
import itertools
import os
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any, Final

import pytest

__all__ = ["moments"]

_CALLS: Final = (
    "fsync", "link", "listdir", "lstat", "mkdir", "open", "pread", "pwrite", "rename", "replace", "rmdir", "scandir",
    "stat", "unlink", "utime",
)  # fmt: skip


class _Waits(BaseException):
    """The other process would wait for a lock that this one has."""


def moments() -> Iterator[Callable[[Callable[[], object]], contextlib.AbstractContextManager[None]]]:
    """Yield a context for each moment of a block: before each of its calls of the system, and after the last one.

    The context takes what another process does at its moment. Where that would wait for a lock it is done later, from
    its beginning.
    """
    for before_call in itertools.count():
        calls: list[str] = []
        yield partial(_interrupted, before_call, calls)
        if len(calls) <= before_call:
            return


@contextlib.contextmanager
def _interrupted(before_call: int, calls: list[str], act: Callable[[], object]) -> Iterator[None]:
    """Have another process act before the call with this number, or after the block; `calls` receives the calls."""
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
        yield
        if is_due:
            act_now()
