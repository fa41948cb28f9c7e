"""Logging of all processes: one line format, on standard error."""

from __future__ import annotations

import logging
import sys
import time

__all__ = ["configure_logging"]


def configure_logging(process: str, level: str = "INFO") -> None:
    """Send this process's log to standard error as `TIME LEVEL [process] logger - message`, times in UTC."""
    handler = logging.StreamHandler(sys.stderr)
    line = f"%(asctime)s.%(msecs)03dZ %(levelname)s [{process}] %(name)s - %(request)s%(message)s"
    # Processes of entry scripts name there the request that a line was written for.
    formatter = logging.Formatter(line, "%Y-%m-%dT%H:%M:%S", defaults={"request": ""})
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    logging.basicConfig(level=level, handlers=[handler], force=True)
