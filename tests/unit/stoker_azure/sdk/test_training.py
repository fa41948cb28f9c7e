"""Experiments, runs and their configurations, without a process."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

import stoker.azure  # noqa: F401  # provides azureml

# isort: split
from azureml.core import (
    ContainerRegistry,
    Dataset,
    Datastore,
    Environment,
    Experiment,
    Run,
    ScriptRunConfig,
    Workspace,
)
from azureml.core.compute import (
    AdlaCompute,
    AmlCompute,
    BatchCompute,
    ComputeTarget,
    DatabricksCompute,
    HDInsightCompute,
    RemoteCompute,
)
from azureml.core.conda_dependencies import CondaDependencies
from azureml.core.run import _OfflineRun
from azureml.core.runconfig import (
    MpiConfiguration,
    PyTorchConfiguration,
    RunConfiguration,
    TensorflowConfiguration,
)
from azureml.data import OutputFileDatasetConfig
from azureml.data.datapath import DataPath
from azureml.exceptions import (
    ActivityFailedException,
    ComputeTargetException,
    ExperimentExecutionException,
    ModelPathNotFoundException,
    UserErrorException,
)
from azureml.pipeline.core import Pipeline
from azureml.pipeline.steps import PythonScriptStep
from azureml.train.dnn import TensorFlow
from azureml.train.estimator import Estimator
from azureml.widgets import RunDetails

from stoker_azure.exceptions import NotOffered
from stoker_azure.finder import IMPORTS
from stoker_azure.sdk import request as request_module
from stoker_azure.sdk import run as run_module
from stoker_azure.sdk import run_waiting
from stoker_runs.launch.submission import Request, plan
from stoker_runs.records.folder import RunFolder
from stoker_runs.records.record import Output
from stoker_runs.records.states import RunFailure, RunState, Status
from stoker_runs.records.store import RunStore
from stoker_runs.targets.container_program import ContainerProgram
from stoker_runs.targets.containers import Image
from stoker_runs.targets.definitions import find_target
from stoker_runs.targets.engine import EngineFailure

MakeRequest = Callable[..., Request]


@pytest.fixture
def ws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setenv("STOKER_WORKSPACE", str(tmp_path / "home"))
    monkeypatch.delenv("STOKER_RUN_ENVIRONMENT", raising=False)
    monkeypatch.delenv("STOKER_ATTEMPT_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text("print('hello')")
    return Workspace.from_config()


@pytest.fixture
def request_for(ws: Workspace, monkeypatch: pytest.MonkeyPatch) -> MakeRequest:
    """Submits a configuration to nobody, and gives what would be submitted with its packages."""
    requests: list[Request] = []

    class Submitted(Exception):
        pass

    def submit(request: Request, _workspace: object) -> None:
        path = request.environment_file or (Path(request.environment) if request.environment else None)
        packages = path.read_text() if path is not None and path.is_file() else ""
        monkeypatch.setattr(asking, "packages", packages)
        requests.append(request)
        raise Submitted

    def asking(config: Any, **given: Any) -> Request:
        with pytest.raises(Submitted):
            Experiment(ws, "digits").submit(config, **given)
        return requests[-1]

    asking.packages = ""  # type: ignore[attr-defined]
    monkeypatch.setattr(run_module, "submit", submit)
    return asking


@pytest.fixture
def ended_run(ws: Workspace) -> Run:
    """A run that has ended, begun by this process."""
    with Experiment(ws, "digits").start_logging() as run:
        run.log("loss", 0.5)
        run.log("loss", 0.25, step=2)
        (run.folder.outputs / "model.pkl").write_bytes(b"weights")
        run.upload_file("notes.txt", __file__)
    return Run.get(ws, run.id)


def test_arguments_and_data_become_a_command_line(
    ws: Workspace, request_for: MakeRequest, tmp_path: Path
) -> None:
    """Numbers are texts; data to read is an input by its name, data to write a path."""
    store = ws.get_default_datastore()
    store.upload("src", "digits", show_progress=False)
    data = Dataset.File.from_files((store, "digits")).register(ws, "mnist")
    out = OutputFileDatasetConfig("result", (store, "out"))
    arguments = ["--data", data.as_mount(), "--lr", 0.5, store.path("digits").as_mount(), out]
    config = ScriptRunConfig("src", "train.py", arguments, resume_from=DataPath(store, "old"))
    definition = request_for(config, tags={"k": 1}).definition
    folder, reference = str(store.root / "digits"), "$AZUREML_DATAREFERENCE_"
    assert definition.arguments == (
        *(
            "--data",
            f"{reference}mnist",
            "--lr",
            "0.5",
            f"{reference}workspaceblobstore",
            f"{reference}result",
        ),
        *("--resume-from", f"{reference}resume_from"),
    )
    assert definition.inputs == {
        "mnist": folder,
        "workspaceblobstore": folder,
        "resume_from": str(store.root / "old"),
    }
    assert definition.outputs == {"result": Output("workspaceblobstore", "out")}
    assert (definition.target, definition.max_duration_s) == ("local", 2_592_000)
    with pytest.raises(UserErrorException, match=r"say how the script is to have it, with as_mount\(\)"):
        Experiment(ws, "digits").submit(ScriptRunConfig("src", "train.py", [data]))


def test_output_of_a_script_is_mounted_or_uploaded(
    ws: Workspace, request_for: MakeRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each mode and option is honoured, or refused with what to do."""
    store = ws.get_default_datastore()
    store.upload("src", "old", show_progress=False)
    arguments = [
        OutputFileDatasetConfig(),
        OutputFileDatasetConfig("a", (store, "a")).as_upload(),
        OutputFileDatasetConfig("b", (store, "b"), source="outputs/b").as_upload(overwrite=True),
        store.path().as_upload("./outputs/c", overwrite=True).path("c"),
        store.as_upload(),
        store.path("new", "new").as_mount(),
        store.path("old", "old").as_mount(),
        store.path("old", "old").as_download("/data"),
    ]
    definition = request_for(ScriptRunConfig("src", "train.py", arguments)).definition
    name = "workspaceblobstore"
    assert definition.outputs == {
        "output": Output(name, "dataset/{run-id}/{output-name}"),
        "a": Output(name, "a", "outputs/a", overwrite=False),
        "b": Output(name, "b", "outputs/b", overwrite=True),
        name: Output(name, "c", "outputs/c", overwrite=True),
        f"{name}_2": Output(name, "", f"outputs/{name}_2", overwrite=False),
        "new": Output(name, "new"),
    }
    assert definition.inputs == {"old": str(store.root / "old")}
    assert "path_on_compute='/data' is not used" in capsys.readouterr().out
    for wrong, words in (
        (lambda: OutputFileDatasetConfig("a", source="/tmp/a"), "write to a folder below outputs/"),
        (lambda: store.path("c").as_upload("result"), "write to a folder below outputs/"),
    ):
        with pytest.raises(UserErrorException, match=words):
            Experiment(ws, "digits").submit(ScriptRunConfig("src", "train.py", [wrong()]))
    with pytest.raises(NotOffered, match="source_globs is not offered"):
        OutputFileDatasetConfig("a").as_upload(source_globs="*.csv")
    with pytest.raises(NotOffered, match="register a data set of the folder"):
        OutputFileDatasetConfig("a").register_on_complete("a")


def test_a_store_at_an_address_is_read_or_written(
    ws: Workspace, request_for: MakeRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mount of present data is a copy, and a line says so; a mount of missing data is for writing."""
    pytest.importorskip("fsspec", reason="needs fsspec")
    store = Datastore.register_address(ws, "far", f"file://{tmp_path}/far", auto_mkdir=True)
    store.upload("src", "old", show_progress=False)
    arguments = [store.path("old", "old").as_mount(), store.path("new", "new").as_mount()]
    definition = request_for(ScriptRunConfig("src", "train.py", arguments)).definition
    assert (list(definition.inputs), definition.outputs) == (["old"], {"new": Output("far", "new")})
    assert "what it writes there does not get into the store" in capsys.readouterr().out


def test_packages_are_exact_by_default(
    ws: Workspace, request_for: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Azure's own packages alone are none; a Python of the user's is taken as it is."""
    environment = Environment("e")
    environment.environment_variables = {"A": "1"}
    config = ScriptRunConfig("src", "train.py", environment=environment)
    assert (request_for(config).environment, request_for(config).definition.variables) == (
        "",
        {"A": "1"},
    )
    environment.python.conda_dependencies = CondaDependencies.create(
        pip_packages=["azureml-defaults"], python_version="3.8"
    )
    assert request_for(config).environment == ""
    environment.python.conda_dependencies.add_pip_package("numpy==1.23.5")
    assert request_for(config).environment.endswith("environment.yml")
    assert "numpy==1.23.5" in request_for.packages  # type: ignore[attr-defined]
    monkeypatch.setenv("STOKER_RUN_ENVIRONMENT", "relaxed")
    assert request_for(config).environment == "relaxed"
    assert "numpy==1.23.5" in request_for.packages  # type: ignore[attr-defined]
    monkeypatch.setenv("STOKER_RUN_ENVIRONMENT", "here")
    assert (request_for(config).environment, request_for(config).environment_file) == ("", None)
    environment.python.user_managed_dependencies = True
    environment.python.interpreter_path = "/opt/python"
    assert request_for(config).python == "/opt/python"
    environment.python.user_managed_dependencies = False
    monkeypatch.setenv("STOKER_RUN_ENVIRONMENT", "some")
    with pytest.raises(UserErrorException, match="exact, relaxed, here"):
        Experiment(ws, "digits").submit(config)


def test_this_machine_stands_for_clusters_and_for_nothing_else(
    ws: Workspace, request_for: MakeRequest
) -> None:
    """By name, as an object, or made for one run; what takes no scripts says so."""
    ComputeTarget.create(ws, "cpu", AmlCompute.provisioning_configuration("STANDARD_D2_V2", max_nodes=1))
    for target in ("cpu", ws.compute_targets["cpu"]):
        definition = request_for(ScriptRunConfig("src", "train.py", compute_target=target)).definition
        assert definition.target == "cpu"
    made = RunConfiguration()
    made.target = "amlcompute"
    made.amlcompute.vm_size = "STANDARD_D2_V2"
    made.amlcompute._cluster_max_node_count = 5
    assert request_for(ScriptRunConfig("src", "train.py", run_config=made)).definition.target == "local"
    for target, kind, instead in (
        ("batch", BatchCompute, "one by one to an AmlCompute"),
        ("bricks", DatabricksCompute, "an HDInsightCompute"),
        ("lake", AdlaCompute, "an HDInsightCompute"),
    ):
        ComputeTarget.attach(ws, target, kind.attach_configuration("g", "a"))
        words = f"{target} is a compute target of type {kind.kind}, to which no scripts .* {instead}"
        with pytest.raises(ExperimentExecutionException, match=words):
            Experiment(ws, "digits").submit(ScriptRunConfig("src", "train.py", compute_target=target))


def test_a_cluster_of_hdinsight_runs_spark(
    ws: Workspace,
    request_for: MakeRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Where the framework says so; it is the same target for `stoker targets`, and starts no container."""
    monkeypatch.setenv("STOKER_ATTACH_CHECK", "0")
    given = HDInsightCompute.attach_configuration(address="head", username="me", password="s3cret")
    ComputeTarget.attach(workspace=ws, name="hdi", attach_configuration=given)
    assert type(ComputeTarget(ws, "hdi")) is HDInsightCompute
    assert find_target(ws.local.targets_dir, "hdi").type == "spark"
    config = RunConfiguration(framework="PySpark")
    config.target = "hdi"
    config.environment.docker.enabled = True
    capsys.readouterr()
    request = request_for(ScriptRunConfig("src", "train.py", run_config=config))
    assert (request.definition.framework, request.definition.container) == ("pyspark", {})
    config.spark.configuration["spark.executor.memory"] = "2g"
    variables = request_for(ScriptRunConfig("src", "train.py", run_config=config)).definition.variables
    assert variables["PYSPARK_SUBMIT_ARGS"] == "--conf spark.executor.memory=2g pyspark-shell"
    config.hdi.yarn_deploy_mode = "cluster"
    with pytest.raises(UserErrorException, match="deploy_mode of the compute target hdi is 'client'"):
        Experiment(ws, "digits").submit(ScriptRunConfig("src", "train.py", run_config=config))
    config.framework = "Python"
    config.hdi.yarn_deploy_mode = None
    with pytest.raises(UserErrorException, match=r"spark.configuration is for the framework PySpark"):
        Experiment(ws, "digits").submit(ScriptRunConfig("src", "train.py", run_config=config))
    config.spark.configuration.clear()
    assert capsys.readouterr().out.startswith("a container is asked for, and hdi starts none")
    config.framework = "Python"
    assert request_for(ScriptRunConfig("src", "train.py", run_config=config)).definition.framework == "python"


@pytest.mark.parametrize(
    ("distribution", "expected"),
    [
        (MpiConfiguration(2, 3), (3, 2, "mpi")),
        (TensorflowConfiguration(2), (2, 1, "tensorflow")),
        (PyTorchConfiguration(process_count=4, node_count=2), (2, 2, "pytorch")),
        (None, (1, 1, "none")),
    ],
)
def test_several_processes(
    distribution: Any, expected: tuple[int, int, str], request_for: MakeRequest
) -> None:
    """Each kind as machines, processes of each, and how they find each other."""
    config = ScriptRunConfig("src", "train.py", distributed_job_config=distribution)
    definition = request_for(config).definition
    assert (definition.nodes, definition.processes_per_node, definition.communicator) == expected


def test_processes_that_nodes_cannot_share_are_refused(ws: Workspace) -> None:
    """Unequal numbers of processes, and more nodes than the cluster has: with both numbers, before a start."""
    with pytest.raises(UserErrorException, match="process_count is 3, and 2 nodes"):
        PyTorchConfiguration(process_count=3, node_count=2)
    ComputeTarget.create(
        ws, "pair", AmlCompute.provisioning_configuration(vm_size="STANDARD_D2_V2", max_nodes=2)
    )
    config = ScriptRunConfig(
        "src", "train.py", compute_target="pair", distributed_job_config=MpiConfiguration(1, 3)
    )
    with pytest.raises(Exception, match="3 nodes were asked for, and pair has 2"):
        Experiment(ws, "digits").submit(config)


def test_estimators_are_configurations(request_for: MakeRequest) -> None:
    """Parameters as arguments, packages as an environment, machines as MPI's."""
    estimator = Estimator(
        "src", compute_target="local", entry_script="train.py", script_params={"--lr": 0.1, "--fast": ""},
        node_count=2, process_count_per_node=2, conda_packages=["scipy"], environment_variables={"A": "1"},
    )  # fmt: skip
    definition = request_for(estimator).definition
    assert definition.arguments == ("--lr", "0.1", "--fast")
    assert (definition.processes, definition.communicator) == (4, "mpi")
    assert "scipy" in request_for.packages  # type: ignore[attr-defined]
    request_for(TensorFlow("src", compute_target="local", entry_script="train.py"))
    assert "tensorflow==1.13.*" in request_for.packages  # type: ignore[attr-defined]
    estimator = TensorFlow(
        "src", entry_script="train.py", worker_count=2, parameter_server_count=1, node_count=2
    )
    definition = request_for(estimator).definition
    assert (definition.nodes, definition.parameter_servers, definition.communicator) == (3, 1, "tensorflow")


def test_estimators_take_azures_arguments_and_refuse_others(
    ws: Workspace, request_for: MakeRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files relative to the script's folder, the Python as it is, a GPU; a misspelt name is an error."""
    (tmp_path / "src" / "conda.yml").write_text("dependencies: [python=3.11, scipy]")
    (tmp_path / "src" / "pip.txt").write_text("pandas==2.2.2\n")
    request_for(
        Estimator(
            "src",
            entry_script="train.py",
            conda_dependencies_file_path="conda.yml",
            pip_requirements_file="pip.txt",
            pip_packages=["rich"],
            vm_size="STANDARD_NC6",
        )
    )
    packages = request_for.packages  # type: ignore[attr-defined]
    assert all(name in packages for name in ("python=3.11", "scipy", "pandas==2.2.2", "rich"))
    request = request_for(
        Estimator("src", entry_script="train.py", conda_packages=["scipy"], user_managed=True)
    )
    assert request.environment == ""
    ws.local.create().targets_dir.mkdir()
    for gpus, expected in (("[]", "use_gpu is True, and local has no GPU"), ('["0"]', "")):
        (ws.local.targets_dir / "local.yaml").write_text(f"gpus: {gpus}\n")
        request_for(Estimator("src", entry_script="train.py", use_gpu=True))
        assert capsys.readouterr().out.startswith(expected)
    (ws.local.targets_dir / "box.yaml").write_text("type: ssh\naddress: host.lab\n")
    request = request_for(Estimator("src", entry_script="train.py", compute_target="box", use_gpu=True))
    assert request.definition.gpus == 1
    with pytest.raises(TypeError, match="no argument 'use_gpus'; did you mean use_gpu"):
        Estimator("src", entry_script="train.py", use_gpus=True)
    with pytest.raises(TypeError, match="Estimator has no argument 'framework_version'"):
        Estimator("src", entry_script="train.py", framework_version="1.13")


def _docker_enabled(config: RunConfiguration) -> None:
    config.environment.docker.enabled = True


def _docker_used(config: RunConfiguration) -> None:
    config.docker.use_docker = True
    config.docker.shm_size = "4g"


def _image_named(config: RunConfiguration) -> None:
    config.environment.docker.base_image = "lab/train:1"


@pytest.mark.parametrize(
    ("setting", "expected"),
    [(_docker_enabled, {}), (_docker_used, {"shm_size": "4g"}), (_image_named, {"image": "lab/train:1"})],
)
def test_requested_container_needs_a_container_engine(
    ws: Workspace,
    request_for: MakeRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    setting: Callable[[RunConfiguration], None],
    expected: dict[str, Any],
) -> None:
    """On this machine and where it stands for a cluster; without a program a line says that there is none."""
    ComputeTarget.create(ws, "cpu", AmlCompute.provisioning_configuration("STANDARD_D2_V2", max_nodes=1))
    config = RunConfiguration()
    config.target = "cpu"
    request_for(ScriptRunConfig("src", "train.py", run_config=config))
    assert request_for(ScriptRunConfig("src", "train.py", run_config=config)).definition.container == {}
    setting(config)
    monkeypatch.setattr(ContainerProgram, "find", lambda _engine: ContainerProgram("docker", "docker"))
    monkeypatch.setattr(Image, "obtain", lambda *_: None)
    request = request_for(ScriptRunConfig("src", "train.py", run_config=config))
    assert request.definition.container == {"optional": True, **expected}
    assert plan(request, ws.local).target.has_containers
    capsys.readouterr()

    def missing(*_: object) -> NoReturn:
        raise EngineFailure("it is not there", "install it", code="DockerUnavailable")

    # An image that is not here and cannot be pulled, and then not even a program.
    for kind, name in ((Image, "obtain"), (ContainerProgram, "find")):
        monkeypatch.setattr(kind, name, missing)
        assert request_for(ScriptRunConfig("src", "train.py", run_config=config)).definition.container == {}
        assert capsys.readouterr().out == (
            "a container is asked for, but the script runs without one: it is not there; install it\n"
        )


def _set_docker(config: RunConfiguration) -> None:
    config.environment.docker.enable = True


def _set_conda(config: RunConfiguration) -> None:
    config.environment.python.conda_dependancies = CondaDependencies()


def _set_variables(config: RunConfiguration) -> None:
    config.enviroment_variables = {"A": "1"}


def _set_nodes(config: RunConfiguration) -> None:
    config.mpi.node_counts = 2


def _set_size(config: RunConfiguration) -> None:
    config.amlcompute.vmsize = "STANDARD_NC6"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (_set_docker, "DockerSection has no attribute 'enable'; did you mean enabled?"),
        (_set_conda, "'conda_dependancies'; did you mean conda_dependencies?"),
        (_set_variables, "'enviroment_variables'; did you mean environment_variables?"),
        (_set_nodes, "'node_counts'; did you mean node_count?"),
        (_set_size, "'vmsize'; did you mean vm_size?"),
    ],
)
def test_a_misspelt_attribute_is_refused(setting: Callable[[RunConfiguration], None], message: str) -> None:
    """In each section of a run configuration, as on Azure, with the nearest name."""
    with pytest.raises(AttributeError) as caught:
        setting(RunConfiguration())
    assert message in str(caught.value)


@pytest.mark.usefixtures("ws")
def test_attributes_of_azure_that_change_nothing_here_may_be_set() -> None:
    """Those that older code sets; copies may be changed too, and a conda file by its path is read."""
    config = RunConfiguration()
    config.auto_prepare_environment = config.prepare_environment = True
    config.environment.docker.gpu_support = config.environment.docker.shared_volumes = True
    config.amlcompute.cluster_max_node_count = config.amlcompute._cluster_max_node_count = 2
    other = config.environment.clone("other")
    other.docker.enabled = True
    with pytest.raises(AttributeError, match="did you mean enabled"):
        other.docker.enable = True
    Path("conda.yml").write_text("dependencies: [scipy]")
    config.environment.python.conda_dependencies_file = "conda.yml"
    assert config.environment.python.conda_dependencies.conda_packages == ["scipy"]


def test_words_that_azure_does_not_have_are_refused(ws: Workspace, request_for: MakeRequest) -> None:
    """Frameworks and communicators, with the nearest; data that nobody would give the script."""
    experiment = Experiment(ws, "digits")
    for wrong, message in (
        ({"framework": "pysparc"}, "framework is 'pysparc'; did you mean pyspark"),
        ({"communicator": "OpenMpl"}, "communicator is 'OpenMpl'; did you mean openmpi"),
    ):
        with pytest.raises(UserErrorException, match=message):
            experiment.submit(ScriptRunConfig("src", "train.py", run_config=RunConfiguration(**wrong)))
    config = RunConfiguration(command="echo")
    with pytest.raises(NotOffered, match="write it into a script"):
        experiment.submit(ScriptRunConfig("src", "train.py", run_config=config))
    config = RunConfiguration()
    config.data = {"digits": object()}
    with pytest.raises(NotOffered, match="put the data set among the arguments"):
        experiment.submit(ScriptRunConfig("src", "train.py", run_config=config))
    store = ws.get_default_datastore()
    store.upload("src", "digits", show_progress=False)
    config = RunConfiguration()
    config.data_references = {"digits": store.path("digits", "digits").as_download().to_config()}
    definition = request_for(ScriptRunConfig("src", "train.py", run_config=config)).definition
    assert definition.inputs == {"digits": str(store.root / "digits")}


def test_pyspark_that_is_not_there_has_a_line(
    request_for: MakeRequest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Among packages that are installed and in this Python; another Python is not looked into."""
    config = RunConfiguration(framework="pyspark")
    config.environment.python.conda_dependencies.add_conda_package("numpy")
    request_for(ScriptRunConfig("src", "train.py", run_config=config))
    assert "pyspark is not among the packages of the environment" in capsys.readouterr().out
    config.environment.python.conda_dependencies.add_pip_package("pyspark==3.5")
    request_for(ScriptRunConfig("src", "train.py", run_config=config))
    assert capsys.readouterr().out == ""
    config.environment.python.user_managed_dependencies = True
    monkeypatch.setattr(request_module, "find_spec", lambda _: None)
    request_for(ScriptRunConfig("src", "train.py", run_config=config))
    assert "pyspark is not among the packages of this Python" in capsys.readouterr().out
    config.environment.python.interpreter_path = "/opt/python"
    request_for(ScriptRunConfig("src", "train.py", run_config=config))
    assert capsys.readouterr().out == ""


def test_submission_that_cannot_run_writes_nothing(ws: Workspace, tmp_path: Path) -> None:
    """No script, an unknown one with the nearest, a command, another object, a name that none can have."""
    experiment = Experiment(ws, "digits")
    with pytest.raises(ExperimentExecutionException, match=r"did you mean train\.py"):
        experiment.submit(ScriptRunConfig("src", "trian.py"))
    with pytest.raises(UserErrorException, match="names no script"):
        experiment.submit(ScriptRunConfig("src"))
    with pytest.raises(NotOffered, match="write it into a script"):
        experiment.submit(ScriptRunConfig("src", command="python train.py"))
    with pytest.raises(UserErrorException, match="object cannot be submitted"):
        experiment.submit(object())
    with pytest.raises(UserErrorException, match="experiment"):
        Experiment(ws, "a/b")
    assert not (tmp_path / "home" / "runs").exists()
    for unoffered in (lambda: Pipeline(ws, steps=[]), lambda: PythonScriptStep(script_name="a.py")):
        with pytest.raises(NotOffered, match="one after the other"):
            unoffered()


def test_run_of_a_notebook_keeps_its_logs(ws: Workspace, ended_run: Run, tmp_path: Path) -> None:
    """Metrics, files, tags; found again by its id and in its experiment."""
    assert (ended_run.status, ended_run.get_metrics(), ended_run.number) == (
        "Completed",
        {"loss": [0.5, 0.25]},
        1,
    )
    assert list(ended_run.get_file_names()) == ["notes.txt", "outputs/model.pkl"]
    ended_run.set_tags({"a": 1, "b": 2})
    ended_run.remove_tags(["b"])
    assert ended_run.tags == {"a": "1"}
    assert [run.id for run in Experiment(ws, "digits").get_runs(tags={"a": 1})] == [ended_run.id]
    assert list(Experiment(ws, "digits").get_runs(tags="b")) == []
    assert list(ws.experiments) == ["digits"]
    assert ws.get_run(ended_run.id).id == ended_run.id
    ended_run.download_files("outputs/", "here", append_prefix=False)
    ended_run.download_files(output_directory="all")
    ended_run.download_file("outputs/model.pkl", "copy/m.pkl")
    assert sorted(path.name for path in tmp_path.glob("*/*.pkl")) == ["m.pkl", "model.pkl"]
    assert (tmp_path / "all" / "outputs" / "model.pkl").read_bytes() == b"weights"
    with pytest.raises(UserErrorException, match="has no file"):
        ended_run.download_file("outputs/other.pkl")
    with pytest.raises(UserErrorException, match="there is no run"):
        Run.get(ws, "digits_1_00000000")
    with pytest.raises(NotOffered, match="start_logging"):
        ended_run.log("x", 1)


def test_runs_are_filtered(ws: Workspace, ended_run: Run) -> None:
    """By tag, property, status, and as parts of others, the last one first; metrics with those of the parts."""
    experiment = Experiment(ws, "digits")
    with experiment.start_logging() as parent:
        parent.log("loss", 1)
    for number in (1, 2):
        record = parent.folder.record().replace(
            id=f"digits_1_{number:08x}",
            created_ms=parent.folder.record().created_ms + number,
            parent=parent.id if number == 1 else "digits_1_00000001",
        )
        RunStore(ws.local.runs_dir).create(record, RunState(Status.CANCELED, reason="by its user"))
    parent = Run.get(ws, parent.id)
    child = next(parent.get_children())
    assert [run.id for run in parent.get_children(recursive=True)] == [
        "digits_1_00000002",
        "digits_1_00000001",
    ]
    assert (child.parent.id, child.display_name, child.number) == (parent.id, child.id, 3)
    assert [run.id for run in experiment.get_runs()] == [parent.id, ended_run.id]
    assert len(list(Run.list(experiment, include_children=True, status="Canceled"))) == 2
    assert list(experiment.get_runs(properties={"none": 1})) == []
    grandchild = "digits_1_00000002"
    assert parent.get_metrics("loss", recursive=True) == {
        parent.id: {"loss": 1},
        child.id: {},
        grandchild: {},
    }
    assert parent.parent is None
    child.tag("seen")
    assert (child.get_tags(), child.get_properties()) == ({"seen": ""}, child.properties)
    assert child.get_detailed_status() == {"status": "Canceled", "details": ["by its user"]}
    assert parent.get_details_with_logs()["logFiles"] == {}
    assert repr(child).endswith("Id: digits_1_00000001, Status: Canceled)")
    assert child.get_portal_url() == child.folder.path.as_uri()


def test_children_of_a_script_are_runs(ws: Workspace) -> None:
    """They are in every list, with their metrics, tags and states; lists choose by type, tag and status."""
    experiment = Experiment(ws, "digits")
    with experiment.start_logging() as run:
        with run.child_run("first") as first:
            first.log("v", 1)
            first.tag("fold", 1)
            below = first.child_run()
        run.child_run().fail("it does not converge")
    run = Run.get(ws, run.id)
    children = list(run.get_children())
    assert [child.get_status() for child in children] == ["Failed", "Completed"]
    assert [child.id for child in run.get_children(tags={"fold": "1"})] == [first.id]
    assert [child.id for child in run.get_children(status="Failed", type="azureml.scriptrun")] == [
        children[0].id
    ]
    assert list(run.get_children(type="hyperdrive")) == []
    assert {child.id for child in run.get_children(recursive=True)} == {
        *(one.id for one in children),
        below.id,
    }
    metrics = run.get_metrics(recursive=True)
    assert metrics == {run.id: {}, first.id: {"v": 1}, children[0].id: {}, below.id: {}}
    assert [one.id for one in experiment.get_runs()] == [run.id]
    assert len(list(experiment.get_runs(include_children=True))) == 4
    child = Run.get(ws, first.id)
    assert (child.parent.id, child.display_name, child.get_tags()) == (run.id, "first", {"fold": "1"})
    with pytest.raises(UserErrorException, match="lives and ends with it"):
        child.cancel()


def test_a_run_is_described_and_has_children_submitted(
    ws: Workspace, ended_run: Run, request_for: MakeRequest
) -> None:
    """Names, properties and descriptions that are added later; a child that is submitted has its parent."""
    ended_run.display_name = "the first"
    ended_run.description = "of digits"
    ended_run.add_properties({"p": 1})
    ended_run.add_properties({"p": 2})
    again = Run.get(ws, ended_run.id)
    assert (again.name, again.description, again.properties["p"]) == ("the first", "of digits", "1")
    assert again.portal_url == again.get_portal_url()
    requests: list[Request] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            run_module, "submit", lambda request, _: (requests.append(request), (ended_run.folder, 0))[1]
        )
        again.submit_child(ScriptRunConfig("src", "train.py"), tags={"k": "v"})
    assert (requests[0].parent, requests[0].definition.script) == (ended_run.id, "train.py")
    with pytest.raises(UserErrorException, match="submit takes a configuration and tags, not arguments"):
        Experiment(ws, "digits").submit(ScriptRunConfig("src", "train.py"), arguments=["x"])


def test_runs_and_experiments_are_listed_by_view_and_target(
    ws: Workspace, ended_run: Run, tmp_path: Path
) -> None:
    """Runs of a compute target, archived experiments, files at paths of one's own."""
    local = SimpleNamespace(workspace=ws, name="local")
    assert [run.id for run in Run.list_by_compute(local)] == [ended_run.id]
    assert list(Run.list_by_compute(SimpleNamespace(workspace=ws, name="other"))) == []
    experiment = Experiment(ws, "digits")
    experiment.archive()
    listed = {view: [one.name for one in Experiment.list(ws, view_type=view)] for view in (
        "ActiveOnly", "ArchivedOnly", "All"
    )}  # fmt: skip
    assert listed == {"ActiveOnly": [], "ArchivedOnly": ["digits"], "All": ["digits"]}
    assert Experiment.list(ws, view_type="All", tags={"a": 1}) == []
    with pytest.raises(UserErrorException, match="view_type is 'x'"):
        Experiment.list(ws, view_type="x")
    ended_run.download_files("outputs/", str(tmp_path / "got"), output_paths=["weights.bin"])
    assert (tmp_path / "got" / "weights.bin").read_bytes() == b"weights"
    with pytest.raises(UserErrorException, match="output_paths has 2 paths for 1 files"):
        ended_run.download_files("outputs/", output_paths=["a", "b"])
    with pytest.raises(NotOffered, match="data sets"):
        ended_run.register_model("m", "outputs/model.pkl", datasets=[("training", None)])


def test_older_forms_of_attach_are_taken(ws: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The arguments of the configuration in its place; a machine needs an address, not a name of Azure's."""
    monkeypatch.setenv("STOKER_ATTACH_CHECK", "0")
    RemoteCompute.attach(ws, "vm", "me", "10.0.0.1", ssh_port=2222)
    settings = find_target(ws.local.targets_dir, "vm").settings
    assert (settings["username"], settings["address"], settings["port"]) == ("me", "10.0.0.1", 2222)
    assert DatabricksCompute.attach(ws, "bricks", "/subscriptions/x", "token").type == "Databricks"
    with pytest.raises(ComputeTargetException, match="give address and username in place of vm_name"):
        RemoteCompute.attach_configuration(vm_name="box")
    with pytest.raises(ComputeTargetException, match="takes a configuration"):
        ComputeTarget.attach(ws, "x")


def test_a_run_that_fails_says_why(ws: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    """A context fails with its exception; waiting callers get the error as JSON."""
    with pytest.raises(KeyError), Experiment(ws, "digits").start_logging() as run:
        raise KeyError("x")
    with pytest.raises(ActivityFailedException) as raised:
        Run.get(ws, run.id).wait_for_completion()
    assert json.loads(str(raised.value))["error"]["message"] == "KeyError: 'x'"
    details = Run.get(ws, run.id).wait_for_completion(show_output=True, raise_on_error=False)
    assert (details["status"], details["error"]["error"]["code"]) == ("Failed", "ScriptFailed")
    RunDetails(Run.get(ws, run.id)).show()
    printed = capsys.readouterr().out
    assert f"RunId: {run.id}\nWeb View: file://" in printed
    assert "\nExecution Summary\n=================\n" in printed
    assert f"{run.id}: Failed on local" in printed


def test_ctrl_c_leaves_the_run_alone(ended_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted wait says that the run goes on."""

    def interrupted(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run_waiting, "follow", interrupted)
    with pytest.raises(ExperimentExecutionException, match="is still executing"):
        ended_run.wait_for_completion()


def test_log_of_a_run_is_shown_once_below_a_heading(
    ended_run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once, as it comes."""

    def follow(
        folder: RunFolder,
        _workspace: object,
        write: Callable[[bytes], None],
        notes: Callable[[str], None] = lambda _: None,
    ) -> RunState:
        notes("another Python is used")
        write(b"one\n")
        write(b"two\n")
        details = {"traceback": "T\nKeyError: 'x'", "rank": 0}
        return RunState(Status.FAILED, error=RunFailure("ScriptFailed", "KeyError: 'x'", "", details))

    monkeypatch.setattr(run_waiting, "follow", follow)
    ended_run.wait_for_completion(show_output=True, raise_on_error=False)
    head = f"Streaming azureml-logs/70_driver_log.txt\n{'=' * 40}\n\none\ntwo\n"
    assert head in capsys.readouterr().out
    for shown, details in ((True, {"rank"}), (False, {"rank", "traceback"})):
        with pytest.raises(ActivityFailedException) as raised:
            ended_run.wait_for_completion(show_output=shown)
        assert set(json.loads(str(raised.value))["error"]["details"]) == details


def test_model_has_the_id_of_its_run(ws: Workspace, ended_run: Run) -> None:
    """Its version has the run's id; a file that is not there is answered by those that are."""
    model = ended_run.register_model("digits", "outputs/model.pkl", tags={"k": "v"}, description="first")
    assert (model.id, model.run_id, model.experiment_name) == ("digits:1", ended_run.id, "digits")
    assert (model.tags, model.description, model.model_framework) == ({"k": "v"}, "first", "Custom")
    served = ended_run.register_model("digits", "outputs/model.pkl", model_framework="ScikitLearn")
    assert (served.version, served.model_framework) == (2, "ScikitLearn")
    with pytest.raises(ModelPathNotFoundException, match=r"outputs/model\.pkl"):
        ended_run.register_model("outputs/other")


def test_outside_of_a_run_the_context_prints(ws: Workspace) -> None:
    """The same object as in a script without Stoker's server."""
    assert isinstance(Run.get_context(), _OfflineRun)


def test_a_target_of_containers_gets_the_image(
    ws: Workspace, request_for: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a program for containers other targets run scripts without one; Azure's default image is none."""
    monkeypatch.setenv("STOKER_CONTAINER_ENGINE", "no-such-program")
    ws.local.create().targets_dir.mkdir()
    (ws.local.targets_dir / "box.yaml").write_text("type: docker\n")
    config = ScriptRunConfig("src", "train.py", compute_target="box")
    assert request_for(config).definition.container == {}
    docker = config.run_config.environment.docker
    docker.base_image, docker.shm_size, docker.arguments = "lab/train:2", "4g", ["--cpus", "1"]
    expected = {"image": "lab/train:2", "shm_size": "4g", "arguments": ["--cpus", "1"]}
    assert request_for(config).definition.container == expected
    docker.base_dockerfile = "FROM lab/train:2\nRUN true"
    request = request_for(config)
    assert "image" not in request.definition.container
    assert request.dockerfile is not None
    config.run_config.target = "local"
    assert request_for(config).definition.container == {}


# It is never made.
WITHOUT_REPR = {
    *(
        "Dataset",
        "FileDatasetFactory",
        "Image",
        "MNIST",
        "TabularDataset",
        "TabularDatasetFactory",
        "Tensorboard",
        "ViewType",
        "ContainerImage",
        "Pipeline",
        "PipelineData",
        "PipelineEndpoint",
        "PublishedPipeline",
    ),
}


def test_no_object_of_the_sdk_prints_its_address() -> None:
    """Every public class of it has a text of its own."""
    silent = set()
    for name in {name for name in IMPORTS.values() if name.startswith("stoker_azure.sdk.")}:
        module = importlib.import_module(name)
        classes = [vars(module).get(public) for public in module.__all__]
        silent |= {
            one.__name__ for one in classes if isinstance(one, type) and one.__repr__ is object.__repr__
        }
    assert silent == WITHOUT_REPR


def test_configurations_print_as_azures_json(ws: Workspace) -> None:
    """`print(run_config)` is Azure's JSON; secrets are left out."""
    config = RunConfiguration()
    config.environment.python.conda_dependencies = CondaDependencies.create(conda_packages=["scikit-learn"])
    config.target = "cpu"
    content = json.loads(str(config))
    assert (content["target"], content["framework"], content["nodeCount"]) == ("cpu", "Python", 1)
    assert content["environment"]["python"]["condaDependencies"]["dependencies"] == ["scikit-learn"]
    data = Datastore(ws).path("digits")
    assert repr(ScriptRunConfig("src", "train.py", ["--data", data], run_config=config)) == (
        "ScriptRunConfig(source_directory='src', script='train.py', "
        "arguments=['--data', DataReference('workspaceblobstore', 'digits')], target='cpu', "
        "environment=Environment(name='default-environment', version=None))"
    )
    assert repr(PyTorchConfiguration()) == "PyTorchConfiguration(communication_backend='Nccl', node_count=1)"
    assert repr(MpiConfiguration(2)) == "MpiConfiguration(process_count_per_node=2, node_count=1)"
    registry = ContainerRegistry()
    registry.address, registry.password = "images.lab", "s3cret"
    assert repr(registry) == "ContainerRegistry(address='images.lab')"
