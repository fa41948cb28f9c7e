"""Standard error without the routine log lines of native libraries."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

_CHATTER: Final = r"^(WARNING: All log messages before absl::InitializeLog|I[0-9]{4} )"
"""Lines of absl: its information, and the remark before its first."""
_LAST_LINES_S: Final = 1.0


@contextlib.contextmanager
def without_native_chatter() -> Iterator[None]:
    """Leave out absl's information, which TensorFlow logs before it heeds `TF_CPP_MIN_LOG_LEVEL`.

    All else passes at once, and also if this process crashes: the filter is a process of its own. Where there is no
    `grep`, nothing is left out.
    """
    command = ["grep", "--line-buffered", "-a", "-v", "-E", _CHATTER]
    try:
        passing = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=2)
    except OSError:
        yield
        return
    assert passing.stdin is not None
    sys.stderr.flush()
    kept = os.dup(2)
    os.dup2(passing.stdin.fileno(), 2)
    passing.stdin.close()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
        # A process that was started meanwhile may have it still.
        with contextlib.suppress(subprocess.TimeoutExpired):
            passing.wait(_LAST_LINES_S)
