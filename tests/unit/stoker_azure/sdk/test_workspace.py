"""The workspace of deployment code, its compute targets and its models."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from tests.patience import PROGRAM_S

import stoker.azure  # noqa: F401  # provides azureml

from azureml.core import Environment, Model, Workspace  # isort: skip
from azureml.core.authentication import InteractiveLoginAuthentication, ServicePrincipalAuthentication
from azureml.core.compute import AksCompute, ComputeTarget
from azureml.core.compute_target import ComputeTargetException
from azureml.core.resource_configuration import ResourceConfiguration
from azureml.exceptions import (
    AzureMLException,
    ModelNotFoundException,
    UserErrorException,
    WebserviceException,
    WorkspaceException,
)

from stoker.models.repository import Repository

NAMES = {"subscription_id": "s-1", "resource_group": "rg", "workspace_name": "mnist-ws"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a workspace in it that no other one is found before."""
    monkeypatch.delenv("STOKER_WORKSPACE", raising=False)
    folder = tmp_path / "project" / "deploy"
    folder.mkdir(parents=True)
    (tmp_path / "project" / ".stoker").mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def ws() -> Workspace:
    """The workspace, as deployment code gets it."""
    return Workspace.from_config()


def test_the_workspace_is_that_of_the_commands(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found upward of the current folder or by its variable; without a config.json it has no names of Azure's."""
    ws = Workspace.from_config()
    assert ws.local.root == folder.parent / ".stoker"
    assert (ws.name, ws.resource_group, ws.location) == ("local", "local", "local")
    monkeypatch.setenv("STOKER_WORKSPACE", str(folder / "other"))
    assert Workspace.get("named", subscription_id="s").local.root == folder / "other"
    created = Workspace.create("made", auth=InteractiveLoginAuthentication(), sku="basic", tags={"a": "b"})
    assert (folder / "other").is_dir()
    assert created.get_details()["tags"] == {"a": "b"}


@pytest.mark.parametrize("place", ["config.json", ".azureml/config.json", "../.azureml/config.json"])
def test_a_config_file_gives_its_names(folder: Path, place: str) -> None:
    """In the current folder or upward, as Azure's SDK looks for it."""
    file = folder / place
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(NAMES))
    for ws in (Workspace.from_config(), Workspace.from_config(str(file))):
        assert (ws.name, ws.subscription_id, ws.resource_group) == ("mnist-ws", "s-1", "rg")
        assert ws.local.root == folder.parent / ".stoker"


def test_config_file_of_another_program_is_passed_over(folder: Path) -> None:
    """The inference server's own has this name too; one that was named has to be right."""
    (folder / "config.json").write_text('{"AZUREML_ENTRY_SCRIPT": "score.py"}')
    assert Workspace.from_config().name == "local"
    with pytest.raises(UserErrorException, match="names no workspace"):
        Workspace.from_config("config.json")
    with pytest.raises(UserErrorException, match=r"there is no nothing\.json"):
        Workspace.from_config(".", _file_name="nothing.json")


def test_names_are_written_for_later(folder: Path) -> None:
    """`from_config` reads the file of `write_config`."""
    principal = ServicePrincipalAuthentication("tenant", "id", service_principal_password="secret")
    assert "secret" not in repr(vars(principal))
    Workspace("s-1", "rg", "mnist-ws", auth=principal).write_config()
    ws = Workspace.from_config()
    assert (ws.name, ws.subscription_id, ws.resource_group) == ("mnist-ws", "s-1", "rg")


def test_a_workspace_that_cannot_be_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a `WorkspaceException`, with the reason."""
    monkeypatch.setenv("STOKER_WORKSPACE", __file__)
    with pytest.raises(WorkspaceException, match="is not a directory"):
        Workspace.from_config()


def test_a_compute_target_is_kept_in_the_workspace(ws: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    """Unknown until it is created, then found by later code; one line says that this machine stands for it."""
    with pytest.raises(ComputeTargetException, match=r"ComputeTargetNotFound.*'aks-gpu'.*there are: none"):
        ComputeTarget(workspace=ws, name="aks-gpu")
    made = ComputeTarget.create(
        workspace=ws,
        name="aks-gpu",
        provisioning_configuration=AksCompute.provisioning_configuration(
            vm_size="Standard_NC6", agent_count=3
        ),
    )
    made.wait_for_completion(show_output=True)
    assert capsys.readouterr().out.splitlines() == [
        "aks-gpu: this machine stands for the cluster; kept for it: agent_count 3, vm_size Standard_NC6",
        "Succeeded",
        'Provisioning operation finished, operation "Succeeded"',
    ]
    found = Workspace.from_config().compute_targets["aks-gpu"]
    assert isinstance(found, AksCompute)
    assert (found.type, found.get_status(), found.vm_size, found.agent_count) == (
        *("AKS", "Succeeded"),
        *("Standard_NC6", 3),
    )
    assert found.serialize()["computeType"] == "AKS"
    made.delete()
    assert ws.compute_targets == {}


def test_a_cluster_that_is_attached_is_the_same(
    ws: Workspace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The second one of a name is the first one, and its TLS is no matter of this machine, which knows no cluster."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    configuration = AksCompute.attach_configuration(
        resource_group="rg", cluster_name="c", cluster_purpose=AksCompute.ClusterPurpose.DEV_TEST
    )
    configuration.enable_ssl(leaf_domain_label="contoso")
    ComputeTarget.attach(ws, "mine", configuration)
    ComputeTarget.attach(ws, "mine", configuration)
    assert capsys.readouterr().out.count("stands for the cluster") == 1
    with pytest.raises(ComputeTargetException, match="cannot be a compute target name"):
        ComputeTarget.create(ws, "../x", configuration)


def write(path: str, text: str = "weights") -> str:
    """Write a file below the current folder."""
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return path


@pytest.mark.parametrize(
    ("files", "registered", "framework", "azure_framework"),
    [
        (["model.pkl"], "model.pkl", "sklearn", "ScikitLearn"),
        (["weights.bin"], "weights.bin", "files", "Custom"),
        (["outputs/model/a.bin", "outputs/model/b/c.bin"], "outputs/model", "files", "Custom"),
        (["tf/m.meta", "tf/m.index"], "tf", "tf1-checkpoint", "TensorFlow"),
        (["one.onnx", "two.onnx"], ".", "files", "Custom"),
    ],
)
def test_any_files_can_be_registered(
    ws: Workspace, files: list[str], registered: str, framework: str, azure_framework: str
) -> None:
    """An entry script loads a model that Stoker cannot serve by itself."""
    for file in files:
        write(file)
    model = Model.register(
        workspace=ws,
        model_path=registered,
        model_name="mine",
        tags={"area": "digits", "n": 3},
        properties={"p": "q"},
        description="of the tests",
        model_framework=Model.Framework.SCIKITLEARN,
        resource_configuration=ResourceConfiguration(cpu=1),
    )
    assert (model.id, model.version, model.registered.framework) == ("mine:1", 1, framework)
    assert (model.tags, model.properties) == ({"area": "digits", "n": "3"}, {"p": "q"})
    assert (model.description, model.model_framework) == ("of the tests", azure_framework)
    assert Repository(ws.local.models_dir).get("mine").properties == {"p": "q"}


def test_a_pickle_is_a_model_where_azures_framework_says_so(ws: Workspace) -> None:
    """Others are files for entry scripts; the rows that it is given as a sample become a request beside it."""
    printed = Model.Framework.SCIKITLEARN
    rows = pd.DataFrame({"a": [1.5] * 20, "b": [2.0] * 20})
    model = Model.register(
        ws,
        write("m.pkl"),
        "homes",
        model_framework=printed,
        sample_input_dataset=rows,
        sample_output_dataset=[1],
    )
    sample = json.loads((model.registered.files_dir / "sample_input.json").read_text())
    assert sample == {"data": [[1.5, 2.0]] * 16}
    assert Model.list(ws, model_framework=printed)[0].id == "homes:1"
    assert Model.register(ws, "m.pkl", "other").registered.framework == "files"
    with pytest.raises(NotImplementedError, match="as a table, an array or lists"):
        Model.register(ws, "m.pkl", "homes", model_framework=printed, sample_input_dataset=object())


def test_file_that_no_runtime_serves_is_registered_for_a_script(
    ws: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script may load, with operators of its own, a file that a server would refuse; a note says so."""
    model = Model.register(ws, write("net.onnx"), "net")
    assert model.registered.framework == "files"
    printed = capsys.readouterr().out
    assert "Registering net as files for an entry script" in printed
    assert "ONNX Runtime cannot load net.onnx" in printed


def test_one_broken_model_does_not_hide_the_others(ws: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    """A list of all leaves it out with a line; the error of its own name has the reason."""
    for name in ("broken", "good"):
        Model.register(ws, write("m.pkl"), name)
    (Repository(ws.local.models_dir).get("broken").folder / "manifest.json").write_text("{")
    capsys.readouterr()
    assert [model.id for model in Model.list(ws)] == ["good:1"]
    assert "Left out: broken" in capsys.readouterr().out
    with pytest.raises(WebserviceException, match="broken"):
        Model(ws, "broken")


def test_models_are_filtered(ws: Workspace) -> None:
    """By name, version, id, tags and properties; the newest that has them all."""
    for number in (1, 2, 3):
        Model.register(ws, write("m.pkl"), "mine", tags={"stage": "test" if number == 3 else "live"})
    Model.register(ws, write("m.pkl"), "other", properties={"origin": "x"})
    assert Model(ws, "mine").version == 3
    assert Model(ws, "mine", version=1).id == "mine:1"
    assert Model(ws, id="mine:2").version == 2
    assert Model(ws, "mine", tags=[["stage", "live"]]).version == 2
    assert Model(ws, "mine", tags=["stage"]).version == 3
    assert [model.id for model in Model.list(ws, latest=True)] == ["mine:3", "other:1"]
    assert [model.id for model in Model.list(ws, tags={"stage": "live"})] == ["mine:1", "mine:2"]
    assert [model.id for model in Model.list(ws, properties=[["origin", "x"]])] == ["other:1"]
    assert Model.list(ws, run_id="r") == []
    assert sorted(ws.models) == ["mine", "other"]
    with pytest.raises(
        ModelNotFoundException, match=r"no model mine version 9.*mine:1, mine:2, mine:3, other:1"
    ):
        Model(ws, "mine", version=9)
    with pytest.raises(WebserviceException, match="ModelNotFound: the workspace has no model nobody"):
        Model(ws, "nobody")
    with pytest.raises(WebserviceException, match="name and id"):
        Model(ws)


@pytest.mark.parametrize("files", [["model.pkl"], ["net/a.bin", "net/deep/b.bin"]])
def test_a_model_is_downloaded_under_its_own_name(ws: Workspace, files: list[str]) -> None:
    """A file as a file, a folder as a folder, which can be written to; nothing is overwritten unasked."""
    source = Path(files[0]).parts[0]
    for file in files:
        write(file)
    model = Model.register(ws, source, "mine")
    for exist_ok in (False, True):
        assert model.download("there", exist_ok=exist_ok) == f"there/{source}"
        for file in files:
            assert Path("there", file).read_text() == "weights"
            Path("there", file).write_text("changed")
    with pytest.raises(WebserviceException, match="exist_ok=True"):
        model.download("there")
    Path("taken").touch()
    with pytest.raises(WebserviceException, match="taken is a file; give a folder"):
        model.download("taken")
    path = Path(Model.get_model_path("mine", _workspace=ws))
    assert path.is_file() == (source == files[0])
    model.delete()
    assert ws.models == {}


def test_a_model_is_refused_as_an_exception_of_azure(ws: Workspace) -> None:
    """A file that is not there, a bad name, what only Azure keeps."""
    with pytest.raises(WebserviceException, match=r"nothing\.pkl does not exist"):
        Model.register(ws, "nothing.pkl", "mine")
    with pytest.raises(WebserviceException, match="cannot be a model name"):
        Model.register(ws, write("m.pkl"), "a/b")
    for call in (
        lambda: Model.register(ws, "m.pkl", "mine", sample_input_dataset=object()),
        lambda: Model.package(ws, []),
    ):
        with pytest.raises(NotImplementedError) as raised:
            call()
        assert isinstance(raised.value, AzureMLException)


def test_entry_scripts_still_find_their_models(folder: Path) -> None:
    """Without a workspace `get_model_path` looks where entry scripts run."""
    write("azureml-models/mine/4/model.pkl")
    assert Model.get_model_path("mine") == "azureml-models/mine/4/model.pkl"


def test_entry_scripts_import_little_with_it() -> None:
    """`from azureml.core.model import Model` is in many scripts: it must not load a server or a framework."""
    program = """
import sys
import stoker.azure
from azureml.core.model import Model
heavy = {"numpy", "httpx", "starlette", "uvicorn", "tensorflow", "onnxruntime", "werkzeug", "jwt", "simdjson"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
assert "stoker.models.deployments" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PROGRAM_S)


def test_environments_can_be_registered(ws: Workspace) -> None:
    """Each change is a version; an unchanged one is not."""
    environment = Environment("mine")
    environment.environment_variables = {"A": "b"}
    assert environment.register(ws).version == "1"
    assert environment.register(ws).version == "1"
    environment.python.conda_dependencies.add_pip_package("numpy>=2")
    environment.python.user_managed_dependencies = False
    environment.docker.base_dockerfile = "FROM scratch"
    assert environment.register(ws).version == "2"
    found = ws.environments["mine"]
    assert found.to_json() == environment.to_json()
    assert Environment.get(ws, "mine", 1).python.conda_dependencies.pip_packages == []
    with pytest.raises(UserErrorException, match="environments of Microsoft are not here"):
        Environment.get(ws, "AzureML-sklearn-1.0")
    with pytest.raises(UserErrorException, match="'mine' version 3 in the workspace"):
        Environment.get(ws, "mine", "3")
