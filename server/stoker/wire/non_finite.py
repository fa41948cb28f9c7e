"""Numbers that JSON cannot hold, in answers: as words, as null, or as an error.

orjson writes null for what is not finite. Where an answer has such a text, and only there, it is looked at again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from stoker.errors import NonFiniteOutput
from stoker.non_finite import WORDS, NonFinite

__all__ = ["rewritten"]


def rewritten(
    text: bytes,
    value: Any,
    default: Callable[[Any], Any],
    non_finite: NonFinite,
    separators: tuple[str, str] | None = None,
) -> bytes:
    """Return the JSON of an answer in which orjson may have written null for a number.

    Args:
        text: What orjson made of it.
        value: What it was made of.
        default: What arrays become.
        non_finite: What becomes of numbers that are not finite.
        separators: Those of `json.dumps`.

    Raises:
        NonFiniteOutput: There is one, and it is to be refused.
    """
    if non_finite == "null":
        return text
    try:
        # A string may say null as well; whether a number is not finite is known once all were written.
        return json.dumps(
            value, default=default, allow_nan=non_finite == WORDS, separators=separators
        ).encode()
    except ValueError:
        raise NonFiniteOutput from None
