"""How many words the documentation has."""

from __future__ import annotations

from tests.house.sources import ROOT


def count_words(pattern: str) -> tuple[int, int]:
    """Return the pages below `server/docs` that match a glob pattern, and their words."""
    pages = list((ROOT / "server" / "docs").glob(pattern))
    return len(pages), sum(len(page.read_text(encoding="utf-8").split()) for page in pages)
