"""Tracebacks of scripts, for their authors: without how Stoker came to run them."""

from __future__ import annotations

import os
import traceback
from itertools import dropwhile, takewhile
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final

__all__ = ["format_for_script", "frames_of_script"]

_CALLERS: Final = (f"{Path(__file__).parents[1]}{os.sep}", "<frozen ")
"""What the names of files begin with whose code runs a script; `importlib` and `runpy` are frozen."""
_PACKAGES: Final = frozenset({"stoker_azure", "stoker_cluster", "stoker_runs"})
"""Other packages whose code runs scripts."""


def frames_of_script(error: BaseException) -> TracebackType | None:
    """Return the traceback of an exception from the script's first frame on; None where it has none."""
    frames = error.__traceback__
    while frames is not None and _runs_scripts(frames.tb_frame):
        frames = frames.tb_next
    return frames


def format_for_script(error: BaseException) -> str:
    """Return an exception as Python prints it, with the frames of the script up to its call of Stoker."""
    described = traceback.TracebackException.from_exception(error)
    from_script = dropwhile(lambda entry: _runs_scripts(entry[0]), traceback.walk_tb(error.__traceback__))
    of_script = takewhile(lambda entry: not _runs_scripts(entry[0]), from_script)
    described.stack = traceback.StackSummary.extract(of_script)
    return "".join(described.format())


def _runs_scripts(frame: FrameType) -> bool:
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return package in _PACKAGES or frame.f_code.co_filename.startswith(_CALLERS)
