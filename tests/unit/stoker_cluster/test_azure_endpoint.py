"""Endpoints of Azure's SDK on a bound compute target; the API server is a puppet, tests/cluster has a real one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml
from tests.unit.stoker_cluster.puppet_api import PuppetApi, status_of_whole

import stoker.azure  # noqa: F401  # provides azureml
from stoker.cli import main

from azureml.core import Model, Webservice, Workspace  # isort: skip
from azureml.core.compute import AksCompute, ComputeTarget
from azureml.core.model import InferenceConfig
from azureml.core.webservice import AksEndpoint, AksWebservice
from azureml.exceptions import WebserviceException

BIND = ["compute", "bind", "aks-gpu", "--image", "stoker:1", "--gpus", "0"]
APPS = "/apis/apps/v1/namespaces/models/deployments"
KEY = "a-key-that-is-long-enough"


@pytest.fixture
def routed(ws: Workspace, api: PuppetApi) -> Workspace:
    """A workspace whose cluster has pods at once, to which a router leads."""
    api.becomes = status_of_whole
    assert main([*BIND, "--router"]) == 0
    return ws


def deployed(ws: Workspace, *, overwrite: bool = False, **keywords: Any) -> AksEndpoint:
    """An endpoint with its first version."""
    endpoint: AksEndpoint = Model.deploy(
        ws,
        "digits",
        models=[Model(ws, "digits")],
        inference_config=InferenceConfig("score.py"),
        deployment_config=AksEndpoint.deploy_configuration(**{"version_name": "a", **keywords}),
        deployment_target=ComputeTarget.create(ws, "aks-gpu", AksCompute.provisioning_configuration()),
        overwrite=overwrite,
    )
    return endpoint


def runs(ws: Workspace) -> dict[str, Any]:
    """The model and script of a further version."""
    return {"models": [Model(ws, "digits")], "inference_config": InferenceConfig("score.py")}


def shares(api: PuppetApi) -> tuple[dict[str, float], str]:
    """The router's shares and default version."""
    found = api.objects["/api/v1/namespaces/models/configmaps/digits-router"]["data"]["router.yaml"]
    settings = yaml.safe_load(found)
    return settings["traffic"], settings["default_version"]


def versions(api: PuppetApi) -> dict[str, str]:
    """The type of each version with pods: control or treatment."""
    found = (one["metadata"]["labels"] for path, one in api.objects.items() if path.startswith(APPS))
    return {
        labels["stoker.dev/version"]: labels["stoker.dev/version-type"]
        for labels in found
        if "stoker.dev/version" in labels
    }


def test_versions_come_share_and_go(routed: Workspace, api: PuppetApi) -> None:
    """Azure's own example: a=20 and default, b=10, then b=40 and default; later code finds the endpoint."""
    endpoint = deployed(routed, traffic_percentile=20, num_replicas=2, primary_key=KEY)
    assert (shares(api), versions(api)) == (({"a": 20.0}, "a"), {"a": "control"})
    endpoint.create_version("b", traffic_percentile=10, num_replicas=1, **runs(routed))
    assert shares(api) == ({"a": 20.0, "b": 10.0}, "a")
    assert versions(api) == {"a": "control", "b": "treatment"}
    endpoint.update_version("b", traffic_percentile=40, is_default=True, is_control_version_type=True)
    assert shares(api) == ({"a": 20.0, "b": 40.0}, "b")
    assert versions(api) == {"a": "treatment", "b": "control"}
    again = Webservice(routed, "digits")
    assert isinstance(again, AksEndpoint)
    again.update_version("a", num_replicas=3)
    assert api.objects[f"{APPS}/digits-a"]["spec"]["replicas"] == 3
    one = again.versions["b"]
    assert (one.is_default, one.version_type, one.traffic_percentile) == (True, "Control", 40.0)
    again.add_tags({"stage": "test"})
    for name in "ab":
        labels = api.objects[f"{APPS}/digits-{name}"]["metadata"]["labels"]
        assert labels["tags.stoker.dev/stage"] == "test"
    again.delete_version("a")
    assert (shares(api), versions(api)) == (({"b": 40.0}, "b"), {"b": "control"})
    again.delete()
    assert api.objects == {}


def test_endpoint_is_deployed_again_only_with_overwrite(routed: Workspace, api: PuppetApi) -> None:
    """It then has its first version alone; a service without versions is never overwritten."""
    deployed(routed).create_version("b", **runs(routed))
    with pytest.raises(WebserviceException, match="there is a service digits already, in namespace models"):
        deployed(routed)
    deployed(routed, version_name="c", overwrite=True)
    assert (shares(api), versions(api)) == (({"c": 0.0}, "c"), {"c": "control"})
    api.put("Deployment", "digits")
    with pytest.raises(WebserviceException, match="digits is a service without versions"):
        deployed(routed, overwrite=True)


def too_late(replicas: int) -> dict[str, Any]:
    """The status of a Deployment of whose pods none has come about."""
    late = {"type": "Progressing", "reason": "ProgressDeadlineExceeded", "message": "has timed out"}
    return {**status_of_whole(0), "replicas": replicas, "conditions": [late]}


def test_a_version_that_cannot_score_gets_no_requests(routed: Workspace, api: PuppetApi) -> None:
    """It is there without a share, and can be deleted."""
    endpoint = deployed(routed)
    api.becomes = too_late
    with pytest.raises(WebserviceException, match=r"the version b of digits gets no .* Failed: .*timed out"):
        endpoint.create_version("b", traffic_percentile=50, is_default=True, **runs(routed))
    assert shares(api) == ({"a": 0.0, "b": 0.0}, "a")
    assert endpoint.versions["b"].traffic_percentile == 0.0
    endpoint.delete_version("b")
    assert (shares(api), list(versions(api))) == (({"a": 0.0}, "a"), ["a"])


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda one, of: one.create_version("b", **of), "there is a version b already"),
        (lambda one, of: one.create_version("c", traffic_percentile=50, **of), "adds up to 110 percent"),
        (lambda one, of: one.create_version("C", **of), "the name of a version must be"),
        (lambda one, _: one.update_version("b", traffic_percentile=-1), "percentages from 0 to 100"),
        (
            lambda one, _: one.update_version("c", traffic_percentile=1),
            "there is no version c; there are a, b",
        ),
        (lambda one, _: one.update_version("b", auth_enabled=False), "said of the endpoint"),
        (lambda one, _: one.update(num_replicas=2), "see update_version"),
        (lambda one, _: one.delete_version("a"), "a is the default version"),
    ],
)
def test_impossible_change_of_an_endpoint_changes_nothing(
    routed: Workspace, api: PuppetApi, ask: Callable[[AksEndpoint, dict[str, Any]], None], message: str
) -> None:
    """Impossible shares, versions and settings are refused."""
    endpoint = deployed(routed, traffic_percentile=60)
    endpoint.create_version("b", **runs(routed))
    before = {path: dict(one) for path, one in api.objects.items()}
    with pytest.raises(WebserviceException, match=message):
        ask(endpoint, runs(routed))
    assert api.objects == before


def test_endpoint_needs_a_bound_target_that_splits_requests(ws: Workspace, api: PuppetApi) -> None:
    """Targets without a Gateway or router are refused, and those unbound at or after the deployment."""
    assert main(BIND) == 0
    with pytest.raises(WebserviceException, match="a Service cannot split requests by weights"):
        deployed(ws)
    assert api.objects == {}
    api.becomes = status_of_whole
    assert main([*BIND, "--router"]) == 0
    endpoint = deployed(ws)
    assert main(["compute", "unbind", "aks-gpu"]) == 0
    with pytest.raises(WebserviceException, match="bind the target again"):
        endpoint.delete_version("a")
    with pytest.raises(WebserviceException, match="which are pods of a cluster; bind its compute target"):
        deployed(ws, overwrite=True)


def test_a_service_without_versions_is_no_endpoint(routed: Workspace) -> None:
    """An endpoint is not deployed over as a service, unless it is deleted first."""
    deployed(routed)
    with pytest.raises(WebserviceException, match="digits is an endpoint with versions; delete"):
        Model.deploy(
            routed,
            "digits",
            [Model(routed, "digits")],
            InferenceConfig("score.py"),
            AksWebservice.deploy_configuration(),
            ComputeTarget(routed, "aks-gpu"),
            overwrite=True,
        )
