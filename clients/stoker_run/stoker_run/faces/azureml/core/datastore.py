"""`azureml.core.datastore` in a run of Stoker."""

from stoker_run.elsewhere import Datastore

__all__ = ["Datastore"]
