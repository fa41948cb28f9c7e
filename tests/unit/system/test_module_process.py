"""Processes of modules: what a module has imported is no garbage."""

import json
import subprocess
import sys
from pathlib import Path

from tests.patience import PROGRAM_S

from stoker.system import module_process

MODULE = """
import gc, json, sys
enabled_at_import = gc.isenabled()

def main():
    print(json.dumps([sys.argv, __name__, enabled_at_import, gc.isenabled(), gc.get_freeze_count()]))
    return 3
"""


def test_imports_of_a_process_are_left_out_of_collections(tmp_path: Path) -> None:
    """Garbage is collected from `main` on, whose result is the exit status; it sees its own arguments."""
    (tmp_path / "program.py").write_text(MODULE)
    command = [sys.executable, "-m", module_process.__name__, "program", "--control-fd", "7"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=PROGRAM_S
    )
    argv, name, enabled_at_import, enabled, frozen = json.loads(done.stdout)
    assert (argv, name) == (["program", "--control-fd", "7"], "program")
    assert (enabled_at_import, enabled, done.returncode) == (False, True, 3)
    assert frozen > 1000
