"""Names of Azure's SDK that deployment code uses: each one works, or says what to do instead."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

import stoker.azure  # noqa: F401  # provides azureml

from azureml.core import ContainerRegistry, Environment, Image, Model, Workspace  # isort: skip
from azureml.core.authentication import InteractiveLoginAuthentication
from azureml.core.compute import AksCompute, ComputeTarget
from azureml.core.conda_dependencies import CondaDependencies
from azureml.core.image import ContainerImage
from azureml.core.model import InferenceConfig
from azureml.core.webservice import AciWebservice, AksWebservice, LocalWebservice, Webservice
from azureml.exceptions import AzureMLException, UserErrorException

from stoker_azure.exceptions import NotOffered
from stoker_azure.sdk.services.records import ServiceRecord, Services, now
from stoker_azure.sdk.unoffered import UnofferedMethod, UnofferedValue

# The public names of azureml-core 1.61.
NAMES = {
    Model: "register get_model_path download list serialize update update_tags_properties add_tags remove_tags "
    "add_properties add_dataset_references delete print_configuration deploy package profile get_sas_urls Framework",
    Webservice: "deploy deploy_from_model deploy_from_image check_for_existing_webservice deploy_local_from_model "
    "wait_for_deployment update_deployment_state list get_logs run get_keys regen_key get_token update delete "
    "serialize",
    AksWebservice: "deploy_configuration add_tags remove_tags add_properties get_access_token",
    AciWebservice: "deploy_configuration add_tags remove_tags add_properties",
    LocalWebservice: "deploy_configuration deploy_to_cloud reload port STATE_RUNNING",
    Workspace: "from_config create get list write_config update_dependencies delete get_details "
    "get_mlflow_tracking_uri get_default_compute_target get_default_datastore set_default_datastore "
    "get_default_keyvault add_private_endpoint delete_private_endpoint_connection list_keys diagnose_workspace "
    "set_connection list_connections get_connection delete_connection get_run update sync_keys setup",
    Environment: "register label clone get list from_dockerfile from_docker_image from_docker_build_context "
    "from_conda_specification from_existing_conda_environment from_pip_requirements add_private_pip_wheel "
    "get_image_details build build_local save_to_directory load_from_directory",
    ComputeTarget: "create attach list wait_for_completion refresh_state get_status delete detach serialize "
    "deserialize",
    AksCompute: "provisioning_configuration attach_configuration update get_credentials ClusterPurpose",
    ContainerImage: "image_configuration create list wait_for_creation run serialize",
    InferenceConfig: "validate_configuration",
}
VALUES = {
    "model": "created_by created_time description experiment_name id model_framework model_framework_version name "
    "parent_id properties resource_configuration run run_id sample_input_dataset sample_output_dataset tags url "
    "version workspace",
    "service": "auth_enabled autoscale_enabled autoscaler collect_model_data compute_name compute_type "
    "container_resource_requirements cpu_cores created_by created_time data_collection deployment_status description "
    "enable_app_insights environment error image image_digest image_id liveness_probe_requirements "
    "max_concurrent_requests_per_container max_request_wait_time memory_gb models name namespace num_replicas "
    "properties scoring_timeout_ms scoring_uri state swagger_uri tags token_auth_enabled updated_time workspace",
    "workspace": "name subscription_id resource_group location service_context sku tags discovery_url "
    "compute_targets datastores datasets private_endpoints experiments environments images models "
    "webservices linked_services",
    "environment": "name version python docker spark databricks r environment_variables inferencing_stack_version",
}
CASES = [(owner, name) for owner, names in NAMES.items() for name in names.split()]


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
    """One of each."""
    return {
        "model": Model(ws, "churn"),
        "service": Webservice(ws, "churn-1"),
        "workspace": ws,
        "environment": Environment("mine"),
    }


@pytest.mark.parametrize(("owner", "name"), CASES, ids=[f"{owner.__name__}.{name}" for owner, name in CASES])
def test_every_name_is_there(owner: Any, name: str) -> None:
    """It works, or it raises `NotOffered` with what to do when it is called."""
    found = getattr(owner, name)
    if isinstance(inspect.getattr_static(owner, name, None), UnofferedMethod) or owner is ContainerImage:
        with pytest.raises(NotOffered, match=rf"^{owner.__name__}\.{name} is not offered: .{{15,}}"):
            found("any", arguments=1)


@pytest.mark.parametrize("kind", VALUES)
def test_every_value_is_there(objects: dict[str, Any], kind: str) -> None:
    """It can be read, or says what to do; nothing that code for Azure reads is an AttributeError."""
    for name in VALUES[kind].split():
        unoffered = isinstance(inspect.getattr_static(type(objects[kind]), name, None), UnofferedValue)
        if unoffered:
            with pytest.raises(
                NotOffered, match=rf"^{type(objects[kind]).__name__}\.{name} is not offered: .+"
            ):
                getattr(objects[kind], name)
        else:
            getattr(objects[kind], name)


def test_keywords_of_a_deployment_are_attributes(objects: dict[str, Any]) -> None:
    """What was not said is None; other names are missing as ever."""
    service = objects["service"]
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
    """They can be imported, and what is done with them says what to do instead, as an exception of Azure's."""
    with pytest.raises(NotImplementedError, match=instead) as raised:
        made()
    assert isinstance(raised.value, AzureMLException)


def test_older_modules_are_the_same() -> None:
    """Classes can be imported from the modules in which they are defined on Azure."""
    from azureml.core.image import container
    from azureml.core.webservice import aks

    assert container.ContainerImage is ContainerImage
    assert aks.AksWebservice is AksWebservice


@pytest.mark.parametrize("name", ["KubernetesCompute", "ComputeInstance"])
def test_compute_that_trains_is_explained(name: str) -> None:
    """A script that imports it is told what to do; other names are missing as ever."""
    with pytest.raises(ImportError, match=rf"azureml\.core\.compute\.{name} is for training on Azure"):
        exec(f"from azureml.core.compute import {name}")
    with pytest.raises(ImportError, match="cannot import name 'Nothing'"):
        exec("from azureml.core.compute import Nothing")


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
