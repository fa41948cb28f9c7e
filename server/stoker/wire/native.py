"""The functions of stoker-native, C++ that nothing needs: used where it is installed and not turned off."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

SWITCH: Final = "STOKER_NATIVE"
"""An environment variable: `0` turns stoker-native off, to compare with and without it."""


def is_turned_off() -> bool:
    """Whether the environment turns stoker-native off."""
    return os.environ.get(SWITCH) == "0"


def find_native(module: str, function: str) -> Callable[..., Any] | None:
    """Return a function of a module of stoker-native; None if it is turned off, not installed or older than that."""
    if is_turned_off():
        return None
    try:
        found: Callable[..., Any] | None = getattr(import_module(module), function, None)
    except ImportError:
        return None
    return found
