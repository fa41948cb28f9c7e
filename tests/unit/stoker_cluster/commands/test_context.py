"""`stoker kubernetes apply` and the like, and deployments of Azure's SDK to a bound target, against a puppet."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import pytest
from tests.unit.stoker_cluster.puppet_api import PuppetApi, status_of_whole

import stoker.azure  # noqa: F401  # provides azureml
from stoker.cli import main

from azureml.core import Environment, Model, Webservice, Workspace  # isort: skip
from azureml.core.compute import AksCompute, ComputeTarget
from azureml.core.model import InferenceConfig
from azureml.core.webservice import AksWebservice
from azureml.exceptions import WebserviceException

PLAN = ["digits.onnx", "--image", "stoker:1"]
DEPLOYMENT = "/apis/apps/v1/namespaces/models/deployments/digits"


def whole(api: PuppetApi) -> None:
    """The Deployment is as a controller leaves it."""
    found = api.objects[DEPLOYMENT]
    found["metadata"]["generation"] = 1
    found["status"] = status_of_whole(found["spec"]["replicas"])


def test_a_service_is_applied_and_looked_after(api: PuppetApi, capsys: pytest.CaptureFixture[str]) -> None:
    """Each command prints its result and has its exit code."""
    assert main(["kubernetes", "apply", *PLAN, "--no-wait"]) == 0
    assert "created Deployment digits\n" in capsys.readouterr().out
    whole(api)
    assert main(["kubernetes", "apply", *PLAN]) == 0
    assert capsys.readouterr().err.endswith("digits: 1 of 1 pod can score\n")
    metadata = {"labels": {"app.kubernetes.io/name": "stoker", "app.kubernetes.io/instance": "digits"}}
    spec = {"containers": [{"image": "stoker:1"}]}
    status = {"containerStatuses": [{"state": {"running": {}}}]}
    api.put("Pod", "digits-1", metadata=metadata, spec=spec, status=status)
    capsys.readouterr()
    assert main(["kubernetes", "status", "digits"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "digits is Healthy: 1 of 1 pod can score",
        "  digits-1  starts     no node  stoker:1",
    ]
    assert main(["kubernetes", "keys", "digits", "--regenerate"]) == 2
    assert main(["kubernetes", "keys", "digits", "primary", "--key", "-"]) == 2
    assert main(["kubernetes", "delete", "digits"]) == 0
    assert main(["kubernetes", "delete", "digits"]) == 2


def test_ctrl_c_ends_waiting(
    api: PuppetApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service goes on, and one sentence says so."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("stoker_cluster.cluster_service.ClusterService.await_ready", interrupt)
    assert main(["kubernetes", "apply", *PLAN]) == 130
    assert capsys.readouterr().err.endswith(
        "digits goes on without being waited for; see stoker kubernetes status digits\n"
    )


def test_keys_are_printed_and_replaced(
    api: PuppetApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them alone, so that a shell can take it; a new one by standard input, where nobody sees it."""
    assert main(["kubernetes", "apply", *PLAN, "--no-wait"]) == 0
    secret = api.objects["/api/v1/namespaces/models/secrets/digits-keys"]
    keys = secret.pop("stringData")
    # As an API server keeps texts.
    secret["data"] = {name: base64.b64encode(text.encode()).decode() for name, text in keys.items()}
    capsys.readouterr()
    assert main(["kubernetes", "keys", "digits"]) == 0
    assert capsys.readouterr().out == f"primary    {keys['primary']}\nsecondary  {keys['secondary']}\n"
    assert main(["kubernetes", "keys", "digits", "primary"]) == 0
    assert capsys.readouterr().out == f"{keys['primary']}\n"
    monkeypatch.setattr("sys.stdin", io.StringIO("a-key-that-is-long-enough\n"))
    assert main(["kubernetes", "keys", "digits", "secondary", "--regenerate", "--key", "-"]) == 0
    assert capsys.readouterr().out == "a-key-that-is-long-enough\n"


def test_shares_of_versions_are_changed_by_name(api: PuppetApi, capsys: pytest.CaptureFixture[str]) -> None:
    """The default version gets the rest; impossible shares change nothing."""
    endpoint = ["--router", "--version-name", "a", "--traffic", "a=20,b=10", "--no-wait"]
    assert main(["kubernetes", "apply", *PLAN, *endpoint]) == 0
    capsys.readouterr()
    assert main(["kubernetes", "canary", "digits", "b=40", "--default-version", "b"]) == 0
    assert capsys.readouterr().out == "a  20%\nb  80%\n"
    sent = len(api.sent)
    for shares, words in (("b", "the shares must be"), ("c=1", "there is no version c; there are a, b")):
        assert main(["kubernetes", "canary", "digits", shares]) == 2
        assert words in capsys.readouterr().err
    assert len(api.sent) == sent


def test_failed_service_ends_commands_with_its_reason(
    api: PuppetApi, capsys: pytest.CaptureFixture[str]
) -> None:
    """`apply` and `status` end with exit code 1 and the reason of the failure."""
    late = {"type": "Progressing", "reason": "ProgressDeadlineExceeded", "message": "has timed out"}
    api.becomes = lambda replicas: {**status_of_whole(0), "replicas": replicas, "conditions": [late]}
    assert main(["kubernetes", "apply", *PLAN]) == 1
    assert capsys.readouterr().err.endswith("digits is Failed: ProgressDeadlineExceeded: has timed out\n")
    assert main(["kubernetes", "status", "digits"]) == 1


def deploy(ws: Workspace, **options: Any) -> Any:
    """Deploy the script with its model."""
    environment = Environment("gpus")
    environment.docker.enable_gpu = True
    environment.environment_variables["A"] = "b"
    return Model.deploy(
        ws,
        "digits",
        [Model(ws, "digits")],
        InferenceConfig("score.py", environment=environment),
        AksWebservice.deploy_configuration(num_replicas=2),
        ComputeTarget.create(ws, "aks-gpu", AksCompute.provisioning_configuration(vm_size="big")),
        **options,
    )


def test_a_bound_target_is_deployed_to_its_cluster(
    ws: Workspace, api: PuppetApi, capsys: pytest.CaptureFixture[str]
) -> None:
    """The pods get a GPU, the requested nodes, and the script with its model from the files."""
    machine = {"labels": {"node.kubernetes.io/instance-type": "big"}}
    api.put("Node", "a", metadata=machine, status={"allocatable": {"nvidia.com/gpu": "4"}})
    service = deploy(ws)
    output = capsys.readouterr().out
    assert "aks-gpu: 1 node of size big, with 4 GPUs; none are made\n" in output
    files = ws.local.services_dir / "digits" / "files"
    assert f"{files} is to be /models/digits of the image\n" in output
    assert (files / "score.py").is_file()
    assert (files / "azureml-models/digits/1/model.pkl").read_text() == "1"
    pod = api.objects[DEPLOYMENT]["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 1}
    assert pod["nodeSelector"] == {"node.kubernetes.io/instance-type": "big"}
    file = api.objects["/api/v1/namespaces/models/configmaps/digits-config"]["data"]["deployment.yaml"]
    for line in ("/models/digits/score.py", "model_dir: /models/digits/azureml-models/digits/1", "A: b"):
        assert line in file
    with pytest.raises(WebserviceException, match="not deployed after 0 s"):
        service.wait_for_deployment(timeout_sec=0)
    whole(api)
    assert (service.state, service.error) == ("Healthy", None)
    with pytest.raises(WebserviceException, match="there is a service digits already, in namespace models"):
        deploy(ws)
    deploy(ws, overwrite=True)
    Webservice(ws, "digits").add_tags({"team": "a"})
    assert api.objects[DEPLOYMENT]["metadata"]["labels"]["tags.stoker.dev/team"] == "a"
    assert main(["compute", "list"]) == 0
    assert capsys.readouterr().out.endswith("aks-gpu  puppet  models  stoker:1\n")
    assert main(["compute", "unbind", "aks-gpu"]) == main(["compute", "unbind", "aks-gpu"]) == 0
    assert main(["compute", "list"]) == 0
    assert "no compute target stands for a cluster" in capsys.readouterr().err
    with pytest.raises(WebserviceException, match="bind the target again"):
        service.update(num_replicas=1)
    service.delete()
    assert service.state == "Deleted"
    assert DEPLOYMENT not in api.objects


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "no image is named"),
        (["--image", "a", "--replicas", "2"], "replicas is said of a service"),
        (["--image", "a", "--gpus", "many"], "gpus must be"),
    ],
)
def test_invalid_cluster_is_not_bound(
    api: PuppetApi, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    """The error is printed, and no file is kept."""
    assert main(["compute", "bind", "aks-gpu", *options, "--workspace", str(tmp_path / "workspace")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "workspace" / "azure" / "clusters").exists()
