"""A service and an endpoint with a router, in a real API server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from tests.cluster.control_plane import ControlPlane
from tests.cluster.plans import digits
from tests.cluster.readiness import await_ready

from stoker.cli import main
from stoker.errors import InvalidSettings
from stoker_cluster.access import Cluster, Reference
from stoker_cluster.applying import apply, delete
from stoker_cluster.canary import set_shares
from stoker_cluster.cluster_service import ClusterService
from stoker_cluster.endpoints import EndpointSlices
from stoker_cluster.slice_reader import PodSliceReader

TLS = Path(__file__).parents[1] / "tls"
OF_THE_ROUTER = {
    "ServiceAccount digits-router",
    "Role digits-router",
    "RoleBinding digits-router",
    "ConfigMap digits-router",
    "NetworkPolicy digits-router",
    "Service digits",
    "Deployment digits-router",
    "PodDisruptionBudget digits-router",
}


def test_a_router_comes_goes_and_may_see_endpoints_alone(
    cluster: Cluster, namespace: str, control_plane: ControlPlane, warnings: list[str], tmp_path: Path
) -> None:
    """Its account lists the endpoints of its namespace and nothing else; without a router all of it is removed."""
    plan = digits(namespace, replicas=2, router=True)
    assert {str(change).removeprefix("created ") for change in apply(cluster, plan)} > OF_THE_ROUTER
    await_ready(ClusterService(cluster, namespace, "digits"))
    account = f"/api/v1/namespaces/{namespace}/serviceaccounts/digits-router/token"
    token = control_plane.create(account, {"spec": {}})["status"]["token"]
    (tmp_path / "token").write_text(token)
    (tmp_path / "namespace").write_text(namespace)
    (tmp_path / "ca.crt").write_bytes((TLS / "localhost.crt").read_bytes())
    place = urlsplit(control_plane.uri)
    reader = PodSliceReader(str(place.hostname), int(place.port or 0), tmp_path)
    found = asyncio.run(EndpointSlices(reader, "digits-servers", ("",)).find_servers())
    assert sorted(server.ready for server in found[""]) == [True, True]
    with pytest.raises(OSError, match="answers 403"):
        asyncio.run(reader.endpoint_slices("default", "kubernetes"))
    assert warnings == []
    plain = digits(namespace, replicas=2)
    removed = {
        str(change).removeprefix("removed ") for change in apply(cluster, plain) if change.verb == "removed"
    }
    assert removed == {*OF_THE_ROUTER - {"Service digits"}, "Service digits-servers"}


def settings(cluster: Cluster, namespace: str) -> dict[str, Any]:
    """The router's settings in the cluster."""
    found = cluster.find(Reference("v1", "ConfigMap", namespace, "digits-router"))
    assert found is not None
    content: dict[str, Any] = yaml.safe_load(found["data"]["router.yaml"])
    return content


def test_a_canary_gets_its_share_and_becomes_the_default(
    cluster: Cluster, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """By one command, without another pod; a share that cannot be changes nothing, and one delete takes all away."""
    for version in "ab":
        plan = digits(namespace, version_name=version, traffic={"a": 100.0, "b": 0.0}, router=True)
        assert [change.verb for change in apply(cluster, plan)]
    before = {one["metadata"]["uid"] for one in cluster.list("apps/v1", "ReplicaSet", namespace)}
    canary = ["kubernetes", "canary", "--namespace", namespace, "digits"]
    assert main([*canary, "b=10"]) == 0
    assert capsys.readouterr().out == "a  90%\nb  10%\n"
    assert settings(cluster, namespace)["traffic"] == {"a": 0.0, "b": 10.0}
    assert main([*canary, "b=10.005"]) == 2
    assert main([*canary, "c=1"]) == 2
    assert "there is no version c; there are a, b" in capsys.readouterr().err
    assert main([*canary, "--default-version", "b"]) == 0
    assert capsys.readouterr().out == "a  0%\nb  100%\n"
    assert settings(cluster, namespace)["default_version"] == "b"
    assert {one["metadata"]["uid"] for one in cluster.list("apps/v1", "ReplicaSet", namespace)} >= before
    # The command's changes belong to the plan, so the next apply has no conflict.
    plan = digits(
        namespace, version_name="b", traffic={"a": 0.0, "b": 100.0}, default_version="b", router=True
    )
    assert "removed" not in {change.verb for change in apply(cluster, plan)}
    delete(cluster, namespace, "digits")
    assert cluster.list("apps/v1", "Deployment", namespace) == []
    with pytest.raises(InvalidSettings, match="has no versions"):
        set_shares(cluster, namespace, "digits", {"b": 1.0})


def test_another_image_of_the_pods_is_no_other_router(cluster: Cluster, namespace: str) -> None:
    """It keeps the one that it has until it is given another one itself."""

    def template() -> dict[str, Any]:
        found = cluster.find(Reference("apps/v1", "Deployment", namespace, "digits-router"))
        assert found is not None
        content: dict[str, Any] = found["spec"]["template"]
        return content

    list(apply(cluster, digits(namespace, router=True)))
    before = template()
    new = digits(namespace, router=True, image="stoker:2")
    list(apply(cluster, new))
    assert template() == before
    list(apply(cluster, digits(namespace, router=True, image="stoker:2", router_image="stoker:3")))
    assert template()["spec"]["containers"][0]["image"] == "stoker:3"
    list(apply(cluster, new))
    assert template()["spec"]["containers"][0]["image"] == "stoker:3"
