"""The result of following the batch axis through a model's graph."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class GraphAnalysis(Struct, frozen=True):
    """The result of following the batch axis through a model's graph.

    Attributes:
        finding: `apart` if no operator between input and output lets one row affect another, `mixed` if one does,
            `unknown` if there are operators for which this is not known.
        reason: For `mixed` and `unknown` one sentence that names the node, shown to the operator; else empty.
    """

    finding: Literal["apart", "mixed", "unknown"]
    reason: str = ""
