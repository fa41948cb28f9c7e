"""What a process leaves behind when it ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FILTER = Path("/proc/self/coredump_filter")


@pytest.mark.skipif(not FILTER.exists(), reason="this kernel writes no cores")
def test_cores_have_no_memory() -> None:
    """Neither those of the process nor those of what it starts, however that is executed."""
    show = f"print(open('{FILTER}').read().strip(), flush=True)"
    code = (
        "import subprocess, sys; from stoker.process_end import keep_memory_out_of_cores; "
        f"keep_memory_out_of_cores(); {show}; "
        f"subprocess.run([sys.executable, '-c', {show!r}], start_new_session=True)"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert told.stdout.split() == ["00000000"] * 2
