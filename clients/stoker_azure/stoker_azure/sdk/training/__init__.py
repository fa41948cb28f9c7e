"""Experiments and runs: what code that submits training imports from `azureml.core` and `azureml.train`."""
