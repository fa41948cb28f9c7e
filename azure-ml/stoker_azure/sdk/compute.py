"""Compute targets: each a record in the workspace, an object of the class of its kind.

Targets that run scripts are also compute targets of `stoker targets`, and exist as long as that has them, whether
Azure's SDK or the command made them. The record holds what only Azure's SDK knows.
"""

from __future__ import annotations

from stoker_azure.exceptions import ComputeTargetException
from stoker_azure.sdk.compute_targets.aks import AksCompute
from stoker_azure.sdk.compute_targets.aml_compute import AmlCompute, AmlComputeStatus
from stoker_azure.sdk.compute_targets.machines import DsvmCompute, HDInsightCompute, RemoteCompute
from stoker_azure.sdk.compute_targets.pipeline_services import AdlaCompute, BatchCompute, DatabricksCompute
from stoker_azure.sdk.compute_targets.target import ComputeTarget

__all__ = [
    "AdlaCompute",
    "AksCompute",
    "AmlCompute",
    "AmlComputeStatus",
    "BatchCompute",
    "ComputeTarget",
    "ComputeTargetException",
    "DatabricksCompute",
    "DsvmCompute",
    "HDInsightCompute",
    "RemoteCompute",
]
