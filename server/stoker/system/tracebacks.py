"""Tracebacks of scripts, for their authors: without how Stoker came to run them."""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from types import TracebackType
from typing import Final

__all__ = ["format_for_script", "frames_of_script"]

_CALLERS: Final = (f"{Path(__file__).parents[1]}{os.sep}", "<frozen ")
"""What the names of files begin with whose code runs a script; `importlib` and `runpy` are frozen."""


def frames_of_script(error: BaseException) -> TracebackType | None:
    """Return the traceback of an exception from the script's first frame on; None where it has none."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_CALLERS):
        frames = frames.tb_next
    return frames


def format_for_script(error: BaseException) -> str:
    """Return an exception as Python prints it, without the frames of Stoker."""
    described = traceback.TracebackException.from_exception(error)
    described.stack = traceback.StackSummary.from_list(
        [frame for frame in described.stack if not frame.filename.startswith(_CALLERS)]
    )
    return "".join(described.format())
