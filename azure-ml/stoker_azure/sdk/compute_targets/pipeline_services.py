"""Services of Azure for steps of pipelines alone, kept as records."""

from __future__ import annotations

from typing import ClassVar, Final

from stoker_azure.sdk.compute_targets.records import Configuration, without_none
from stoker_azure.sdk.compute_targets.target import ComputeTarget

_STEPS_ALONE: Final = "Azure takes it for steps of pipelines alone"


class _OfPipelines(ComputeTarget):
    """A service of Azure for steps of pipelines, kept as a record."""

    kind: ClassVar[str] = ""
    words: ClassVar[str] = f"it is kept as a record; {_STEPS_ALONE}"

    @property
    def cluster_resource_id(self) -> str:
        """The names of the resource on Azure."""
        return "/".join(str(value) for value in self._configuration.values())


class BatchCompute(_OfPipelines):
    """Azure Batch."""

    kind = "Batch"

    @staticmethod
    def attach_configuration(
        resource_group: str | None = None, account_name: str | None = None, resource_id: str | None = None
    ) -> Configuration:
        """Return the arguments for `ComputeTarget.attach`."""
        return Configuration(BatchCompute.kind, without_none(locals()))


class DatabricksCompute(_OfPipelines):
    """A workspace of Databricks."""

    kind = "Databricks"

    @staticmethod
    def attach_configuration(
        resource_group: str | None = None,
        workspace_name: str | None = None,
        resource_id: str | None = None,
        access_token: str = "",
    ) -> Configuration:
        """Return the arguments for `ComputeTarget.attach`. The token is kept in a file of mode 0600."""
        names = {
            "resource_group": resource_group,
            "workspace_name": workspace_name,
            "resource_id": resource_id,
        }
        return Configuration(
            DatabricksCompute.kind,
            without_none(names),
            {"access_token": access_token} if access_token else {},
        )


class AdlaCompute(_OfPipelines):
    """Data Lake Analytics."""

    kind = "DataLakeAnalytics"

    @staticmethod
    def attach_configuration(
        resource_group: str | None = None, account_name: str | None = None, resource_id: str | None = None
    ) -> Configuration:
        """Return the arguments for `ComputeTarget.attach`."""
        return Configuration(AdlaCompute.kind, without_none(locals()))
