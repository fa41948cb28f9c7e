"""What can be set of shared memory of callers: who may register it, and who may use it."""

from __future__ import annotations

from typing import Any, Final, Literal, cast

__all__ = ["SharedMemoryMode", "SharedMemoryPeers", "read_shared_memory"]

SharedMemoryMode = Literal["off", "admin", "on"]
SharedMemoryPeers = Literal["loopback", "any"]

_MODES: Final = ("off", "admin", "on")


def read_shared_memory(value: Any) -> SharedMemoryMode:
    """Return `off`, `admin` or `on`; YAML reads a bare `off` as false, and `on` as true.

    Raises:
        ValueError: It is something else.
    """
    word = {False: "off", True: "on"}[value] if isinstance(value, bool) else value
    if word not in _MODES:
        raise ValueError(f"must be {' or '.join(_MODES)}")
    return cast("SharedMemoryMode", word)
