"""Divides the memory of the machine for large bodies among frontends."""

from __future__ import annotations

from typing import Final, NamedTuple

from stoker.settings.server import ServerSettings
from stoker.system.resources import main_memory

_ENOUGH_BYTES: Final = 1 << 30
_ENOUGH_BODIES: Final = 8
_LEAST_BODIES: Final = 2
_STEP_BYTES: Final = 1 << 20
_PART: Final = 4
"""Decoding a body takes up to three times its length, so bodies that fill this part of the memory leave enough for
the device processes, whatever they contain."""


class BodyMemory(NamedTuple):
    """How much memory the bodies of requests may take.

    Attributes:
        budget_bytes: The budget of each frontend for large bodies.
    """

    budget_bytes: int
    memory_bytes: int
    frontends: int
    scarce: bool

    def __str__(self) -> str:
        return (
            f"bodies above 1 MiB may add up to {self.budget_bytes >> 20} MiB a frontend, and there are "
            f"{self.frontends}; the server may use {self.memory_bytes >> 20} MiB of memory"
        )

    @property
    def advice(self) -> str:
        """Advice for an operator whose memory is scarce."""
        return "lower max_body_mb or the number of frontends, or give the server more memory"


def body_memory(settings: ServerSettings, memory_bytes: int | None = None) -> BodyMemory:
    """Divide the memory: a quarter of it for the bodies of all frontends.

    A frontend gets no more than 1 GiB or eight bodies of the largest size, whichever is more, and always room for
    two of these, so that one can be received.
    """
    memory = main_memory()[0] if memory_bytes is None else memory_bytes
    frontends, largest = settings.frontend_count, settings.max_body_bytes
    part = memory // _PART // frontends
    least = _LEAST_BODIES * -(-largest // _STEP_BYTES) * _STEP_BYTES
    budget = max(least, min(part, max(_ENOUGH_BYTES, _ENOUGH_BODIES * largest)))
    return BodyMemory(budget, memory, frontends, scarce=budget > part)
