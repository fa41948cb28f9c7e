"""Messages of models' errors, for a line of the log."""

from __future__ import annotations

from typing import Final

_SHOWN: Final = 200


def in_one_line(error: Exception) -> str:
    """Return the message of a model's error, shortened and in one line; its type if it has none."""
    return " ".join(str(error).split())[:_SHOWN] or type(error).__name__
