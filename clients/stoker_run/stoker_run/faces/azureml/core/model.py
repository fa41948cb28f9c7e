"""`azureml.core.model` in a run of Stoker."""

from stoker_run.elsewhere import Model

__all__ = ["Model"]
