"""A deployed service of the workspace."""

from __future__ import annotations

from typing import Any

from stoker_azure.sdk.services.access import ServiceAccess
from stoker_azure.sdk.services.changes import ServiceChanges
from stoker_azure.sdk.unoffered import with_unoffered_names


@with_unoffered_names
class DeployedService(ServiceAccess, ServiceChanges):
    """A service of the workspace. Attributes are looked up when they are read.

    Attributes:
        image: None, as no service here is made of an image.

    Keywords of `deploy_configuration` are attributes too: the values that were deployed, or None.
    """

    def serialize(self) -> dict[str, Any]:
        """Return the service as JSON with Azure's names, without its keys."""
        record = self._record
        return {
            "name": self.name,
            "computeType": self.compute_type,
            "computeName": self.compute_name,
            "state": self.state,
            "error": self.error,
            "scoringUri": self.scoring_uri,
            "swaggerUri": self.swagger_uri,
            "authEnabled": self.auth_enabled,
            "aadAuthEnabled": self.token_auth_enabled,
            "numReplicas": self.num_replicas,
            "description": self.description,
            "tags": self.tags,
            "properties": self.properties,
            "modelIds": [*record.models],
            "createdTime": record.created_at,
            "updatedTime": record.updated_at,
        }
