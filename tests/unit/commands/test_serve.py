"""`stoker serve` until the supervisor takes over."""

import subprocess
import sys

from tests.patience import PROGRAM_S

from stoker import __version__

_SERVE = """
import sys
from stoker.cli import main
from stoker.commands import serve

serve.print_lines = lambda line: print(line, *sys.modules.keys() & {"numpy", "stoker.supervisor.serving"})
main(["serve", "missing.onnx"])
"""


def test_first_line_comes_before_the_imports_that_take_long() -> None:
    """Without it, nothing would be on the screen for half a second."""
    process = subprocess.run(
        [sys.executable, "-c", _SERVE], capture_output=True, text=True, check=False, timeout=PROGRAM_S
    )
    assert process.stdout == f"Stoker {__version__} starts.\n"
    assert process.stderr == "stoker serve: missing.onnx does not exist\n"
