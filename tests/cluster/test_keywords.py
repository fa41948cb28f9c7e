"""Azure's 31 keywords in the objects of a real API server, after its defaults."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kinds import installed, permissive_definition
from tests.unit.stoker_cluster.keywords import EFFECTS, changed, planned

from stoker_cluster.access import Cluster
from stoker_cluster.applying import KINDS, apply

SHOWN = ("apiVersion", "kind", "spec", "data", "rules", "subjects")
# That the plan leaves it to others is all: the number of before stays until those have looked.
OF_OTHERS = {"Deployment/digits spec.replicas": None}


def live(cluster: Cluster, namespace: str) -> Iterator[dict[str, Any]]:
    """The objects of the service as the API server has them, without their statuses."""
    for kind in [*KINDS, ("v1", "Secret")]:
        if not cluster.knows(*kind):
            continue
        for content in cluster.list(*kind, namespace, "app.kubernetes.io/managed-by=stoker"):
            shown = {name: content[name] for name in SHOWN if name in content}
            if kind == ("v1", "Secret"):
                data = shown.pop("data")
                shown["stringData"] = {slot: base64.b64decode(key).decode() for slot, key in data.items()}
            metadata = content["metadata"]
            annotations = metadata.get("annotations", {}).items()
            yield shown | {
                "metadata": {
                    "name": metadata["name"],
                    "labels": metadata["labels"],
                    "annotations": {
                        name: text for name, text in annotations if name.startswith("stoker.dev/")
                    },
                }
            }


@pytest.fixture(scope="module")
def monitored(control_plane: ControlPlane) -> Iterator[None]:
    """A cluster that knows PodMonitors."""
    with installed(control_plane, permissive_definition("monitoring.coreos.com", "v1", "PodMonitor")):
        yield


@pytest.mark.usefixtures("monitored")
@pytest.mark.parametrize("keyword", [keyword for keyword in EFFECTS if keyword != "namespace"])
def test_each_keyword_is_found_in_the_live_objects_and_only_there(
    cluster: Cluster, namespace: str, warnings: list[str], keyword: str
) -> None:
    """The objects of a service with the keyword and without it differ as the table lists."""
    list(apply(cluster, planned(keyword, namespace, given=False)))
    before = list(live(cluster, namespace))
    list(apply(cluster, planned(keyword, namespace, given=True)))
    found = changed(before, live(cluster, namespace))
    # Each change of the Secret raises the number of its keys.
    is_another_secret = any(place.startswith("Secret/") for place in found)
    assert found.pop("Secret/digits-keys stringData.generation", None) == ("2" if is_another_secret else None)
    if keyword == "token_auth_enabled":
        assert len(bytes.fromhex(found.pop("Secret/digits-keys stringData.signing"))) == 32
    expected = EFFECTS[keyword].changes
    if keyword == "autoscale_enabled":
        expected = {place: value for place, value in expected.items() if place not in OF_OTHERS}
    # Amounts are texts there.
    assert {place: _text(value) for place, value in found.items()} == {
        place: _text(value) for place, value in expected.items()
    }
    assert warnings == []


def test_the_keyword_namespace_says_where_all_of_it_is(
    cluster: Cluster, control_plane: ControlPlane, namespace: str
) -> None:
    """All objects of the service are in that namespace."""
    other = EFFECTS["namespace"].value
    control_plane.create("/api/v1/namespaces", {"metadata": {"name": other}})
    try:
        list(apply(cluster, planned("namespace", namespace, given=True)))
        assert len(list(live(cluster, other))) == 6
        assert list(live(cluster, namespace)) == []
    finally:
        control_plane.api.delete(f"/api/v1/namespaces/{other}")


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
