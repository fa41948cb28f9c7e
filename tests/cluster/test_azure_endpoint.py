"""`AksEndpoint` of Azure's SDK on a compute target that is bound to a cluster, whose pods are simulated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster.control_plane import ControlPlane
from tests.cluster.nodes import Behaviour
from tests.cluster.test_apply import versions as objects
from tests.cluster.test_azure_sdk import KEY, binding, folder  # noqa: F401  # a fixture

import stoker.azure  # noqa: F401  # provides azureml
from stoker.cli import main
from stoker_cluster.access import Cluster

from azureml.core import Model, Webservice, Workspace  # isort: skip
from azureml.core.compute import AksCompute, ComputeTarget
from azureml.core.model import InferenceConfig
from azureml.core.webservice import AksEndpoint
from azureml.exceptions import WebserviceException

ROUTER = ("--router", "--gpus", "0")


@pytest.fixture
def ws(folder: Path, namespace: str) -> Workspace:  # noqa: F811  # the fixture
    """A workspace in which `aks-gpu` stands for the namespace, where callers come by a router."""
    assert main([*binding(namespace), *ROUTER]) == 0
    (folder / "score.py").write_text("def init(): ...\ndef run(data): return data\n")
    return Workspace.from_config()


def deployed(ws: Workspace, **keywords: Any) -> AksEndpoint:
    """An endpoint with its first version `a`."""
    endpoint: AksEndpoint = Model.deploy(
        ws,
        "digits",
        models=[Model(ws, "tf-dnn-mnist")],
        inference_config=InferenceConfig("score.py"),
        deployment_config=AksEndpoint.deploy_configuration(version_name="a", **keywords),
        deployment_target=ComputeTarget.create(ws, "aks-gpu", AksCompute.provisioning_configuration()),
    )
    endpoint.wait_for_deployment()
    return endpoint


def version(ws: Workspace) -> dict[str, Any]:
    """The model and script of a further version."""
    return {"models": [Model(ws, "tf-dnn-mnist")], "inference_config": InferenceConfig("score.py")}


def deployments(control_plane: ControlPlane, namespace: str) -> dict[str, Any]:
    """The live Deployments of the versions, by version."""
    found = control_plane.get(
        f"/apis/apps/v1/namespaces/{namespace}/deployments?labelSelector=app.kubernetes.io/component=server"
    )
    return {one["metadata"]["labels"]["stoker.dev/version"]: one for one in found["items"]}


def shares(control_plane: ControlPlane, namespace: str) -> tuple[dict[str, float], str]:
    """The router's shares and default version."""
    found = control_plane.get(f"/api/v1/namespaces/{namespace}/configmaps/digits-router")
    settings = yaml.safe_load(found["data"]["router.yaml"])
    return settings["traffic"], settings["default_version"]


def kinds(control_plane: ControlPlane, namespace: str) -> dict[str, str]:
    """The type of each version: control or treatment."""
    found = deployments(control_plane, namespace)
    return {name: one["metadata"]["labels"]["stoker.dev/version-type"] for name, one in found.items()}


def test_versions_come_share_and_go(
    ws: Workspace, control_plane: ControlPlane, cluster: Cluster, namespace: str
) -> None:
    """Azure's own example: a=20 and default, b=10, then b=40 and default. Shares change no pod."""
    endpoint = deployed(ws, traffic_percentile=20, num_replicas=2, primary_key=KEY)
    assert shares(control_plane, namespace) == ({"a": 20.0}, "a")
    endpoint.create_version("b", traffic_percentile=10, num_replicas=1, cpu_cores=2, **version(ws))
    assert shares(control_plane, namespace) == ({"a": 20.0, "b": 10.0}, "a")
    assert kinds(control_plane, namespace) == {"a": "control", "b": "treatment"}
    found = deployments(control_plane, namespace)
    pods = {name: one["spec"]["template"] for name, one in found.items()}
    assert (found["a"]["spec"]["replicas"], found["b"]["spec"]["replicas"]) == (2, 1)
    assert pods["b"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "2"
    secrets = [{one["name"]: one for one in pod["spec"]["volumes"]}["keys"] for pod in pods.values()]
    assert [one["secret"]["secretName"] for one in secrets] == ["digits-keys"] * 2
    endpoint.update_version("b", traffic_percentile=40, is_default=True, is_control_version_type=True)
    assert shares(control_plane, namespace) == ({"a": 20.0, "b": 40.0}, "b")
    assert kinds(control_plane, namespace) == {"a": "treatment", "b": "control"}
    after = deployments(control_plane, namespace)
    assert {name: one["spec"]["template"] for name, one in after.items()} == pods
    again = Webservice(ws, "digits")
    assert isinstance(again, AksEndpoint)
    one = again.versions["b"]
    assert (one.is_default, one.version_type, one.traffic_percentile) == (True, "Control", 40.0)
    assert (one.state, again.state, again.get_keys()[0]) == ("Healthy", "Healthy", KEY)
    again.update_version("a", num_replicas=3)
    assert deployments(control_plane, namespace)["a"]["spec"]["replicas"] == 3
    again.delete_version("a")
    assert shares(control_plane, namespace) == ({"b": 40.0}, "b")
    assert list(deployments(control_plane, namespace)) == ["b"]
    again.delete()
    assert objects(cluster, namespace) == {}


def test_a_version_that_cannot_score_gets_no_requests(
    ws: Workspace, control_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there without a share, the others answer as before, and it can be deleted."""
    endpoint = deployed(ws, num_replicas=1)
    monkeypatch.setitem(
        control_plane.nodes.behaviours, "stoker:1", Behaviour(waits="CrashLoopBackOff", message="")
    )
    with pytest.raises(
        WebserviceException, match="the version b of digits gets no requests, for it is Failed"
    ):
        endpoint.create_version("b", traffic_percentile=50, is_default=True, num_replicas=1, **version(ws))
    assert shares(control_plane, namespace) == ({"a": 0.0, "b": 0.0}, "a")
    assert endpoint.versions["b"].traffic_percentile == 0.0
    endpoint.delete_version("b")
    assert shares(control_plane, namespace) == ({"a": 0.0}, "a")
    assert list(deployments(control_plane, namespace)) == ["a"]


def test_impossible_change_of_an_endpoint_changes_nothing(
    ws: Workspace, cluster: Cluster, control_plane: ControlPlane, namespace: str
) -> None:
    """Shares that cannot be kept, versions that are there or are not, endpoints that nothing can split."""
    endpoint = deployed(ws, traffic_percentile=60, num_replicas=1)
    endpoint.create_version("b", **version(ws))
    before = objects(cluster, namespace)
    for refused, message in (
        (lambda: endpoint.create_version("b", **version(ws)), "there is a version b already"),
        (
            lambda: endpoint.create_version("c", traffic_percentile=50, **version(ws)),
            "adds up to 110 percent",
        ),
        (lambda: endpoint.create_version("C", **version(ws)), "the name of a version must be"),
        (
            lambda: endpoint.update_version("b", traffic_percentile=0.005),
            "at most two digits after the point",
        ),
        (lambda: endpoint.update_version("b", traffic_percentile=-1), "percentages from 0 to 100"),
        (lambda: endpoint.update_version("c", traffic_percentile=1), "there is no version c; there are a, b"),
        (lambda: endpoint.update_version("b", auth_enabled=False), "said of the endpoint"),
        (lambda: endpoint.update(num_replicas=2), "see update_version"),
        (lambda: endpoint.delete_version("a"), "a is the default version"),
    ):
        with pytest.raises(WebserviceException, match=message):
            refused()
    assert objects(cluster, namespace) == before
    assert shares(control_plane, namespace) == ({"a": 60.0, "b": 0.0}, "a")
    endpoint.delete()
    assert main([*binding(namespace), "--gpus", "0"]) == 0
    with pytest.raises(WebserviceException, match="a Service cannot split requests by weights"):
        deployed(ws)
    assert main(["compute", "unbind", "aks-gpu"]) == 0
    with pytest.raises(WebserviceException, match="which are pods of a cluster; bind its compute target"):
        deployed(ws)
    assert objects(cluster, namespace) == {}


def test_tags_are_changed_in_all_versions(ws: Workspace, control_plane: ControlPlane, namespace: str) -> None:
    """Tags are on each version, and changing them replaces no pods."""
    endpoint = deployed(ws, num_replicas=1, tags={"team": "a"})
    endpoint.create_version("b", num_replicas=1, **version(ws))
    before = deployments(control_plane, namespace)
    endpoint.add_tags({"stage": "test"})
    after = deployments(control_plane, namespace)
    for name in "ab":
        assert after[name]["metadata"]["labels"]["tags.stoker.dev/stage"] == "test"
        assert after[name]["metadata"]["labels"]["tags.stoker.dev/team"] == "a"
        assert after[name]["spec"] == before[name]["spec"]
    assert endpoint.tags == {"team": "a", "stage": "test"}
