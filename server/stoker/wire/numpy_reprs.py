"""Bodies that hold what Python prints of numpy values, which is not JSON: some are read, others explained."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["numpy_hint", "plain_numbers"]

# str(list(row)) has these since numpy 2; torch and older numpy have the others.
_REPR: Final = re.compile(
    r"(?:(?:np|numpy)\.)?(?:True_|False_|(?:array|tensor|u?int\d+|float\d+|str_|bytes_|bool)\([^()]{0,40}\)?)",
    re.ASCII,
)

# A whole value: nothing stands beside it that would be one with its number.
_NUMBER: Final = (
    r"(?<![^\s\[,:])np\.(?:float|u?int)(?:8|16|32|64)"
    r"\((-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)\)(?![^\s\],}])"
)
_BEGINS: Final = re.compile(_NUMBER, re.ASCII)
# Strings stay as they are; one that is never closed runs to the end.
_EACH: Final = re.compile(rf'("(?:[^"\\]|\\.)*+(?:"|\Z|\\\Z))|{_NUMBER}', re.ASCII | re.DOTALL)


def plain_numbers(text: str, position: int) -> str | None:
    """Return the body with the numbers in the place of numpy's scalars, such as `np.float64(0.5)`.

    `str(list(row))` of numpy 2 gives them; each can only mean its number. The result may still not be JSON.

    Args:
        text: The body.
        position: Where it stops being JSON, in characters.

    Returns:
        None, if no such scalar stands there.
    """
    return _EACH.sub(r"\1\2", text) if _BEGINS.match(text, position) else None


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
