"""Namespaces of tests."""

from __future__ import annotations

from itertools import count
from typing import Final

from tests.cluster.control_plane import ControlPlane

__all__ = ["create_restricted"]

_NUMBERS: Final = count(1)


def create_restricted(plane: ControlPlane) -> str:
    """Create a namespace that takes only pods of the profile restricted; returns its name, which no other one has."""
    name = f"test-{next(_NUMBERS)}"
    labels = {
        "pod-security.kubernetes.io/enforce": "restricted",
        "pod-security.kubernetes.io/enforce-version": "latest",
    }
    content = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    plane.create("/api/v1/namespaces", content)
    # Pods that a test makes itself are refused before there is one.
    plane.eventually(f"/api/v1/namespaces/{name}/serviceaccounts/default", lambda found: found is not None)
    return name
