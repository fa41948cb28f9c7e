"""Configurations made for Azure Machine Learning, read into Stoker's settings.

`deploymentconfig.json` and the keywords of the SDK's `deploy_configuration`, `inferenceconfig.json`, the YAML of
online endpoints and deployments, and the variables of Azure's inference server.
"""

from __future__ import annotations

from stoker_azure.config.deployment import DeploymentConfig
from stoker_azure.config.inference import InferenceConfig
from stoker_azure.config.online import OnlineDeployment, OnlineEndpoint
from stoker_azure.config.server_variables import AzureServer

__all__ = ["AzureServer", "DeploymentConfig", "InferenceConfig", "OnlineDeployment", "OnlineEndpoint"]
