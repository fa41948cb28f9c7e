"""Configurations made for Azure Machine Learning, read into Stoker's settings.

`deploymentconfig.json` and the keywords of the SDK's `deploy_configuration`, `inferenceconfig.json`, and the
variables of Azure's inference server.
"""

from __future__ import annotations

from stoker.azure_config.deployment import DeploymentConfig
from stoker.azure_config.inference import InferenceConfig
from stoker.azure_config.server_variables import AzureServer

__all__ = ["AzureServer", "DeploymentConfig", "InferenceConfig"]
