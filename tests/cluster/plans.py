"""Plans that the tests apply."""

from __future__ import annotations

from typing import Any

from stoker_cluster.plan import ClusterPlan

__all__ = ["digits"]

SERVES = ({"path": "/models/digits.onnx", "name": "digits"},)


def digits(namespace: str, **fields: Any) -> ClusterPlan:
    """A service of one model on GPUs."""
    values = {"name": "digits", "image": "stoker:1", "gpus": 1, "serves": SERVES, **fields}
    return ClusterPlan(namespace=namespace, **values)
