"""The environment variables of a process that another interpreter runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path


def variables_for(interpreter: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """The environment variables of a process run by an interpreter.

    For a virtual environment other than the running one, its commands come first on PATH, and PYTHONPATH is removed
    so that its own packages take precedence.
    """
    if interpreter == Path(sys.executable):
        return dict(variables)
    kept = {name: value for name, value in variables.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    folder = interpreter.parent
    path = os.pathsep.join([str(folder), *filter(None, [variables.get("PATH")])])
    return {**kept, "PATH": path, "VIRTUAL_ENV": str(folder.parent)}
