"""`experiment.start_logging()`: a run of the process that has begun it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Final, Self

from stoker_azure.sdk.training.run import Run
from stoker_run import Run as RunOfScript
from stoker_runs.launch.interactive import InteractiveRun

__all__ = ["StartedRun"]

_AS_IN_A_SCRIPT: Final = (
    *("log", "log_list", "log_row", "log_table", "log_image", "log_confusion_matrix", "log_accuracy_table"),
    *("log_residuals", "log_predictions", "upload_file", "upload_files", "upload_folder", "add_properties"),
    *("child_run", "create_children"),
)


class StartedRun(Run):
    """A run that this process logs to as a script does, and ends by `complete`, `fail` or as a context.

    Args:
        experiment: Its experiment.
        outputs: A folder whose files become the run's when it ends.
    """

    type = "azureml.interactiverun"

    def __init__(self, experiment: Any, outputs: Path | None) -> None:
        self._begun = InteractiveRun(experiment.workspace.local, experiment.name)
        self._outputs = outputs
        super().__init__(experiment, self._begun.folder.id)
        said = RunOfScript(self._begun.recorder, self.id, experiment)
        # In the place of those that a run has which somebody else runs.
        offered = {name: getattr(said, name) for name in _AS_IN_A_SCRIPT}
        vars(self).update(offered, complete=self._complete, fail=self._fail)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        error = raised[1]
        if error is None:
            self._complete()
        else:
            self._fail(f"{error.__class__.__name__}: {error}")

    def get_status(self) -> str:
        """What it is doing now."""
        return str(self.folder.state().status.value)

    def cancel(self) -> None:
        """Say that it was given up."""
        self._collect()
        self._begun.interrupt()

    def _complete(self) -> None:
        self._collect()
        self._begun.end()

    def _fail(self, error_details: Any = None, error_code: Any = None) -> None:
        del error_code
        self._collect()
        self._begun.end(str(error_details or "the program says that it has failed"))

    def _collect(self) -> None:
        if self._begun.is_open and self._outputs is not None and self._outputs.is_dir():
            shutil.copytree(self._outputs, self.folder.outputs, dirs_exist_ok=True)
