"""Routine log lines of native libraries are left out of standard error."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import os, sys
from stoker.system.native_chatter import without_native_chatter
with without_native_chatter():
    os.write(2, b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\\n")
    os.write(2, b"I0000 00:00:1 7 port.cc:153] oneDNN custom operations are on.\\n")
    os.write(2, b"E0000 00:00:1 7 cuda.cc:1] no device\\n")
    print("of Python", file=sys.stderr)
    if len(sys.argv) > 1:
        os.write(2, b"Illegal instruction")
        os.abort()
os.write(2, b"I0000 later\\n")
"""


def run(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr


def test_information_is_left_out_and_nothing_else() -> None:
    """Errors, lines of Python and later lines stay."""
    assert run() == (0, "E0000 00:00:1 7 cuda.cc:1] no device\nof Python\nI0000 later\n")


def test_output_of_a_crash_is_kept() -> None:
    """The whole output is there though its process has ended."""
    status, output = run("crash")
    assert status == -6
    assert output.startswith("E0000 00:00:1 7 cuda.cc:1] no device\nof Python\nIllegal instruction")


def test_without_a_filter_all_passes(monkeypatch) -> None:
    """Where there is no grep."""
    monkeypatch.setenv("PATH", "/nonexistent")
    status, output = run()
    assert (status, output.count("\n")) == (0, 5)
