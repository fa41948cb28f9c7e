"""A run of HyperDrive: its children, and which of them is the best."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from stoker_azure.sdk.training.run import Run
from stoker_runs.records.store import RunStore
from stoker_runs.tuning.children import Trial, terms_of, trials_of

__all__ = ["HyperDriveRun"]


class HyperDriveRun(Run):
    """A run whose children run one script with other parameters each.

    Args:
        experiment: Its experiment.
        run_id: Its id.

    Attributes:
        type: `hyperdrive`.

    Raises:
        UserErrorException: There is no such run.
    """

    type = "hyperdrive"

    def __init__(self, experiment: Any, run_id: str, hyperdrive_config: Any = None, **_others: Any) -> None:
        super().__init__(experiment, run_id)
        self._config = hyperdrive_config

    def _trials(self, *, with_earlier: bool = False) -> list[Trial]:
        store = RunStore(self.experiment.workspace.local.runs_dir)
        return trials_of(self.folder, store, with_earlier=with_earlier)

    def get_best_run_by_primary_metric(
        self,
        include_failed: bool = True,
        include_canceled: bool = True,
        include_resume_from_runs: bool = True,
    ) -> Run | None:
        """The child with the best value of the primary metric; None, with a line that says why, where none has one.

        Args:
            include_failed: Whether it may be one that has failed.
            include_canceled: Whether it may be one that was ended.
            include_resume_from_runs: Whether it may be one of the runs with whose children these were compared.
        """
        left_out = {
            status
            for status, is_in in (("Failed", include_failed), ("Canceled", include_canceled))
            if not is_in
        }
        trials = self._trials(with_earlier=include_resume_from_runs)
        for trial in trials:
            if trial.best is not None and trial.status.value not in left_out:
                return Run.get(self.experiment.workspace, trial.id)
        metric = terms_of(self.folder.record()).metric
        names = sorted({name for run in self.get_children() for name in run.get_metrics()})
        print(f"No run has logged the metric {metric}; they have logged: {', '.join(names) or 'none'}")
        return None

    def get_children_sorted_by_primary_metric(
        self, top: int = 0, reverse: bool = False, discard_no_metric: bool = False
    ) -> Sequence[dict[str, Any]]:
        """The children with their parameters and best values, the best first.

        Args:
            top: How many; 0 is all.
            reverse: The worst first; those without a value stay last.
            discard_no_metric: Leave those without a value out.
        """
        trials = self._trials()
        valued = [trial for trial in trials if trial.best is not None]
        others = [] if discard_no_metric else [trial for trial in trials if trial.best is None]
        found = [
            {
                "run_id": trial.id,
                "hyperparameters": json.dumps(trial.parameters),
                "best_primary_metric": trial.best,
                "status": trial.status.value,
            }
            for trial in [*(reversed(valued) if reverse else valued), *others]
        ]
        return found[:top] if top else found

    def get_hyperparameters(self) -> dict[str, str]:
        """The parameters of all children as JSON, by their ids."""
        trials = sorted(self._trials(), key=lambda trial: trial.number)
        return {trial.id: json.dumps(trial.parameters) for trial in trials}

    def get_metrics(self, name: str | None = None, recursive: bool = False, **_others: Any) -> dict[str, Any]:
        """What the children have logged, by their ids."""
        del recursive
        return {child.id: child.get_metrics(name) for child in self.get_children()}
