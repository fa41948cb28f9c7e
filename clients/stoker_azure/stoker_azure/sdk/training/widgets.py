"""`azureml.widgets`: what a notebook shows of a run. Here it is lines of text."""

from __future__ import annotations

from stoker_azure.sdk.labels import Shown
from stoker_azure.sdk.training.run import Run

__all__ = ["RunDetails"]


class RunDetails(Shown):
    """Shows a run.

    Args:
        run_instance: The run.
    """

    def __init__(self, run_instance: Run) -> None:
        self._run = run_instance

    def _facts(self) -> dict[str, Run]:
        return {"run": self._run}

    def show(self, render_lib: object = None, widget_settings: object = None) -> None:
        """Print what the run is doing, and where it is."""
        del render_lib, widget_settings
        details = self._run.get_details()
        print(f"{details['runId']}: {details['status']} on {details['target']}")
        print(f"stoker runs logs {details['runId']} -f")

    def get_widget_data(self) -> dict[str, object]:
        """The same as data."""
        return self._run.get_details()
