"""`python -m stoker.azure SCRIPT [ARGUMENT ...]`: run code written for Azure's Python SDK against this machine."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Final

__all__ = ["main"]

_USAGE: Final = (
    "usage: python -m stoker.azure SCRIPT [ARGUMENT ...]\n\n"
    "Run a Python script that was written for Azure's SDK (azureml.core), unchanged: the workspace, its models and\n"
    "its services are those of Stoker on this machine. 'import stoker.azure' does the same for other code.\n"
)


def main() -> int:
    """Run the script as `python SCRIPT` would; returns 2 if there is none."""
    script, arguments = sys.argv[1:2], sys.argv[2:]
    if script in ([], ["-h"], ["--help"]):
        (sys.stdout if script else sys.stderr).write(_USAGE)
        return 0 if script else 2
    path = Path(script[0])
    if not path.exists():
        sys.stderr.write(f"python -m stoker.azure: there is no file {path}\n")
        return 2
    sys.argv = [str(path), *arguments]
    # As for a script that Python is given: its folder in the place of the current one.
    sys.path[0] = str(path.absolute().parent)
    runpy.run_path(str(path), run_name="__main__")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
