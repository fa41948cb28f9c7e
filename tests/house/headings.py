"""Headings inside modules: comments that part a file, which is a sign of two concepts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from tests.house.sources import Module

_RULE: Final = re.compile(r"-{3,}|={3,}|─{2,}")
_CANDIDATE: Final = re.compile(rf"^#|#.*({_RULE.pattern})", re.MULTILINE)


def find_headings(module: Module) -> Iterator[str]:
    """Yield each comment that stands alone at the top level between empty lines, or that draws a line."""
    if not _CANDIDATE.search(module.text):
        # To find comments takes long.
        return
    lines = ["", *module.text.splitlines(), ""]
    for row, column, comment in module.comments:
        is_alone = column == 0 and not lines[row - 1].strip() and not lines[row + 1].strip()
        if is_alone or _RULE.search(comment):
            yield f"{module.path}:{row}: {comment}"
