"""The Secret with the keys of a service, where the plan was given some."""

from __future__ import annotations

from typing import Any

from stoker_cluster.objects.metadata import shared_metadata
from stoker_cluster.plan import ClusterPlan

__all__ = ["keys"]


def keys(plan: ClusterPlan) -> list[dict[str, Any]]:
    """Return the Secret with the keys that were given; without any it is somebody else's, and has to be there.

    Its name is the service's, whatever version of an endpoint the pods are: callers have one set of keys.
    """
    given = {"primary": plan.primary_key, "secondary": plan.secondary_key}
    values = {slot: key for slot, key in given.items() if key}
    if not values:
        return []
    return [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": shared_metadata(plan, plan.keys_secret),
            "type": "Opaque",
            "stringData": values,
        }
    ]
