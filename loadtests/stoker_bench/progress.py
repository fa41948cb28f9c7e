"""What the operator is told while a bench runs."""

from __future__ import annotations

import sys

__all__ = ["say"]


def say(what: str) -> None:
    """Tell the operator what the bench does now."""
    print(f"bench: {what} …", file=sys.stderr, flush=True)
