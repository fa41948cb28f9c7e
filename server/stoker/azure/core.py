"""What code imports from `azureml.core` itself."""

from __future__ import annotations

from stoker.azure.sdk.compute import ComputeTarget
from stoker.azure.sdk.environment import Environment
from stoker.azure.sdk.model import Model
from stoker.azure.sdk.webservice import Webservice
from stoker.azure.sdk.workspace import Workspace

__all__ = ["VERSION", "ComputeTarget", "Environment", "Model", "Webservice", "Workspace"]

VERSION = "1.61.0"
"""The version of Azure's SDK whose names and arguments are offered."""

__version__ = VERSION
