"""The YAML of online endpoints and deployments: effects, notes, refusals."""

import argparse
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from stoker.commands.serve import add_arguments, serve_settings
from stoker.errors import InvalidSettings
from stoker.settings.collection import CollectionSettings
from stoker.settings.server import ServerSettings
from stoker.settings.traffic import Endpoint, keys_owner
from stoker_azure.config import OnlineDeployment, OnlineEndpoint
from stoker_azure.config.kept_for_clusters import KEPT_BECAUSE
from stoker_azure.config.online_fields import DEPLOYMENT_FIELDS, ENDPOINT_FIELDS

# As Azure's samples have it, with all that its reference of the schema lists.
BLUE: dict[str, Any] = {
    "$schema": "https://azuremlschemas.azureedge.net/latest/managedOnlineDeployment.schema.json",
    "name": "blue",
    "endpoint_name": "my-endpoint",
    "description": "the first one",
    "tags": {"team": "shop"},
    "model": {"path": "../model-1/model/"},
    "code_configuration": {"code": "../model-1/onlinescoring/", "scoring_script": "score.py"},
    "environment": {
        "conda_file": "../model-1/environment/conda.yaml",
        "image": "mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu20.04:latest",
    },
    "environment_variables": {"WORKERS": 2, "DEBUG": True},
    "instance_type": "Standard_DS3_v2",
    "instance_count": 3,
    "app_insights_enabled": True,
    "egress_public_network_access": "Disabled",
    "request_settings": {
        "request_timeout_ms": 3000,
        "max_concurrent_requests_per_instance": 10,
        "max_queue_wait_ms": 250,
    },
    "liveness_probe": {
        "initial_delay": 10,
        "period": 10,
        "timeout": 2,
        "success_threshold": 1,
        "failure_threshold": 30,
    },
    "readiness_probe": {"initial_delay": 10},
    "scale_settings": {"type": "default"},
    "data_collector": {
        "collections": {"model_inputs": {"enabled": "True"}, "model_outputs": {"enabled": "False"}},
        "sampling_rate": 0.25,
    },
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The folders of Azure's sample: the YAML beside the model's folder, in which all that it names is."""
    model = tmp_path / "model-1"
    for folder in ("model", "onlinescoring", "environment"):
        (model / folder).mkdir(parents=True)
    (model / "model" / "sklearn_regression_model.pkl").write_bytes(b"pickle")
    (model / "onlinescoring" / "score.py").write_text("def init(): ...\ndef run(raw_data): ...\n")
    (model / "environment" / "conda.yaml").write_text("dependencies: [python=3.11, pip: [scikit-learn]]\n")
    (tmp_path / "sample").mkdir()
    return tmp_path / "sample"


def written(project: Path, content: object, name: str = "blue.yml") -> Path:
    file = project / name
    file.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return file


def read(project: Path, **changes: Any) -> OnlineDeployment:
    return OnlineDeployment.from_file(written(project, {**BLUE, **changes}))


def settings(*arguments: str | Path) -> ServerSettings:
    """The settings of `stoker serve` with these arguments."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return serve_settings(parser.parse_args(list(map(str, arguments))))


def test_a_deployment_has_its_effects(project: Path) -> None:
    """Paths are relative to the YAML, and every setting of the sample becomes one of the model."""
    model = read(project).model(project / "run")
    code = project.parent / "model-1" / "onlinescoring"
    assert model.path == code / "score.py"
    assert model.name == "blue"
    assert model.description == "the first one"
    assert model.environment is not None
    assert model.environment.resolve() == project.parent / "model-1" / "environment" / "conda.yaml"
    assert model.environment_variables == {
        "AML_APP_ROOT": str(code.parent),
        "AZUREML_SOURCE_DIRECTORY": "onlinescoring",
        "WORKERS": "2",
        "DEBUG": "true",
    }
    assert (model.replicas, model.timeout_ms, model.max_queue_wait_ms) == (3, 3000, 250)
    assert model.max_concurrent_requests == 30
    assert model.collect == CollectionSettings(sample_rate=0.25, collections=("inputs",))


@pytest.mark.parametrize(
    ("path", "inside"),
    [
        ("../model-1/model/", "model/sklearn_regression_model.pkl"),
        ("../model-1/model/sklearn_regression_model.pkl", "sklearn_regression_model.pkl"),
    ],
)
def test_the_model_lies_as_on_azure(project: Path, path: str, inside: str) -> None:
    """AZUREML_MODEL_DIR holds what `path` names under its own name, and nothing else; a second start finds it."""
    deployment = read(project, model={"path": path, "name": "mine", "version": 7})
    folder = deployment.model(project / "run").model_dir
    assert folder is not None
    assert (folder / inside).read_bytes() == b"pickle"
    assert [entry.name for entry in folder.iterdir()] == [inside.partition("/")[0]]
    assert folder.parts[-3:] == ("azureml-models", "mine", "7")
    assert deployment.model(project / "run").model_dir == folder


@pytest.mark.parametrize(
    ("reference", "registered"),
    [("azureml:credit:4", "credit:4"), ("azureml:credit@latest", "credit"), ("azureml:credit", "credit")],
)
def test_registered_models(project: Path, reference: str, registered: str) -> None:
    """References are to models that are registered here: served alone without code, used by the script with it."""
    scripted = read(project, model=reference).model(project / "run")
    assert (scripted.uses, scripted.model_dir, scripted.registered) == ((registered,), None, None)
    alone = read(project, model=reference, code_configuration=None).model(project / "run")
    assert (alone.registered, alone.uses, alone.path) == (registered, None, None)


def test_a_model_without_code_is_served_as_it_is(project: Path) -> None:
    """It serves a folder of Triton's or MLflow's layout."""
    model = read(project, code_configuration=None, model={"path": "../model-1/model", "type": "triton_model"})
    assert model.model(project / "run").path == project / "../model-1/model"


def test_conda_in_the_yaml(project: Path) -> None:
    """Packages that stand in the YAML become a file of conda; one that is named by file: is read beside itself."""
    conda = {"dependencies": ["python=3.11"]}
    environment = (
        read(project, environment={"image": "x", "conda_file": conda}).model(project / "run").environment
    )
    assert environment is not None
    assert yaml.safe_load(environment.read_text()) == conda
    written(project.parent / "model-1", {"name": "env", "conda_file": "environment/conda.yaml"}, "env.yml")
    named = read(project, environment="file:../model-1/env.yml").model(project / "run").environment
    assert named is not None
    assert named.samefile(project.parent / "model-1" / "environment" / "conda.yaml")


def test_online_settings_without_effect_are_noted(project: Path) -> None:
    """Each setting without effect is noted with the reason."""
    notes = "\n".join(read(project).notes())
    for name in (
        "instance_type",
        "liveness_probe.period",
        "readiness_probe.initial_delay",
        "app_insights_enabled",
    ):
        assert name in notes
    for name in ("egress_public_network_access disabled", "image mcr.microsoft.com", "tags team=shop"):
        assert name in notes
    assert "deployment blue, instance_count 3, " in notes
    assert "request_timeout_ms 3000" in notes
    assert "azureml:AzureML-sklearn@latest is one of Azure's workspace" in "\n".join(
        read(project, environment="azureml:AzureML-sklearn@latest").notes()
    )
    custom = read(project, data_collector={"collections": {"mine": {"enabled": True}}})
    assert custom.collect is False
    assert "data_collector keeps nothing" in "\n".join(custom.notes())


def test_kubernetes_deployments(project: Path) -> None:
    """Cores become threads, the fewest instances of the autoscaler replicas."""
    content = {
        **{name: value for name, value in BLUE.items() if name != "instance_count"},
        "$schema": "https://azuremlschemas.azureedge.net/latest/kubernetesOnlineDeployment.schema.json",
        "type": "kubernetes",
        "resources": {"requests": {"cpu": "2500m", "memory": "1Gi"}, "limits": {"nvidia.com/gpu": 1}},
        "scale_settings": {"type": "target_utilization", "min_instances": 2, "max_instances": 8},
    }
    deployment = OnlineDeployment.from_file(written(project, content))
    model = deployment.model(project / "run")
    assert (model.threads, model.replicas) == (2, 2)
    assert "autoscaling (scale_settings.max_instances 8)" in "\n".join(deployment.notes())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"instance_cuont": 2}, "no setting 'instance_cuont'; did you mean instance_count?"),
        ({"request_settings": {"request_timeout": 1}}, "did you mean request_settings.request_timeout_ms?"),
        ({"request_settings": 5}, "request_settings must be a mapping"),
        ({"instance_count": 0}, "instance_count must be a whole number from 1 to 64, got 0"),
        ({"instance_count": float("inf")}, "must be a whole number"),
        ({"name": None}, "name is missing"),
        ({"name": "two words"}, "cannot be a deployment name"),
        ({"model": "./model"}, "a file or folder is named by model: {path: ./model}"),
        ({"model": "azureml://registries/r/models/m/versions/1"}, "register it here"),
        ({"model": "azureml:credit@stable"}, "name the version"),
        ({"model": {"path": "azureml://datastores/a/paths/b"}}, "is not on this machine"),
        ({"model": {"path": "../elsewhere"}}, "is not there in"),
        ({"model": {"path": "../model-1/model", "kind": "x"}}, "no setting 'model.kind'"),
        ({"model": {"path": "../model-1/model", "type": "onnx"}}, "model.type must be custom_model or"),
        ({"model": None, "code_configuration": None}, "neither model nor code_configuration"),
        ({"code_configuration": {"code": "../model-1/onlinescoring"}}, "must have scoring_script"),
        (
            {"code_configuration": {"code": "../model-1/onlinescoring", "scoring_script": "main.py"}},
            "'main.py' is not a Python file",
        ),
        ({"environment": {"conda_file": "none.yml"}}, "is not a conda file"),
        ({"environment": {"dependencies": []}}, "no setting 'environment.dependencies'"),
        ({"environment": "curated"}, "must be azureml:NAME:VERSION or a mapping"),
        ({"$schema": "https://x/managedOnlineEndpoint.schema.json"}, "given with --endpoint"),
        ({"$schema": "https://x/batchDeployment.schema.json"}, "is no online deployment"),
        ({"resources": {"requests": {"cpu": "many"}}}, "must be a number of cores"),
        (
            {"data_collector": {"collections": {"model_inputs": {"enabled": "perhaps"}}}},
            "must be true or false",
        ),
    ],
)
def test_invalid_online_deployment_is_refused(project: Path, changes: dict[str, Any], message: str) -> None:
    """The message names the file and the setting, with what to do."""
    with pytest.raises(InvalidSettings, match=re.escape(message)) as refusal:
        read(project, **changes)
    assert "blue.yml" in str(refusal.value) or "deployment name" in message


def served(project: Path, endpoint: dict[str, Any] | None, *names: str) -> Any:
    """An endpoint's settings for deployments of these names."""
    deployments = [read(project, name=name) for name in names]
    file = (
        OnlineEndpoint()
        if endpoint is None
        else OnlineEndpoint.from_file(written(project, endpoint, "endpoint.yml"))
    )
    return file.imported(deployments)


@pytest.mark.parametrize(
    ("endpoint", "shares", "mirrors"),
    [
        (None, {"blue": 100, "green": 0}, {}),
        ({"auth_mode": "key"}, {"blue": 100, "green": 0}, {}),
        ({"traffic": {"green": 10, "blue": 90}}, {"blue": 90, "green": 10}, {}),
        ({"traffic": {"green": 100, "old": 0}}, {"blue": 0, "green": 100}, {}),
        ({"traffic": {"blue": 0, "green": 0}}, {"blue": 0, "green": 0}, {}),
        ({"defaults": {"deployment_name": "green"}}, {"blue": 0, "green": 100}, {}),
        (
            {"traffic": {"blue": 100}, "mirror_traffic": {"green": 10}},
            {"blue": 100, "green": 0},
            {"green": 10},
        ),
    ],
)
def test_traffic(project: Path, endpoint: Any, shares: dict[str, int], mirrors: dict[str, int]) -> None:
    """Shares are those of the file; without any the first deployment gets all."""
    assert served(project, endpoint, "blue", "green").endpoint == Endpoint("my-endpoint", shares, mirrors)


@pytest.mark.parametrize(
    ("endpoint", "message"),
    [
        ({"traffic": {"blue": 50}}, "must add up to 100 (or to 0), got 50"),
        (
            {"traffic": {"blue": 90, "red": 10}},
            "traffic names red, and the deployments that are given are blue",
        ),
        ({"traffic": {"blue": 90, "green": 20}}, "must not add up to more than 100"),
        ({"traffic": {"blue": "all"}}, "must be a whole number from 0 to 100 for each deployment"),
        ({"traffic": {"blue": 100}, "mirror_traffic": {"green": 60}}, "must not add up to more than 50"),
        ({"traffic": {"blue": 90, "green": 10}, "mirror_traffic": {"green": 10}}, "it is either or"),
        ({"name": "other"}, "several endpoints, my-endpoint, other"),
        ({"auth_mode": "none"}, "auth_mode must be key or aml_token or aad_token"),
        ({"trafic": {}}, "did you mean traffic?"),
        ({"$schema": "https://x/managedOnlineDeployment.schema.json"}, "given with --deployment"),
    ],
)
def test_contradictory_online_endpoint_is_refused(
    project: Path, endpoint: dict[str, Any], message: str
) -> None:
    """An endpoint that contradicts itself or its deployments is refused with the reason."""
    with pytest.raises(InvalidSettings, match=re.escape(message)):
        served(project, endpoint, "blue", "green")


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("key", {"auth": True, "token_auth": False}),
        ("aml_token", {"auth": False, "token_auth": True}),
        ("AAD_token", {"auth": False, "token_auth": True}),
    ],
)
def test_access(project: Path, mode: str, expected: dict[str, bool]) -> None:
    """Callers are known by keys or by tokens, in any case of the word."""
    assert served(project, {"auth_mode": mode}, "blue").server == expected


def test_the_command_line(project: Path) -> None:
    """Deployments and their endpoint become the models and the endpoint of the server; its own options win."""
    blue = written(project, BLUE)
    green = written(project, {**BLUE, "name": "green", "instance_count": 1}, "green.yml")
    endpoint = written(
        project,
        {"name": "my-endpoint", "auth_mode": "aml_token", "traffic": {"blue": 90, "green": 10}},
        "endpoint.yml",
    )
    files = (
        "--workspace",
        project / "work",
        "--deployment",
        blue,
        "--deployment",
        green,
        "--endpoint",
        endpoint,
    )
    made = settings(*files)
    assert [model.name for model in made.models] == ["blue", "green"]
    assert made.endpoint == Endpoint("my-endpoint", {"blue": 90, "green": 10})
    assert (made.auth, made.token_auth) == (False, True)
    assert any("blue 90 %, green 10 %" in note for note in made.notes)
    chosen = settings(*files, "--auth", "--batching", "none", "--system-managed", "--signature", "a,b")
    assert chosen.auth
    assert {(model.batching, model.environment_managed) for model in chosen.models} == {("none", "system")}
    assert {model.signature for model in chosen.models} == {("a", "b")}
    assert keys_owner(made.endpoint, "green") == "my-endpoint"
    assert keys_owner(made.endpoint, "other") == keys_owner(None, "other") == "other"


@pytest.mark.parametrize("others", [("score.py",), ("--model", "m"), ("--name", "n")])
def test_deployment_excludes_other_sources(project: Path, others: tuple[str, ...]) -> None:
    """A deployment stands for PATH and its settings."""
    with pytest.raises(InvalidSettings, match="both say what is served"):
        settings(*others, "--deployment", written(project, BLUE))


def test_an_endpoint_needs_deployments(project: Path) -> None:
    """An endpoint alone serves nothing."""
    with pytest.raises(InvalidSettings, match="give each with --deployment"):
        settings("--endpoint", written(project, {"name": "e"}, "endpoint.yml"))


def test_every_setting_has_a_fate() -> None:
    """No name stands twice, and each setting without effect has a reason."""
    for fields in (DEPLOYMENT_FIELDS, ENDPOINT_FIELDS):
        names = [field.name for field in fields]
        assert len(set(names)) == len(names)
        assert {field.group for field in fields} <= {"here", "silent", *KEPT_BECAUSE}
