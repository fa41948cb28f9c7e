"""Requests to models with state: of which sequence they are."""

from __future__ import annotations

import re
from typing import TypedDict, Unpack

__all__ = ["SEQUENCE", "SequenceOptions", "sequence_text"]

SEQUENCE = "Stoker-Sequence"
_TEXT = re.compile(r"[!-:<-~]{1,128}")
_MOST = (1 << 64) - 1


class SequenceOptions(TypedDict, total=False):
    """The sequence of a call.

    Attributes:
        sequence_id: The sequence: a number from 1 on, or a text; None for no sequence.
        sequence_start: Whether the request begins the sequence.
        sequence_end: Whether the request is the last one.
    """

    sequence_id: int | str | None
    sequence_start: bool
    sequence_end: bool


def sequence_text(**options: Unpack[SequenceOptions]) -> str:
    """Return the value of a request's sequence header; empty without a sequence."""
    name = options.get("sequence_id")
    flags = [word for word in ("start", "end") if options.get(f"sequence_{word}")]
    if name is None:
        if flags:
            raise ValueError("sequence_start and sequence_end need a sequence_id")
        return ""
    if isinstance(name, int) and not 0 < name <= _MOST:
        raise ValueError(f"sequence_id has to be from 1 to 2^64 - 1, not {name}")
    if not _TEXT.fullmatch(str(name)):
        raise ValueError(
            f"sequence_id has to be 1 to 128 visible characters of ASCII without a semicolon, not {name!r}"
        )
    return "; ".join([str(name), *flags])
