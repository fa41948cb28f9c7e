"""Links from the code to the decisions that bind it: comments and docstrings that say `decision 36`."""

from __future__ import annotations

import re
from typing import Final

from tests.house.sources import ROOT, tracked_files

_LINK: Final = re.compile(r"\b[Dd]ecision\s+(?:#\s*)?(\d+)\b")
_ENTRY: Final = re.compile(r"^(\d+)\. \[.*\]\([^)]+\)(?: \((.+)\))?", re.MULTILINE)
_UNBOUND: Final = re.compile(r"stale|only history|binds no code|superseded by")
"""Marks in the index of decisions that no code follows any more, or never did."""


def decisions_by_number() -> dict[int, bool]:
    """Return all decisions of the index, each with whether it binds code."""
    index = (ROOT / "server/docs/decisions/README.md").read_text(encoding="utf-8")
    return {int(number): not _UNBOUND.search(mark) for number, mark in _ENTRY.findall(index)}


def linked_decisions() -> set[int]:
    """Return the numbers of the decisions that files outside tests and documentation name."""
    return {
        int(number)
        for path in tracked_files()
        if not path.endswith((".md", ".json")) and "tests" not in path.split("/")
        for number in _LINK.findall((ROOT / path).read_text(encoding="utf-8", errors="ignore"))
    }
