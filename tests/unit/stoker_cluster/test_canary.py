"""Other percentages for the versions of an endpoint."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tests.unit.stoker_cluster.plans import plan

from stoker.errors import InvalidSettings
from stoker_cluster.canary import Shares, set_shares, shares_of, with_shares
from stoker_cluster.plan import ClusterPlan
from stoker_cluster.render import objects_of

TRAFFIC = {"a": 20.0, "b": 10.0}
PLANS = {
    "route": {"gateway": "gw/main"},
    "router": {"router": True},
    "both": {"gateway": "gw/main", "router": True},
}


def endpoint(way: str, traffic: Mapping[str, float] = TRAFFIC, default: str | None = None) -> ClusterPlan:
    """The first of two versions."""
    return plan(version_name="a", traffic=traffic, default_version=default, namespace="ml", **PLANS[way])


class Puppet:
    """A cluster that has the objects of an endpoint."""

    def __init__(self, objects: Sequence[dict[str, Any]]) -> None:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "router", "labels": {}}}
        self.objects = [*objects, pod]
        self.applied: list[dict[str, Any]] = []
        self.merged: list[str] = []

    def knows(self, api_version: str, kind: str) -> bool:
        """All kinds that it has."""
        return any((one["apiVersion"], one["kind"]) == (api_version, kind) for one in self.objects)

    def list(self, api_version: str, kind: str, namespace: str | None, labels: str) -> list[dict[str, Any]]:
        """All of a kind, of any namespace."""
        wanted = dict(label.split("=") for label in labels.split(","))
        return [
            {**one, "status": {"of": "the server"}}
            for one in self.objects
            if one["kind"] == kind and (kind == "Pod" or wanted.items() <= one["metadata"]["labels"].items())
        ]

    def apply(self, content: dict[str, Any]) -> None:
        """Remember it."""
        self.applied.append(content)

    def reference(self, content: Mapping[str, Any]) -> str:
        """Its name."""
        return str(content["metadata"]["name"])

    def merge(self, reference: str, change: Mapping[str, Any]) -> None:
        """Remember whose."""
        self.merged.append(reference)


@pytest.mark.parametrize("way", PLANS)
def test_changed_shares_equal_a_rendered_plan_with_them(way: str) -> None:
    """This holds for a route and for a router."""
    cluster = Puppet(objects_of(endpoint(way)))
    assert set_shares(cluster, "ml", "digits", {"b": 40.0}, "b") == {"a": 2000, "b": 8000}
    wanted = objects_of(endpoint(way, {"a": 20.0, "b": 40.0}, "b"))
    assert cluster.applied
    for content in cluster.applied:
        same = [
            one for one in wanted if one["kind"] == content["kind"] and one["metadata"] == content["metadata"]
        ]
        assert same == [content]
    assert cluster.merged == ["router"]


def test_default_version_gives_the_share_of_another_one() -> None:
    """As on Azure, b=10 leaves 90 to a, and the sum stays 100."""
    first = Shares({"a": 100.0, "b": 0.0, "c": 0.0}, "a")
    second = first.changed({"b": 10.0})
    assert second == Shares({"a": 0.0, "b": 10.0, "c": 0.0}, "a")
    assert second.changed({"c": 90.0}) == Shares({"a": 0.0, "b": 10.0, "c": 90.0}, "a")


@pytest.mark.parametrize(
    ("traffic", "default", "words"),
    [
        ({"c": 1.0}, None, "there is no version c; there are a, b"),
        ({}, "c", "there is no version c"),
        ({"b": 100.0, "a": 1.0}, None, "adds up to 101 percent"),
        ({"b": 0.001}, None, "two digits"),
    ],
)
def test_shares_that_cannot_be_change_nothing(
    traffic: Mapping[str, float], default: str | None, words: str
) -> None:
    """One sentence says why, and the cluster is as it was."""
    cluster = Puppet(objects_of(endpoint("both")))
    with pytest.raises(InvalidSettings, match=words):
        set_shares(cluster, "ml", "digits", traffic, default)
    assert (cluster.applied, cluster.merged) == ([], [])


def test_a_service_without_versions_has_no_shares() -> None:
    """Neither its route nor its router."""
    for content in objects_of(plan(gateway="gw/main", router=True)):
        assert content["kind"] not in ("ConfigMap", "HTTPRoute") or shares_of(content) is None
    with pytest.raises(InvalidSettings, match="has no versions"):
        set_shares(Puppet(objects_of(plan(gateway="gw/main", router=True))), "ml", "digits", {"b": 1.0})


def test_found_fields_of_the_server_are_not_applied() -> None:
    """Only the fields that Stoker has set are applied again."""
    route = next(one for one in objects_of(endpoint("route")) if one["kind"] == "HTTPRoute")
    found = {
        **route,
        "status": {},
        "metadata": {**route["metadata"], "resourceVersion": "7", "managedFields": []},
    }
    shares = shares_of(found)
    assert shares == Shares(TRAFFIC, "a")
    assert with_shares(found, Shares(TRAFFIC, "a")) == route
