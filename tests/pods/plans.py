"""Plans that the tests apply."""

from __future__ import annotations

from typing import Any, Final

from stoker_cluster.plan import ClusterPlan

__all__ = ["KEY", "OTHER_KEY", "digits"]

KEY: Final = "primary-key-of-the-tests-0001"
OTHER_KEY: Final = "secondary-key-of-the-tests-002"


def digits(namespace: str, **fields: Any) -> ClusterPlan:
    """A service of one model, whose pods hold a GPU each and compute without it; `image` says what it multiplies by.

    They drain for half as long as they do otherwise: the proxy of the only node is the only one that has to hear.
    """
    values = {
        "name": "digits",
        "image": "stoker:2",
        "gpus": 1,
        "serves": ({"path": "/models/digits.onnx", "name": "digits", "threads": 1},),
        "primary_key": KEY,
        "secondary_key": OTHER_KEY,
        **fields,
    }
    server = {"device": "cpu", "frontends": 1, "drain_grace_s": 5, **fields.get("server", {})}
    return ClusterPlan(namespace=namespace, **{**values, "server": server})
