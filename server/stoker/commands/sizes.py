"""Sizes of files as commands print them."""

from __future__ import annotations

__all__ = ["size_text"]


def size_text(size_bytes: float) -> str:
    """A size as people read it, in powers of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < 1000:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.1f} TB"
