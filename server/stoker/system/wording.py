"""Counts in texts for people, which need the singular or the plural of a noun."""

from __future__ import annotations


def format_count(count: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun, as `1 row` and `2 rows`; `plural` is for nouns that take more than an s."""
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"
