"""Lines for the operator, and standard outputs that take none."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.patience import PROGRAM_S

from stoker.system.operator_lines import print_lines


def test_process_goes_on_if_a_line_cannot_be_written() -> None:
    """On a full disk the log has a line of it, once, and the process goes on and ends well."""
    code = "from stoker.system.operator_lines import print_lines as p; p('one'); p('two'); print('three')"
    with Path("/dev/full").open("wb") as full:
        process = subprocess.run(
            [sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, check=False, timeout=PROGRAM_S
        )
    assert process.returncode == 0, process.stderr
    assert process.stderr.count(b"standard output cannot be written (No space left on device)") == 1


def test_lines_are_written_in_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Log lines of other processes cannot come between its lines, and each text is one line."""
    written: list[str] = []
    puppet = SimpleNamespace(write=written.append, flush=lambda: None)
    monkeypatch.setattr(sys, "stdout", puppet)
    print_lines("Stoker serves: a", "  model    a\nb", "  ready")
    monkeypatch.undo()
    (block,) = written
    assert len(block.splitlines()) == 3


def test_process_goes_on_with_unread_lines() -> None:
    """The reader of a pipe may have seen enough."""
    reader, writer = os.pipe()
    os.close(reader)
    code = "from stoker.system.operator_lines import print_lines; print_lines('one'); print_lines('two')"
    process = subprocess.run(
        [sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE, check=False, timeout=PROGRAM_S
    )
    os.close(writer)
    assert process.returncode == 0, process.stderr
