"""How a new version is held against the one that it takes over from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, cast

__all__ = ["PARITY_ROWS", "PARITY_TOLERANCE", "Parity", "ParityMode", "read_parity"]

ParityMode = Literal["off", "warn", "require"]

PARITY_TOLERANCE: Final = 1e-3
PARITY_ROWS: Final = 100
_MODES: Final = ("off", "warn", "require")


@dataclass(frozen=True, slots=True)
class Parity:
    """Whether the answers of a new version are compared with those of its predecessor before it takes over.

    Attributes:
        mode: `off` compares nothing and keeps no samples; `warn` tells of differences; `require` keeps a version from
            taking over that was not shown to give the same answers.
        tolerance: The largest difference that is none, relative to the largest number of an output.
        rows: Most sampled requests that are kept, and compared, by each frontend.
    """

    mode: ParityMode = "off"
    tolerance: float = PARITY_TOLERANCE
    rows: int = PARITY_ROWS


def read_parity(value: Any) -> ParityMode:
    """Return `off`, `warn` or `require`; YAML reads a bare `off` as false.

    Raises:
        ValueError: It is something else.
    """
    word = "off" if value is False else value
    if word not in _MODES:
        raise ValueError(f"must be {' or '.join(_MODES)}")
    return cast("ParityMode", word)
