"""Lines for the operator on standard output, which a server can lose without harm."""

from __future__ import annotations

import logging
import os
import sys
from typing import Final

from stoker.system.logs import escaped

logger = logging.getLogger(__name__)

_STANDARD_OUTPUT: Final = 1


def print_lines(*lines: str) -> None:
    """Print lines in one write, so that log lines do not split them; if that fails, warn and go on without them."""
    try:
        sys.stdout.write("".join(f"{escaped(line)}\n" for line in lines))
        sys.stdout.flush()
    except OSError as error:
        logger.warning(
            "standard output cannot be written (%s), so the server goes on without it", error.strerror
        )
        # The rest of the line would be written again at exit, and fail again.
        nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(nowhere, _STANDARD_OUTPUT)
        os.close(nowhere)
