"""What the log of a process has, as it can be changed while a server runs."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal

__all__ = ["LogFormat", "LogSettings"]

LogFormat = Literal["text", "json"]


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Which records are written, and in which form; as a message to a process: from now on.

    Attributes:
        info, warning, error: Whether records of these levels are; those that are more severe always are.
        verbose_level: Above 0 the server's own records below INFO are too, and those of entry scripts.
        form: The form of the lines.
    """

    info: bool = True
    warning: bool = True
    error: bool = True
    verbose_level: int = 0
    form: LogFormat = "text"

    def shows(self, level: int) -> bool:
        """Whether a record of a level is written; of those below INFO their loggers decide."""
        if level >= logging.CRITICAL:
            return True
        if level >= logging.ERROR:
            return self.error
        if level >= logging.WARNING:
            return self.warning
        return self.info or level < logging.INFO
