"""Two processes at one folder: what one of them does comes between any two calls of the system of the other."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

__all__ = ["interrupted"]

_CALLS: Final = (
    "link", "listdir", "lstat", "mkdir", "open", "rename", "replace", "rmdir", "scandir", "stat", "unlink", "utime",
)  # fmt: skip


@contextlib.contextmanager
def interrupted(before_call: int, act: Callable[[], object]) -> Iterator[list[str]]:
    """Act once, before the call with this number of the block; yields the names of the calls that there were."""
    calls: list[str] = []
    acts, process = False, os.getpid()

    def watched(name: str) -> Callable[..., Any]:
        call = getattr(os, name)

        def watching(*arguments: Any, **options: Any) -> Any:
            nonlocal acts
            if not acts:
                calls.append(name)
                if len(calls) == before_call + 1:
                    acts = True
                    act()
                    acts = False
            return call(*arguments, **options)

        return watching

    with pytest.MonkeyPatch.context() as patched:
        for name in _CALLS:
            patched.setattr(os, name, watched(name))
        # Names of temporary files have the process's id.
        patched.setattr(os, "getpid", lambda: process + acts)
        yield calls
