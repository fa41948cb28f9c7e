"""`python -m stoker.azure FILE [ARGUMENT ...]`: run code written for Azure's Python SDK against this machine."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

from stoker_azure.entrance import enter
from stoker_azure.notebook import NotebookRefused, run_notebook

_USAGE: Final = (
    "usage: python -m stoker.azure [--environment exact|relaxed|here] [--no-check] FILE [ARGUMENT ...]\n\n"
    "Run a Python script or notebook that was written for Azure's SDK (azureml.core), unchanged: the workspace, its\n"
    "models and its services are those of Stoker on this machine. 'import stoker.azure' does the same for other\n"
    "code.\n\n"
    "--environment says how the packages of runs that it submits are had: exact, as their environments say (the\n"
    "default); relaxed, the same packages in today's versions; here, those of this Python.\n"
    "--no-check attaches machines without logging in to them.\n"
)
_MODES: Final = ("exact", "relaxed", "here")
_OPTION: Final = "--environment"
_NO_CHECK: Final = "--no-check"


def main() -> int:
    """Run the file as `python FILE` does; return 2 if there is no file, or the notebook is refused."""
    words = sys.argv[1:]
    if words[:1] == [_OPTION]:
        if words[1:2] not in [[mode] for mode in _MODES]:
            sys.stderr.write(f"python -m stoker.azure: {_OPTION} can be {', '.join(_MODES)}\n")
            return 2
        os.environ["STOKER_RUN_ENVIRONMENT"] = words[1]
        words = words[2:]
    if words[:1] == [_NO_CHECK]:
        os.environ["STOKER_ATTACH_CHECK"] = "0"
        words = words[1:]
    script, arguments = words[:1], words[1:]
    if script in ([], ["-h"], ["--help"]):
        (sys.stdout if script else sys.stderr).write(_USAGE)
        return 0 if script else 2
    path = Path(script[0])
    if not path.exists():
        sys.stderr.write(f"python -m stoker.azure: there is no file {path}\n")
        return 2
    try:
        enter()
    except ImportError as error:
        sys.stderr.write(f"python -m stoker.azure: {error}\n")
        return 2
    sys.argv = [str(path), *arguments]
    # As for a script that Python is given: its folder in the place of the current one.
    sys.path[0] = str(path.absolute().parent)
    if path.suffix != ".ipynb":
        runpy.run_path(str(path), run_name="__main__")
        return 0
    module = sys.modules["__main__"] = ModuleType("__main__")
    vars(module)["__file__"] = str(path)
    try:
        run_notebook(path, vars(module))
    except NotebookRefused as error:
        sys.stderr.write(f"python -m stoker.azure: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
