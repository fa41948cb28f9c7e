"""What callers are told whose bodies hold what Python prints of numpy values, which is not JSON."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["numpy_hint"]

# str(list(row)) has these since numpy 2; torch and older numpy have the others.
_REPR: Final = re.compile(
    r"(?:(?:np|numpy)\.)?(?:True_|False_|(?:array|tensor|u?int\d+|float\d+|str_|bytes_|bool)\([^()]{0,40}\)?)",
    re.ASCII,
)


def numpy_hint(text: str, position: int) -> str:
    """Return what the body's maker probably did, where that can be seen from what stands there; else nothing.

    Args:
        text: The body.
        position: Where it stops being JSON, in characters.
    """
    found = _REPR.match(text, position)
    if found is None:
        return ""
    return (
        f"; {found[0]} looks like Python's repr of numpy values, as str(list(row)) gives it: use str(row.tolist()), "
        "or json.dumps"
    )
