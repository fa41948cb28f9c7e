"""The state of a run: its status and details, waiting for its end, and ending it."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stoker_azure.exceptions import UserErrorException
from stoker_azure.sdk.base import raised_as
from stoker_azure.sdk.run_waiting import wait_for_run
from stoker_runs.launch.runners import adopt
from stoker_runs.records.folder import RunFolder, run_files


class StateOfRun:
    """The state of a run."""

    id: str
    folder: RunFolder
    experiment: Any
    properties: Any

    @property
    def status(self) -> str:
        """The status, in Azure's words."""
        return self.get_status()

    def get_status(self) -> str:
        """Return the status now; a run whose runner has died gets a new one."""
        adopt(self.folder, self.experiment.workspace.local)
        return str(self.folder.state().status.value)

    def get_detailed_status(self) -> dict[str, Any]:
        """Return the status and its reason."""
        state = self.folder.state()
        return {"status": self.get_status(), "details": [state.reason] if state.reason else []}

    def get_details(self) -> dict[str, Any]:
        """Return the run in Azure's JSON."""
        record, state = self.folder.record(), self.folder.state()
        definition = record.definition
        inputs = [
            {
                "dataset": {"id": digest, "path": definition.inputs.get(name, "")},
                "consumptionDetails": {"type": "Reference", "inputName": name, "mechanism": "Mount"},
            }
            for name, digest in record.data.items()
        ]
        details: dict[str, Any] = {
            "runId": self.id,
            "target": definition.target_name,
            "status": self.get_status(),
            "startTimeUtc": _utc(state.started_ms),
            "endTimeUtc": _utc(state.ended_ms),
            "properties": self.properties,
            "inputDatasets": inputs,
            "outputDatasets": [],
            "runDefinition": definition.to_json(),
            "logFiles": {
                name: str(path)
                for name, path in run_files(self.folder).items()
                if name.startswith("azureml-logs/")
            },
            "submittedBy": "local",
        }
        if state.error is not None:
            details["error"] = {"error": {"code": "UserError", **state.error.to_json()}}
        return details

    def get_details_with_logs(self) -> dict[str, Any]:
        """Return `get_details` with the content of the logs in place of their paths."""
        details = self.get_details()
        logs = {name: Path(path).read_text("utf-8", "replace") for name, path in details["logFiles"].items()}
        return {**details, "logFiles": logs}

    def wait_for_completion(
        self, show_output: bool = False, wait_post_processing: bool = False, raise_on_error: bool = True
    ) -> dict[str, Any]:
        """Wait until the run ends.

        Args:
            show_output: Whether to print what the script prints, as it prints it.
            wait_post_processing: Not used: its end is after that.

        Raises:
            ActivityFailedException: It has failed; the message is the error as JSON, with the traceback unless
                that was printed.
            ExperimentExecutionException: Ctrl-C was pressed; the run goes on.
        """
        del wait_post_processing
        wait_for_run(self.folder, self.experiment.workspace.local, show_output, raise_on_error)
        return self.get_details()

    def cancel(self) -> None:
        """Ask the run to end."""
        with raised_as(UserErrorException):
            self.folder.request_cancel("run.cancel()", int(time.time() * 1000))
        adopt(self.folder, self.experiment.workspace.local)


def _utc(time_ms: int | None) -> str | None:
    if time_ms is None:
        return None
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
