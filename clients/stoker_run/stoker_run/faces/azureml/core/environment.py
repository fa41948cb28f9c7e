"""`azureml.core.environment` in a run of Stoker."""

from stoker_run.elsewhere import Environment

__all__ = ["Environment"]
