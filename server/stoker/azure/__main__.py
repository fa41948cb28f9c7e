"""`python -m stoker.azure SCRIPT [ARGUMENT ...]`: run code written for Azure's Python SDK against this machine."""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
from pathlib import Path
from types import TracebackType
from typing import Final

from stoker.azure.exceptions import AzureMLException
from stoker.system.tracebacks import format_for_script, frames_of_script

__all__ = ["main"]

_USAGE: Final = (
    "usage: python -m stoker.azure [--environment exact|relaxed|here] [--no-check] SCRIPT [ARGUMENT ...]\n\n"
    "Run a Python script that was written for Azure's SDK (azureml.core), unchanged: the workspace, its models and\n"
    "its services are those of Stoker on this machine. 'import stoker.azure' does the same for other code.\n\n"
    "--environment says how the packages of runs that it submits are had: exact, as their environments say (the\n"
    "default); relaxed, the same packages in today's versions; here, those of this Python.\n"
    "--no-check attaches machines without logging in to them.\n"
)
_MODES: Final = ("exact", "relaxed", "here")
_OPTION: Final = "--environment"
_NO_CHECK: Final = "--no-check"


def main() -> int:
    """Run the script as `python SCRIPT` would; returns 2 if there is none."""
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
    if importlib.util.find_spec("tf_keras") is not None:
        # What a script of before has saved by its Keras is loaded by the same one.
        os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    sys.argv = [str(path), *arguments]
    # As for a script that Python is given: its folder in the place of the current one.
    sys.path[0] = str(path.absolute().parent)
    sys.excepthook = _show
    runpy.run_path(str(path), run_name="__main__")
    return 0


def _show(kind: type[BaseException], error: BaseException, frames: TracebackType | None) -> None:
    """Print an exception that nobody has caught as `python SCRIPT` would: the first frame is the script's.

    Of exceptions of Azure's SDK, the last frame is so too.
    """
    if isinstance(error, AzureMLException):
        sys.stderr.write(format_for_script(error))
        return
    frames = frames_of_script(error) or frames
    sys.__excepthook__(kind, error.with_traceback(frames), frames)


if __name__ == "__main__":
    raise SystemExit(main())
