"""`azureml.logging` of Workbench in a run of Stoker."""

from stoker_run.workbench import AzureMLLogger, data_collection_state, get_azureml_logger

__all__ = ["AzureMLLogger", "data_collection_state", "get_azureml_logger"]
