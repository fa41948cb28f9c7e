"""Azure's SDK on a bound compute target whose services get their files from the store of the namespace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster.control_plane import ControlPlane
from tests.cluster.nodes import Behaviour
from tests.cluster.test_azure_sdk import binding, folder  # noqa: F401  # a fixture
from tests.tiny_models import write_doubler
from tests.unit.stoker_cluster.test_store import Store

import stoker.azure  # noqa: F401  # provides azureml
from stoker.cli import main
from stoker_cluster.objects.store import store as store_objects
from stoker_cluster.store_client import fetch

from azureml.core import Model, Workspace  # isort: skip
from azureml.core.compute import AksCompute, ComputeTarget
from azureml.core.model import InferenceConfig
from azureml.core.webservice import AksWebservice
from azureml.exceptions import WebserviceException

IMAGE = "store:1"


@pytest.fixture
def ws(folder: Path, namespace: str) -> Workspace:  # noqa: F811  # the fixture
    """A workspace whose target takes its files from the store."""
    assert main([*binding(namespace), "--models", "store"]) == 0
    return Workspace.from_config()


@pytest.fixture
def store(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[Store]:
    """A real store, behind a pod whose disk is not looked for: nobody makes one here."""
    running = Store(tmp_path / "store")
    address = ("127.0.0.1", int(running.url.rpartition(":")[2]))
    control_plane.nodes.behaviours[IMAGE] = Behaviour(address=address)
    template = store_objects(IMAGE, namespace)[2]["spec"]["template"]
    volumes = [{"name": one["name"], "emptyDir": {}} for one in template["spec"]["volumes"]]
    pod = {
        "metadata": {"name": "stoker-store-0", "labels": template["metadata"]["labels"]},
        "spec": {**template["spec"], "volumes": volumes},
    }
    pods = f"/api/v1/namespaces/{namespace}/pods"
    control_plane.create(pods, pod)
    control_plane.eventually(
        f"{pods}/stoker-store-0", lambda found: found["status"].get("phase") == "Running"
    )
    yield running
    del control_plane.nodes.behaviours[IMAGE]
    running.stop()


def deploy(ws: Workspace, models: list[Model], inference: InferenceConfig | None = None) -> AksWebservice:
    """Deploy models, with a script or without."""
    return Model.deploy(
        ws,
        "digits",
        models,
        inference,
        AksWebservice.deploy_configuration(num_replicas=2),
        ComputeTarget.create(ws, "aks-gpu", AksCompute.provisioning_configuration()),
        overwrite=True,
    )


def fetched(address: str, store: Store, target: Path) -> dict[str, str | None]:
    """What a pod gets from an address, by path: what it holds where that is JSON or a script."""
    digest = address.strip().rpartition("/")[2]
    fetch(f"{store.url}/{digest}", target, lambda _: None)
    return {
        str(file.relative_to(target)): file.read_text().strip() if file.suffix in (".json", ".py") else None
        for file in sorted(target.rglob("*"))
        if file.is_file()
    }


def objects(control_plane: ControlPlane, namespace: str) -> tuple[Any, Any]:
    """The template of the pods, and their deployment file."""
    found = control_plane.get(f"/apis/apps/v1/namespaces/{namespace}/deployments/digits")
    file = control_plane.get(f"/api/v1/namespaces/{namespace}/configmaps/digits-config")["data"]
    return found["spec"]["template"], yaml.safe_load(file["deployment.yaml"])


def test_a_local_model_reaches_pods_and_its_next_version_is_no_new_pod(
    ws: Workspace, store: Store, control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    """Files go through the API server; pods follow the address; going back is a label. No image is built."""
    maps = f"/api/v1/namespaces/{namespace}/configmaps/digits-models"
    write_doubler(tmp_path / "net.onnx")
    first, second = (Model.register(ws, "net.onnx", "digits-net") for _ in range(2))
    service = deploy(ws, [first])
    service.wait_for_deployment()
    template, file = objects(control_plane, namespace)
    assert file["poll_s"] == 2.0
    assert file["models"][0]["path"] == "/models/digits/digits-net"
    address = control_plane.get(maps)["data"]["address"]
    assert address.startswith(f"http://stoker-store.{namespace}:8090/sha256:")
    assert fetched(address, store, tmp_path / "pod") == {
        "digits/digits-net/1/model.onnx": None,
        "digits/digits-net/labels.json": '{"default": 1}',
    }
    service.update(models=[second])
    assert objects(control_plane, namespace) == (template, file)
    newer = control_plane.get(maps)["data"]["address"]
    # Where a pod has the old version already.
    assert fetched(newer, store, tmp_path / "pod") == {
        "digits/digits-net/1/model.onnx": None,
        "digits/digits-net/2/model.onnx": None,
        "digits/digits-net/labels.json": '{"default": 2}',
    }
    service.update(models=[first])
    assert control_plane.get(maps)["data"]["address"] == address
    assert objects(control_plane, namespace) == (template, file)


def test_a_script_and_its_model_reach_pods_too(
    ws: Workspace, store: Store, control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    """They are fetched before the server starts; other files are another address, and a rollout."""
    Path("score.py").write_text("one = 1")
    inference = InferenceConfig("score.py")
    deploy(ws, [Model(ws, "tf-dnn-mnist")], inference).wait_for_deployment()
    template, file = objects(control_plane, namespace)
    (fetching,) = template["spec"]["initContainers"]
    assert file["models"][0]["path"] == "/models/digits/score.py"
    model = "digits/azureml-models/tf-dnn-mnist/1"
    assert file["models"][0]["model_dir"] == f"/models/{model}"
    found = fetched(fetching["args"][0], store, tmp_path / "pod")
    # Under the name of the folder that was registered too, as on Azure.
    assert found == {"digits/score.py": "one = 1", f"{model}/weights": None, f"{model}/model/weights": None}
    Path("score.py").write_text("one = 2")
    deploy(ws, [Model(ws, "tf-dnn-mnist")], inference)
    other, _ = objects(control_plane, namespace)
    assert other["spec"]["initContainers"][0]["args"][0] != fetching["args"][0]


def test_without_a_store_it_is_said_how_one_is_made(
    ws: Workspace, control_plane: ControlPlane, namespace: str
) -> None:
    """And nothing is deployed."""
    Path("score.py").write_text("")
    with pytest.raises(
        WebserviceException, match=f"no store in namespace {namespace} that answers; make one with"
    ):
        deploy(ws, [Model(ws, "tf-dnn-mnist")], InferenceConfig("score.py"))
    assert control_plane.get(f"/apis/apps/v1/namespaces/{namespace}/deployments")["items"] == []
