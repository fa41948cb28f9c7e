"""`azureml.exceptions` in a run of Stoker."""

from stoker_run.exceptions import AzureMLException, NotOffered, RunEnvironmentException, UserErrorException

__all__ = ["AzureMLException", "NotOffered", "RunEnvironmentException", "UserErrorException"]
