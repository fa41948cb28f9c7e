"""What a model's graph says of its rows, whatever a test of it sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Reading"]


@dataclass(frozen=True, slots=True)
class Reading:
    """What was found by following the batch axis through a model's graph.

    Attributes:
        finding: `apart` if no operator on a way from input to output lets one row see another, `mixed` if one does,
            `unknown` if there are operators of which that is not known.
        reason: For `mixed` and `unknown` one sentence that names the node, as the operator is told; else empty.
    """

    finding: Literal["apart", "mixed", "unknown"]
    reason: str = ""
