"""`azureml.core.workspace` in a run of Stoker."""

from stoker_run.elsewhere import Workspace

__all__ = ["Workspace"]
