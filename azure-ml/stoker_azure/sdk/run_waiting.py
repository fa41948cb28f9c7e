"""Waiting for the end of a run, with its log as Azure's SDK prints it."""

from __future__ import annotations

import json
import sys

from stoker.settings.workspace import Workspace as LocalWorkspace
from stoker_azure.exceptions import ActivityFailedException, ExperimentExecutionException
from stoker_runs.launch.following import follow
from stoker_runs.records.folder import RunFolder
from stoker_runs.records.states import RunState, Status


class _LogPrinter:
    """Prints the log of a run, below a heading that comes with the first line."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.has_started = False

    def write(self, data: bytes) -> None:
        """Print bytes of the log."""
        if not self.has_started:
            self.has_started = True
            print(f"\nStreaming {self._name}\n{'=' * (len(self._name) + 10)}\n")
        sys.stdout.write(data.decode("utf-8", "replace"))
        sys.stdout.flush()


def wait_for_run(
    folder: RunFolder, workspace: LocalWorkspace, show_output: bool, raise_on_error: bool
) -> RunState:
    """Wait until a run has ended, and return its last state.

    Raises:
        ActivityFailedException: The run failed. The message is the error as JSON, without the traceback if the log,
            which ends with it, was printed.
        ExperimentExecutionException: Ctrl-C was pressed; the run goes on.
    """
    several = folder.record().definition.processes > 1
    printed = _LogPrinter(f"azureml-logs/70_driver_log{'_0' * several}.txt")
    if show_output:
        _print_head(folder)
    try:
        write, notes = (printed.write, print) if show_output else (_discard, _discard)
        state = follow(folder, workspace, write, notes=notes)
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
        if printed.has_started:
            hidden = ("traceback", "last_lines")
            error["details"] = {k: v for k, v in error["details"].items() if k not in hidden}
        raise ActivityFailedException(json.dumps({"error": error}, indent=4))
    return state


def _print_head(folder: RunFolder) -> None:
    print(f"RunId: {folder.id}\nWeb View: {folder.path.as_uri()}")


def _discard(_text: object) -> None:
    """Print nothing."""
