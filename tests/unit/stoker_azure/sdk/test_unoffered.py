"""Names of Azure's SDK: each one works, or says what to do instead.

`azureml_core_names.txt` has the public names of azureml-core 1.61 with their parameters.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stoker.azure  # noqa: F401  # provides azureml

from azureml.core import ContainerRegistry, Environment, Experiment, Image, Model, Workspace  # isort: skip
from azureml.core.authentication import InteractiveLoginAuthentication
from azureml.core.conda_dependencies import CondaDependencies
from azureml.core.image import ContainerImage
from azureml.core.run import _OfflineRun
from azureml.core.webservice import AksWebservice, Webservice
from azureml.data.datapath import DataPath
from azureml.exceptions import AzureMLException, UserErrorException

from stoker_azure.exceptions import NotOffered
from stoker_azure.sdk.services.records import ServiceRecord, Services, now
from stoker_azure.sdk.unoffered import CLASSES, NotAClass, UnofferedMethod, UnofferedValue

LINES = (Path(__file__).parent / "azureml_core_names.txt").read_text().splitlines()
MODULES = [line for line in LINES if line.startswith("azureml")]
MEMBERS = [line for line in LINES if line[:1].isupper()]
HOME: dict[str, str] = {}
for line in MODULES:
    for one in line.partition(":")[2].split():
        # runconfig has classes for its files of the same names.
        HOME.setdefault(one, line.partition(":")[0])
OFFERED_NOWHERE = [line for line in MODULES if ":" not in line]


def class_of(name: str) -> Any:
    return getattr(importlib.import_module(HOME[name]), name)


def named(line: str) -> tuple[str, str, list[str]]:
    """The class, the name and the parameters of a line."""
    path, _, parameters = line.rstrip(")").partition("(")
    owner, _, name = path.partition(".")
    return owner, name, [one for one in parameters.split(", ") if one]


@pytest.fixture(autouse=True)
def ws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A workspace with a model and a service that nobody has started."""
    monkeypatch.setenv("STOKER_WORKSPACE", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    ws = Workspace.from_config()
    (tmp_path / "model.pkl").write_bytes(b"1")
    Model.register(ws, "model.pkl", "churn")
    record = ServiceRecord(
        name="churn-1", kind="aks", compute_name=None, keywords={"scoring_timeout_ms": 900}, tags={}, properties={},
        models=["churn:1"], inference=None, revision=1, pid=1, host="127.0.0.1", port=1, auth=True, token_auth=False,
        replicas=2, made_keys=False, created_at=now(), updated_at=now(),
    )  # fmt: skip
    services = Services(ws.local)
    with services.changing():
        services.write(record)
    return ws


@pytest.fixture
def objects(ws: Workspace) -> dict[str, Any]:
    """One of each class whose values are attributes of objects."""
    (ws.local.root / "data").mkdir(exist_ok=True)
    store = ws.get_default_datastore()
    dataset = class_of("Dataset").File.from_files((store, "data")).register(ws, "data")
    service = Webservice(ws, "churn-1")
    with Experiment(ws, "digits").start_logging() as run:
        pass
    return {
        "Model": Model(ws, "churn"),
        "Webservice": service,
        "AksWebservice": service,
        "Workspace": ws,
        "Environment": Environment("mine"),
        "Experiment": Experiment(ws, "digits"),
        "Run": class_of("Run").get(ws, run.id),
        "FileDataset": dataset,
        "DataPath": DataPath(store, "a"),
        "OutputFileDatasetConfig": class_of("OutputFileDatasetConfig")(),
        "RunConfiguration": class_of("RunConfiguration")(),
        "ContainerRegistry": ContainerRegistry(),
    }


@pytest.mark.parametrize(
    "line", [line for line in MODULES if ":" in line], ids=lambda line: line.split(":")[0]
)
def test_every_class_of_a_module_can_be_imported(line: str) -> None:
    """It works, or it raises `NotOffered` with what to do when it is used."""
    name, _, classes = line.partition(":")
    module = importlib.import_module(name)
    for one in classes.split():
        found = getattr(module, one)
        if isinstance(found, NotAClass):
            with pytest.raises(NotOffered, match=rf"^{one} is not offered: .{{15,}}"):
                found("any", arguments=1)


@pytest.mark.parametrize("name", OFFERED_NOWHERE)
def test_unoffered_module_names_a_remedy(name: str) -> None:
    """Its import raises an ImportError with a sentence."""
    with pytest.raises(ModuleNotFoundError, match=rf"^{name} is not offered: .{{15,}}"):
        importlib.import_module(name)


def members() -> Iterator[Any]:
    """Methods and constructors, by class."""
    for owner in dict.fromkeys(named(line)[0] for line in MEMBERS):
        yield owner, [line for line in MEMBERS if named(line)[0] == owner and "(" in line]


@pytest.mark.parametrize(
    ("owner", "lines"), [*members()], ids=lambda one: one if isinstance(one, str) else ""
)
def test_every_method_takes_its_documented_parameters(owner: str, lines: list[str]) -> None:
    """It has them, or raises `NotOffered` with what to do when it is called."""
    cls = class_of(owner)
    if isinstance(cls, NotAClass):
        lines = [line for line in lines if named(line)[1]]
    for line in lines:
        _, name, documented = named(line)
        found = getattr(cls, name) if name else cls
        if isinstance(inspect.getattr_static(cls, name or "__init__", None), UnofferedMethod):
            with pytest.raises(NotOffered, match=rf"^{cls.__name__}\.{name} is not offered: .{{15,}}"):
                found("any", arguments=1)
            continue
        taken = inspect.signature(found).parameters
        takes_any = any(one.kind is one.VAR_KEYWORD for one in taken.values())
        lacking = [one for one in documented if one not in taken]
        assert takes_any or not lacking, f"{line}: {lacking}"


@pytest.mark.parametrize("in_script", ["started", "offline"])
def test_every_method_of_a_run_is_there_for_its_script(ws: Workspace, in_script: str) -> None:
    """A run that this process logs to, and one outside of runs, has each name, or says what to do."""
    run: Any = Experiment(ws, "digits").start_logging() if in_script == "started" else _OfflineRun()
    with run:
        for line in (line for line in MEMBERS if line.startswith("Run.") and "(" in line):
            _, name, documented = named(line)
            try:
                found = getattr(run, name)
            except NotImplementedError:
                continue
            taken = inspect.signature(found).parameters
            takes_any = any(one.kind is one.VAR_KEYWORD for one in taken.values())
            assert takes_any or set(documented) <= set(taken), line


def test_every_value_is_there(objects: dict[str, Any]) -> None:
    """It can be read, or says what to do; nothing that code for Azure reads is an AttributeError."""
    for line in (line for line in MEMBERS if "(" not in line):
        owner, name, _ = named(line)
        found = objects.get("Run" if owner == "ScriptRun" else owner, class_of(owner))
        unoffered = inspect.getattr_static(type(found), name, None)
        if isinstance(unoffered, UnofferedValue):
            with pytest.raises(NotOffered, match=rf"^{type(found).__name__}\.{name} is not offered: .+"):
                getattr(found, name)
        else:
            getattr(found, name)


def test_the_table_of_modules_has_names_of_azure_alone() -> None:
    """Each name that is listed as not offered is a class or function of Azure's."""
    assert {name for table in CLASSES.values() for name in table} <= set(HOME)


def test_keywords_of_a_deployment_are_attributes(objects: dict[str, Any]) -> None:
    """Attributes that were not set are None; other names raise AttributeError."""
    service = objects["Webservice"]
    assert (service.scoring_timeout_ms, service.cpu_cores, service.image) == (900, None, None)
    assert not hasattr(service, "nothing")
    assert not hasattr(service, "location"), "a keyword of ACI alone"


@pytest.mark.parametrize(
    ("made", "instead"),
    [
        (lambda: ContainerImage.image_configuration("score.py", runtime="python"), "InferenceConfig"),
        (lambda: Image(None, "image"), "InferenceConfig"),
        (lambda: Image.list(None), "Model.deploy"),
        (lambda: Webservice.deploy_from_image(None, "name", None), "InferenceConfig"),
        (lambda: InteractiveLoginAuthentication().get_authentication_header(), "get_keys"),
    ],
)  # fmt: skip
def test_classes_that_are_not_there_say_so(made: Any, instead: str) -> None:
    """They can be imported; each use raises an exception of Azure's with the alternative."""
    with pytest.raises(NotImplementedError, match=instead) as raised:
        made()
    assert isinstance(raised.value, AzureMLException)


def test_older_modules_are_the_same() -> None:
    """Classes can be imported from the modules in which they are defined on Azure."""
    from azureml.core.image import container
    from azureml.core.webservice import aks

    assert container.ContainerImage is ContainerImage
    assert aks.AksWebservice is AksWebservice


@pytest.mark.parametrize(
    "name", ["core.compute.KubernetesCompute", "core.Keyvault", "core.runconfig.JarLibrary"]
)
def test_a_class_that_is_not_offered_can_be_imported(name: str) -> None:
    """A script that only imports it runs; other names are missing as ever."""
    module, _, one = name.rpartition(".")
    names: dict[str, Any] = {}
    exec(f"from azureml.{module} import {one}", names)
    assert not isinstance(1, names[one])
    with pytest.raises(NotOffered, match=rf"^{one}\.get is not offered: "):
        names[one].get("x")
    with pytest.raises(ImportError, match="cannot import name 'Nothing'"):
        exec(f"from azureml.{module} import Nothing")


def test_an_image_or_dockerfile_is_kept(tmp_path: Path) -> None:
    """With the packages that are named beside it, of which there is one file."""
    (tmp_path / "myenv.yml").write_text("dependencies: [numpy=2]\n")
    (tmp_path / "requirements.txt").write_text("numpy>=2\n")
    registry = ContainerRegistry()
    registry.password = "secret"
    imaged = Environment.from_docker_image("a", "mine:1", registry, conda_specification="myenv.yml")
    built = Environment.from_dockerfile("b", "FROM mine:1", pip_requirements="requirements.txt")
    built.docker.base_image_registry.address = "registry.example"
    built.spark = "kept"
    assert imaged.python.conda_dependencies.conda_packages == ["numpy=2"]
    assert imaged.docker.to_json() == {"baseImage": "mine:1"}
    assert built.python.conda_dependencies.pip_packages == ["numpy>=2"]
    assert built.docker.to_json() == {"baseDockerfile": "FROM mine:1"}
    assert built.spark == "kept"
    assert Environment.from_docker_image("c", "mine:1").python.conda_dependencies.conda_packages == []
    with pytest.raises(UserErrorException, match="not both"):
        Environment.from_dockerfile("d", "x", "myenv.yml", "requirements.txt")


def test_tensorflow_is_added_by_its_own_names() -> None:
    """As other packages, for conda or for pip."""
    packages = CondaDependencies()
    packages.add_tensorflow_conda_package("gpu", "2.4")
    packages.add_tensorflow_pip_package()
    assert packages.conda_packages == ["tensorflow-gpu=2.4"]
    assert packages.pip_packages == ["tensorflow"]


def test_a_configuration_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Without its keys."""
    AksWebservice.deploy_configuration(num_replicas=2).print_deploy_configuration()
    assert capsys.readouterr().out == "AksWebservice.deploy_configuration({'num_replicas': 2})\n"
