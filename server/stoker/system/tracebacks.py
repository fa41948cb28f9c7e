"""Tracebacks of scripts, for their authors: without how Stoker came to run them."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Final

__all__ = ["frames_of_script"]

_CALLERS: Final = (f"{Path(__file__).parents[1]}{os.sep}", "<frozen ")
"""What the names of files begin with whose code runs a script; `importlib` and `runpy` are frozen."""


def frames_of_script(error: BaseException) -> TracebackType | None:
    """Return the traceback of an exception from the script's first frame on; None where it has none."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_CALLERS):
        frames = frames.tb_next
    return frames
