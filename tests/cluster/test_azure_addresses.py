"""Azure's SDK on a bound compute target whose services have their files at an address."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster.control_plane import ControlPlane
from tests.cluster.test_azure_sdk import binding, folder  # noqa: F401  # a fixture
from tests.tiny_models import write_doubler

import stoker.azure  # noqa: F401  # provides azureml
from stoker.cli import main

from azureml.core import Model, Workspace  # isort: skip
from azureml.core.compute import AksCompute, ComputeTarget
from azureml.core.model import InferenceConfig
from azureml.core.webservice import AksWebservice
from azureml.exceptions import WebserviceException


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    """A folder in place of a bucket."""
    return tmp_path / "bucket"


@pytest.fixture
def ws(folder: Path, namespace: str, bucket: Path) -> Workspace:  # noqa: F811  # the fixture
    """A workspace whose target sends files to an address."""
    assert main([*binding(namespace), "--models", f"{bucket.as_uri()}/"]) == 0
    return Workspace.from_config()


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


def names(bucket: Path) -> set[str]:
    """The files at the address."""
    return {path.relative_to(bucket).as_posix() for path in bucket.rglob("*") if path.is_file()}


def objects(control_plane: ControlPlane, namespace: str) -> tuple[Any, Any]:
    """The template of the pods, and their deployment file."""
    found = control_plane.get(f"/apis/apps/v1/namespaces/{namespace}/deployments/digits")
    file = control_plane.get(f"/api/v1/namespaces/{namespace}/configmaps/digits-config")["data"]
    return found["spec"]["template"], yaml.safe_load(file["deployment.yaml"])


def test_a_next_version_is_no_new_pod(
    ws: Workspace, bucket: Path, control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    """Pods look at the address; going back is a label. No image is built, and the policy lets pods fetch."""
    write_doubler(tmp_path / "net.onnx")
    first, second = (Model.register(ws, "net.onnx", "digits-net") for _ in range(2))
    service = deploy(ws, [first])
    service.wait_for_deployment()
    template, file = objects(control_plane, namespace)
    assert file["poll_s"] == 2.0
    assert file["models"][0]["path"] == f"{bucket.as_uri()}/digits/digits-net"
    assert names(bucket) == {"digits/digits-net/1/model.onnx", "digits/digits-net/labels.json"}
    policy = control_plane.get(f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies/digits")
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    labels = bucket / "digits" / "digits-net" / "labels.json"
    service.update(models=[second])
    assert objects(control_plane, namespace) == (template, file)
    assert "digits/digits-net/2/model.onnx" in names(bucket)
    assert labels.read_text().strip() == '{"default": 2}'
    service.update(models=[first])
    assert labels.read_text().strip() == '{"default": 1}'
    assert objects(control_plane, namespace) == (template, file)


def test_other_files_of_a_script_are_another_address(
    ws: Workspace, bucket: Path, control_plane: ControlPlane, namespace: str
) -> None:
    """So pods that start later have the files of those that run; the script is apart from its model."""
    Path("score.py").write_text("one = 1")
    inference = InferenceConfig("score.py")
    deploy(ws, [Model(ws, "tf-dnn-mnist")], inference).wait_for_deployment()
    (model,) = objects(control_plane, namespace)[1]["models"]
    base = model["path"].removesuffix("/script/score.py")
    assert base.startswith(f"{bucket.as_uri()}/digits/")
    assert model["model_dir"] == f"{base}/azureml-models/tf-dnn-mnist/1"
    place = Path(base.removeprefix("file://"))
    # Under the name of the folder that was registered too, as on Azure.
    assert names(place) == {
        "script/score.py",
        *(f"azureml-models/tf-dnn-mnist/1/{name}" for name in ("weights", "model/weights")),
    }
    Path("score.py").write_text("one = 2")
    deploy(ws, [Model(ws, "tf-dnn-mnist")], inference)
    assert objects(control_plane, namespace)[1]["models"][0]["path"] != model["path"]
    assert (place / "script" / "score.py").read_text() == "one = 1"


def test_unwritable_address_is_named_in_the_error(
    ws: Workspace, bucket: Path, control_plane: ControlPlane, namespace: str
) -> None:
    """Nothing is deployed."""
    bucket.write_text("a file")
    Path("score.py").write_text("")
    with pytest.raises(WebserviceException, match="bucket/digits/"):
        deploy(ws, [Model(ws, "tf-dnn-mnist")], InferenceConfig("score.py"))
    assert control_plane.get(f"/apis/apps/v1/namespaces/{namespace}/deployments")["items"] == []
