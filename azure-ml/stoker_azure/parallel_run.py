"""`azureml_user.parallel_run`: what scripts for mini-batches ask of Azure's parallel run step."""

from __future__ import annotations

import logging
import os
from pathlib import Path

__all__ = ["EntryScript"]


class EntryScript:
    """The step as its script sees it; all of them are alike."""

    logger = logging.getLogger("azureml_user.parallel_run")

    @property
    def agent_name(self) -> str:
        """The number of the process."""
        return str(os.getpid())

    @property
    def working_dir(self) -> str:
        """The current folder."""
        return str(Path.cwd())

    @property
    def output_dir(self) -> str:
        """The current folder."""
        return str(Path.cwd())
