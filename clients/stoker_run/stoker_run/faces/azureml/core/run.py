"""`azureml.core.run` in a run of Stoker."""

from stoker_run.offline import OfflineRun as _OfflineRun
from stoker_run.run import Run

__all__ = ["Run", "_OfflineRun"]
