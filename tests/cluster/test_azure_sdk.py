"""Deployment code of Azure's SDK on a compute target that is bound to a cluster, whose pods are simulated."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.control_plane import ControlPlane
from tests.cluster.nodes import Behaviour
from tests.cluster.test_apply import versions

import stoker.azure  # noqa: F401  # provides azureml
from stoker.cli import main
from stoker_cluster.access import Cluster
from stoker_cluster.cluster_service import ClusterService
from stoker_cluster.status import service_status

from azureml.core import Environment, Model, Webservice, Workspace  # isort: skip
from azureml.core.compute import AksCompute, ComputeTarget
from azureml.core.model import InferenceConfig
from azureml.core.webservice import AksWebservice
from azureml.exceptions import ComputeTargetException, WebserviceException

SHARED = Path(os.environ.get("STOKER_TEST_SHARED", Path(__file__).parents[3] / "shared"))
HOW_TO = SHARED / "azure"
KEY = "a-key-that-is-long-enough"


def binding(namespace: str) -> list[str]:
    """The command that lets `aks-gpu` stand for a namespace."""
    command = ["compute", "bind", "aks-gpu", "--context", "test", "--namespace", namespace]
    return [*command, "--image", "stoker:1"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: Cluster, namespace: str) -> Path:
    """The folder of the deploying code, in whose workspace `aks-gpu` stands for the namespace."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STOKER_WORKSPACE", str(tmp_path / "workspace"))
    assert main(binding(namespace)) == 0
    Path("model").mkdir()
    Path("model/weights").write_text("1")
    Model.register(Workspace.from_config(), "model", "tf-dnn-mnist")
    return tmp_path


def deploy(name: str = "digits", /, **keywords: Any) -> AksWebservice:
    """Deploy a script to the target."""
    ws = Workspace.from_config()
    Path("score.py").write_text("def init(): ...\ndef run(data): return data\n")
    environment = Environment("gpus")
    environment.docker.enable_gpu = True
    return Model.deploy(
        ws,
        name,
        models=[Model(ws, "tf-dnn-mnist")],
        inference_config=InferenceConfig("score.py", environment=environment),
        deployment_config=AksWebservice.deploy_configuration(**keywords),
        deployment_target=ComputeTarget.create(ws, "aks-gpu", AksCompute.provisioning_configuration()),
        overwrite=True,
    )


def deployment(control_plane: ControlPlane, namespace: str, name: str = "digits") -> Any:
    """The live Deployment."""
    return control_plane.get(f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}")


@pytest.mark.skipif(not HOW_TO.is_dir(), reason=f"the how-to is not at {SHARED}; set STOKER_TEST_SHARED")
def test_the_deployment_code_of_the_how_to_runs_unchanged(
    folder: Path, cluster: Cluster, namespace: str
) -> None:
    """It finds its nodes, deploys three pods with a GPU each, is Healthy, and deletes all but the namespace."""
    for file in HOW_TO.glob("*.*"):
        shutil.copy(file, folder)
    command = [sys.executable, "-m", "stoker.azure", "deploy.py"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert ended.returncode == 0, ended.stderr
    output = ended.stdout
    assert "aks-gpu: 8 nodes of size Standard_NC6, with 8 GPUs; none are made\n" in output
    assert "created Deployment aks-dnn-mnist" in output
    assert output.rstrip().endswith('AKS service creation operation finished, operation "Succeeded"\nHealthy')
    assert versions(cluster, namespace) == {}
    assert cluster.list("v1", "Pod", namespace, fields="status.phase=Pending") == []


def test_keywords_of_the_deployment_code_are_found_in_the_live_objects(
    folder: Path, control_plane: ControlPlane, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The API server has the requested values, after its defaults; tags change without new pods."""
    service = deploy(
        num_replicas=2,
        cpu_cores=2,
        cpu_cores_limit=3,
        memory_gb=4,
        memory_gb_limit=5,
        scoring_timeout_ms=7000,
        replica_max_concurrent_requests=3,
        max_request_wait_time=200,
        period_seconds=7,
        initial_delay_seconds=11,
        timeout_seconds=3,
        failure_threshold=4,
        primary_key=KEY,
        tags={"team": "a"},
        description="Digits.",
        enable_app_insights=True,
    )
    # Code for Azure is not refused for kinds that the cluster lacks.
    assert "enable_app_insights has no effect: the cluster knows no PodMonitor" in capsys.readouterr().out
    service.wait_for_deployment()
    found = deployment(control_plane, namespace)
    pod = found["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert found["spec"]["replicas"] == service.num_replicas == 2
    assert container["resources"] == {
        "requests": {"cpu": "2", "memory": "4G"},
        "limits": {"cpu": "3", "memory": "5G", "nvidia.com/gpu": "1"},
    }
    liveness = {key: value for key, value in container["livenessProbe"].items() if key != "httpGet"}
    assert liveness == {
        "initialDelaySeconds": 11,
        "periodSeconds": 7,
        "timeoutSeconds": 3,
        "failureThreshold": 4,
        "successThreshold": 1,
    }
    assert pod["terminationGracePeriodSeconds"] == 10 + 7 + 5
    assert found["metadata"]["labels"]["tags.stoker.dev/team"] == "a"
    assert found["metadata"]["annotations"]["stoker.dev/description"] == "Digits."
    assert found["metadata"]["annotations"]["stoker.dev/compute-target"] == "aks-gpu"
    file = control_plane.get(f"/api/v1/namespaces/{namespace}/configmaps/digits-config")["data"][
        "deployment.yaml"
    ]
    for line in ("timeout_ms: 7000", "max_concurrent_requests: 3", "max_queue_wait_ms: 200"):
        assert line in file
    assert KEY not in file
    assert service.get_keys()[0] == KEY
    service.add_tags({"team": "b"})
    changed = deployment(control_plane, namespace)
    assert changed["metadata"]["labels"]["tags.stoker.dev/team"] == "b"
    assert changed["spec"]["template"] == found["spec"]["template"]


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"autoscale_enabled": True, "num_replicas": 2}, "num_replicas"),
        ({"auth_enabled": True, "token_auth_enabled": True}, "cannot both be true"),
        ({"cpu_cores": 2, "cpu_cores_limit": 1}, "must be at least"),
        (
            {"autoscale_enabled": True, "autoscale_min_replicas": 3, "autoscale_max_replicas": 2},
            "autoscale_m(in|ax)_replicas",
        ),
        ({"memory_gb_limit": 0.01, "memory_gb": 0.01}, "is too little"),
        ({"autoscale_enabled": False}, "num_replicas must be given"),
        ({"autoscale_refresh_seconds": 2}, "must not be given unless"),
        ({"gpu_cores": -1}, "must be a whole number from 0"),
        ({"scoring_timeout_ms": 0}, "must be a whole number from 1"),
        ({"namespace": "a_b"}, "must be 1 to 63 small letters"),
        ({"auth_enabled": False, "primary_key": KEY}, "keys are given, but none are asked for"),
        ({"collect_model_data": True}, "name a claim with --collect-to"),
    ],
)
def test_contradictions_are_refused_before_requests_to_the_cluster(
    folder: Path, cluster: Cluster, namespace: str, keywords: dict[str, Any], message: str
) -> None:
    """They are those that Azure refuses and those of the plan; the cluster gets no object."""
    with pytest.raises(WebserviceException, match=message):
        deploy(**keywords)
    assert versions(cluster, namespace) == {}


def test_service_without_a_gpu_fails_with_the_schedulers_reason(
    folder: Path, control_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`error` has Azure's code, and the service that holds the GPUs is untouched."""
    old = deploy("first-one", num_replicas=8)
    old.wait_for_deployment()
    pods = control_plane.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    # Otherwise it may wait for five minutes.
    at_once = partial(service_status, patience_s=0.0)
    monkeypatch.setattr("stoker_cluster.cluster_service.service_status", at_once)
    service = deploy("second-one", num_replicas=1)
    with pytest.raises(WebserviceException, match="its state is Failed"):
        service.wait_for_deployment()
    assert service.state == "Failed"
    assert service.error["code"] == "Unschedulable"
    assert service.error["message"].startswith("0/8 nodes are available: 8 Insufficient nvidia.com/gpu")
    assert old.state == "Healthy"
    after = control_plane.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    assert {pod["metadata"]["uid"] for pod in pods} < {pod["metadata"]["uid"] for pod in after}
    assert json.loads(json.dumps(service.serialize()))["error"]["code"] == "Unschedulable"


def test_a_service_that_is_scaled_leaves_nothing_either(
    folder: Path, cluster: Cluster, control_plane: ControlPlane, namespace: str
) -> None:
    """The autoscaler, its account and rights go with the service; its first look keeps the pods."""
    service = deploy(num_replicas=2)
    service.wait_for_deployment()
    service.update(autoscale_enabled=True, autoscale_min_replicas=1, autoscale_max_replicas=4)
    found = deployment(control_plane, namespace)
    assert found["spec"]["replicas"] == 2
    assert found["metadata"]["annotations"]["stoker.dev/autoscale-max-replicas"] == "4"
    service.delete()
    assert versions(cluster, namespace) == {}


def test_a_service_is_found_again_changed_and_deleted(
    folder: Path, control_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later code finds it; keys, logs, an update and its end are those of the cluster; nothing is remembered."""
    # Nothing answers in these pods, so none shows that it takes another key.
    monkeypatch.setitem(ClusterService.regenerate_key.__kwdefaults__, "within_s", 0.0)
    control_plane.nodes.behaviours["stoker:1"] = Behaviour(log="one\ntwo\n")
    deploy(num_replicas=1).wait_for_deployment()
    service = Webservice(Workspace.from_config(), "digits")
    primary, secondary = service.get_keys()
    service.regen_key("Secondary", KEY)
    assert service.get_keys() == (primary, KEY) != (primary, secondary)
    assert service.get_logs(1) == "two\n"
    service.update(num_replicas=3)
    service.wait_for_deployment()
    assert (service.state, service.num_replicas) == ("Healthy", 3)
    assert service.get_keys() == (primary, KEY)
    assert deployment(control_plane, namespace)["status"]["readyReplicas"] == 3
    service.update(token_auth_enabled=True)
    token, _ = service.get_token()
    assert token.count(".") == 2
    service.delete()
    assert service.state == "Deleted"
    assert deployment(control_plane, namespace) is None


def test_address_of_a_service_is_a_nodes_or_a_local_port(
    folder: Path, control_plane: ControlPlane, namespace: str, echo: Behaviour
) -> None:
    """With a NodePort callers reach it at a node; with none at a port that leads by the API server to the pods."""
    control_plane.nodes.behaviours["stoker:1"] = echo
    service = deploy(num_replicas=1)
    service.wait_for_deployment()
    assert service.run('{"data": [1, 2]}') == {"data": [1, 2]}
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/api/v1/service/digits/score", service.scoring_uri)
    assert main([*binding(namespace), "--service-type", "NodePort"]) == 0
    service.update(num_replicas=1)
    service.wait_for_deployment()
    ports = control_plane.get(f"/api/v1/namespaces/{namespace}/services/digits")["spec"]["ports"]
    assert service.scoring_uri == f"http://127.0.0.1:{ports[0]['nodePort']}/api/v1/service/digits/score"


def test_a_cluster_that_is_attached_is_bound_to_its_context(
    folder: Path,
    control_plane: ControlPlane,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is found by name, or by its id on Azure; its pods' image has to be given, and the context has to exist."""
    ws = Workspace.from_config()
    resource = "/subscriptions/s/resourceGroups/r/providers/Microsoft.ContainerService/managedClusters/test"
    for number, where in enumerate(
        ({"resource_group": "r", "cluster_name": "test"}, {"resource_id": resource})
    ):
        attached, target = AksCompute.attach_configuration(**where), f"attached-{number}"
        monkeypatch.delenv("STOKER_IMAGE", raising=False)
        with pytest.raises(ComputeTargetException, match="set STOKER_IMAGE to an image, or bind it first"):
            ComputeTarget.attach(ws, target, attached)
        monkeypatch.setenv("STOKER_IMAGE", "stoker:7")
        capsys.readouterr()
        assert isinstance(ComputeTarget.attach(ws, target, attached), AksCompute)
        assert f"{target}: the cluster test stands for it, namespace default" in capsys.readouterr().out
        assert main(["compute", "list"]) == 0
        assert f"{target}  test  default  stoker:7" in capsys.readouterr().out
    absent = AksCompute.attach_configuration(resource_group="r", cluster_name="absent")
    with pytest.raises(ComputeTargetException, match="has no context absent; it has test"):
        ComputeTarget.attach(ws, "other", absent)
    assert "other" not in ws.compute_targets
    # A target bound by hand keeps its binding.
    again = AksCompute.attach_configuration(resource_group="r", cluster_name="test")
    ComputeTarget.attach(ws, "aks-gpu", again)
    assert main(["compute", "list"]) == 0
    assert "stoker:1" in capsys.readouterr().out


def test_a_target_that_is_not_bound_any_more_leaves_its_services(folder: Path) -> None:
    """A service in the cluster does not become a process of this machine unasked."""
    service = deploy(num_replicas=1)
    assert main(["compute", "unbind", "aks-gpu"]) == 0
    with pytest.raises(WebserviceException, match="bind the target again"):
        service.update(num_replicas=2)
    service.delete()
    assert main(["compute", "list"]) == 0
