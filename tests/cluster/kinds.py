"""Kinds that other projects bring to a cluster."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from tests.cluster.control_plane import ControlPlane

__all__ = ["installed", "permissive_definition"]

_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def permissive_definition(group: str, version: str, kind: str) -> dict[str, Any]:
    """A definition of a kind that accepts any fields, for kinds whose project publishes none here."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    plural = f"{kind.lower()}s"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "names": {"kind": kind, "plural": plural},
            "scope": "Namespaced",
            "versions": [{"name": version, "served": True, "storage": True, "schema": schema}],
        },
    }


@contextlib.contextmanager
def installed(control_plane: ControlPlane, definition: dict[str, Any]) -> Iterator[None]:
    """A kind that the cluster knows while the body runs."""
    name, spec = definition["metadata"]["name"], definition["spec"]
    control_plane.create(_PATH, definition)
    versions = [one["name"] for one in spec["versions"] if one["served"]]
    for version in versions:
        group = f"/apis/{spec['group']}/{version}"
        control_plane.eventually(group, lambda found: found and _lists(found, spec["names"]["plural"]))
        _await_storage(control_plane, f"{group}/{spec['names']['plural']}")
    try:
        yield
    finally:
        control_plane.api.delete(f"{_PATH}/{name}")
        control_plane.eventually(f"{_PATH}/{name}", lambda found: found is None)
        for version in versions:
            # Tests after this one find a cluster without it.
            control_plane.eventually(
                f"/apis/{spec['group']}/{version}",
                lambda found: not found or not _lists(found, spec["names"]["plural"]),
            )


def _await_storage(control_plane: ControlPlane, path: str) -> None:
    """The kind is listed before it can be kept."""
    deadline_s = time.monotonic() + 120.0
    while not (answer := control_plane.api.get(path)).is_success:
        assert time.monotonic() < deadline_s, answer.text
        time.sleep(0.05)


def _lists(found: dict[str, Any], plural: str) -> bool:
    return any(one["name"] == plural for one in found["resources"])
