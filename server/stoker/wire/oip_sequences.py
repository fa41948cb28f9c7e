"""Triton's sequence extension: which parameters of an infer request say of which sequence it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.errors import MalformedBody
from stoker.sequences import MAX_ID, MAX_ID_CHARS, SequenceStep
from stoker.wire.oip_parameters import flag

__all__ = ["sequence_of"]


def sequence_of(parameters: Mapping[str, Any]) -> SequenceStep | None:
    """Return what the parameters of a request say of its sequence; None if they name none, by 0 or an empty text.

    Raises:
        MalformedBody: The id is no number of 64 bits and no text of 128 characters, or a flag is neither true nor
            false.
    """
    name = parameters.get("sequence_id", 0)
    if isinstance(name, bool) or not isinstance(name, int | str):
        raise MalformedBody("'sequence_id' must be a number or a text")
    if isinstance(name, str) and len(name) > MAX_ID_CHARS:
        raise MalformedBody(f"'sequence_id' has more than {MAX_ID_CHARS} characters")
    if isinstance(name, int) and not 0 <= name <= MAX_ID:
        raise MalformedBody("'sequence_id' must be a number from 0 to 2^64 - 1")
    start, end = flag(parameters, "sequence_start"), flag(parameters, "sequence_end")
    return SequenceStep(name, start, end) if name else None
