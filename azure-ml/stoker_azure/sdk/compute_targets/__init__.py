"""The classes of compute targets, a module for each concept; users import them from `azureml.core.compute`."""
