"""A clock for the code under test alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

__all__ = ["give_own_time"]


def give_own_time(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, **functions: Callable[..., Any]
) -> None:
    """Replace functions of `time` in a module, which imports it.

    In `time` itself they would be replaced for all: threads that earlier tests have left, such as a script's
    watchdog, would end of it, or be counted.
    """
    monkeypatch.setattr(module, "time", SimpleNamespace(**{**vars(time), **functions}))
