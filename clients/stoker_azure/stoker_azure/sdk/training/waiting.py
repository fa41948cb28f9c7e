"""Waiting for a run, with what it prints, in Azure's form."""

from __future__ import annotations

import json
import sys
from typing import Final

from stoker.settings.workspace import Workspace
from stoker_azure.exceptions import ActivityFailedException, ExperimentExecutionException
from stoker_runs.launch.following import follow
from stoker_runs.records.folder import RunFolder
from stoker_runs.records.states import RunState, Status

__all__ = ["wait_for"]

_LOG: Final = "azureml-logs/70_driver_log.txt"


class _Printed:
    """What a run prints, below a head that is printed with its first line."""

    def __init__(self) -> None:
        self.has_begun = False

    def write(self, data: bytes) -> None:
        """Print bytes of the log."""
        if not self.has_begun:
            self.has_begun = True
            print(f"\nStreaming {_LOG}\n{'=' * (len(_LOG) + 10)}\n")
        sys.stdout.write(data.decode("utf-8", "replace"))
        sys.stdout.flush()


def wait_for(folder: RunFolder, workspace: Workspace, show_output: bool, raise_on_error: bool) -> RunState:
    """Wait until a run has ended; returns its last state.

    Args:
        folder: The run.
        workspace: Where it is.
        show_output: Whether to print what it prints.
        raise_on_error: Whether a failure is raised.

    Raises:
        ActivityFailedException: It has failed; the message is the error as JSON, without the traceback if its log was
            printed, which ends in that.
        ExperimentExecutionException: Ctrl-C was pressed; the run goes on.
    """
    printed = _Printed()
    if show_output:
        _print_head(folder)
    try:
        state = (
            follow(folder, workspace, printed.write, notes=print)
            if show_output
            else follow(folder, workspace, _nothing)
        )
    except KeyboardInterrupt:
        raise ExperimentExecutionException(
            f"The output streaming for the run interrupted.\nBut the run {folder.id} is still executing on the "
            "compute target."
        ) from None
    if show_output:
        print("\nExecution Summary\n=================")
        _print_head(folder)
        print()
    if state.status is Status.FAILED and raise_on_error:
        assert state.error is not None
        error = state.error.to_json()
        if printed.has_begun:
            error["details"] = {
                name: value
                for name, value in error["details"].items()
                if name not in ("traceback", "last_lines")
            }
        raise ActivityFailedException(json.dumps({"error": error}, indent=4))
    return state


def _print_head(folder: RunFolder) -> None:
    print(f"RunId: {folder.id}\nWeb View: {folder.path.as_uri()}")


def _nothing(_data: bytes) -> None:
    """Print nothing."""
