"""`azureml.core.dataset` in a run of Stoker."""

from stoker_run.elsewhere import Dataset

__all__ = ["Dataset"]
