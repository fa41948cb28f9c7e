"""Inference configurations for Azure, in their older and their newer form."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from stoker.commands.serve import add_arguments, serve_settings
from stoker.environments.files import read_environment
from stoker.errors import InvalidSettings
from stoker.settings.model import ModelSettings
from stoker_azure.config import InferenceConfig

CONDA = {
    "channels": ["conda-forge"],
    "dependencies": ["python=3.11", {"pip": ["azureml-defaults", "scikit-learn==1.5.0"]}],
    "name": "project_environment",
}
# The newer form as the CLI's documentation has it, with all that `Environment` writes.
NESTED = {
    "entryScript": "score.py",
    "sourceDirectory": "aml_folder",
    "environment": {
        "docker": {
            "arguments": [],
            "baseDockerfile": None,
            "baseImage": "mcr.microsoft.com/azureml/base",
            "baseImageRegistry": {"address": None, "username": None, "password": None},
            "enabled": False,
            "sharedVolumes": True,
            "shmSize": None,
        },
        "environmentVariables": {"EXAMPLE_ENV_VAR": "EXAMPLE_VALUE", "WORKERS": 2},
        "inferencingStackVersion": "latest",
        "name": "my-deploy-env",
        "python": {
            "baseCondaEnvironment": None,
            "condaDependencies": CONDA,
            "condaDependenciesFile": None,
            "interpreterPath": "python",
            "userManagedDependencies": False,
        },
        "spark": {"packages": [], "precachePackages": True, "repositories": []},
        "version": "1",
    },
}
FLAT = {
    "entryScript": "score.py",
    "runtime": "python",
    "condaFile": "myenv.yml",
    "extraDockerfileSteps": None,
    "sourceDirectory": None,
    "enableGpu": False,
    "baseImage": None,
    "baseImageRegistry": None,
    "cudaVersion": None,
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a script, a script in a folder of its own, and a conda file."""
    project = tmp_path / "project"
    for folder in (project, project / "aml_folder"):
        folder.mkdir()
        (folder / "score.py").write_text("def init(): ...\ndef run(raw_data): ...\n")
    (project / "myenv.yml").write_text(yaml.safe_dump(CONDA))
    return project


def written(project: Path, content: object) -> Path:
    file = project / "inferenceconfig.json"
    file.write_text(json.dumps(content))
    return file


def read(project: Path, content: object) -> InferenceConfig:
    return InferenceConfig.from_file(written(project, content))


def test_the_older_form(project: Path) -> None:
    """A script with its conda file; who installs that is Stoker's to decide."""
    config = read(project, FLAT)
    assert config.model(project / "conda") == ModelSettings(
        path=project / "score.py", environment=project / "myenv.yml"
    )
    assert config.notes == ()


def test_the_newer_form(project: Path) -> None:
    """The folder lies in AML_APP_ROOT as on Azure, and what Azure was to install Stoker installs."""
    config = read(project, NESTED)
    model = config.model(project / "conda")
    assert model.path == project / "aml_folder" / "score.py"
    assert model.environment_managed == "system"
    assert model.environment_variables == {
        "EXAMPLE_ENV_VAR": "EXAMPLE_VALUE",
        "WORKERS": "2",
        "AML_APP_ROOT": str(project),
        "AZUREML_SOURCE_DIRECTORY": "aml_folder",
    }
    assert config.notes == (
        "kept for the cluster: image (baseImage mcr.microsoft.com/azureml/base); no container is built here",
    )


def test_packages_of_the_configuration_become_a_file(project: Path) -> None:
    """One for each content, however often it is read; and it is one that Stoker reads as an environment."""
    first = read(project, NESTED).model(project / "conda").environment
    second = read(project, NESTED).model(project / "conda").environment
    assert first is not None
    assert first == second
    assert first.name == "inferenceconfig.json.yml"
    assert yaml.safe_load(first.read_text()) == CONDA
    assert "scikit-learn" in str(read_environment(first).entries)
    changed = json.loads(json.dumps(NESTED))
    changed["environment"]["python"]["condaDependencies"]["dependencies"][0] = "python=3.12"
    assert read(project, changed).model(project / "conda").environment != first


def test_variables_of_the_configuration_win(project: Path) -> None:
    """A given AML_APP_ROOT wins."""
    content = {**NESTED, "environment": {"environmentVariables": {"AML_APP_ROOT": "/srv"}}}
    variables = read(project, content).model(project).environment_variables
    assert variables == {"AML_APP_ROOT": "/srv", "AZUREML_SOURCE_DIRECTORY": "aml_folder"}


@pytest.mark.parametrize(("managed", "expected"), [(True, "user"), (False, "system"), (None, "user")])
def test_user_managed_dependencies_choose_the_environment(
    project: Path, managed: bool | None, expected: str
) -> None:
    """If `userManagedDependencies` is given, it decides who installs packages."""
    content = {"entryScript": "score.py", "environment": {"python": {"userManagedDependencies": managed}}}
    model = read(project, content).model(project)
    assert (model.environment_managed, model.environment) == (expected, None)


def test_paths_are_searched_beside_the_file_and_in_the_current_folder(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipeline calls the CLI from the repository's root: both places are good, and both are named."""
    deploy = tmp_path / "deploy"
    deploy.mkdir()
    content = {"entryScript": "score.py", "sourceDirectory": "aml_folder"}
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidSettings, match=r"sourceDirectory 'aml_folder' is not a folder in .* and "):
        read(deploy, content)
    monkeypatch.chdir(project)
    assert read(deploy, content).entry_script == project / "aml_folder" / "score.py"
    (deploy / "aml_folder").mkdir()
    (deploy / "aml_folder" / "score.py").touch()
    assert read(deploy, content).entry_script == deploy / "aml_folder" / "score.py"


def test_settings_without_effect_are_named(project: Path) -> None:
    """Settings of images and of other runtimes have no effect here, and each is named."""
    content = {
        **{key: value for key, value in FLAT.items() if key != "condaFile"},
        "baseImage": "mine",
        "enableGpu": True,
        "environment": {
            "python": {"interpreterPath": "/opt/miniconda/bin/python", "userManagedDependencies": True},
            "r": {"rVersion": "3.6"},
            "docker": {"shmSize": "2g"},
        },
    }
    assert read(project, content).notes == (
        "inferenceconfig.json: runtime, enableGpu, baseImage ignored, because environment is given, as on Azure",
        "kept for the cluster: image (shmSize 2g); no container is built here",
        "interpreterPath /opt/miniconda/bin/python is of the image: the script runs in this server's Python",
        "environment.r has no effect: Stoker runs Python alone",
    )


def test_image_of_the_older_form_is_named(project: Path) -> None:
    """It is named in the file's own words; false and null values are not."""
    content = {**FLAT, "baseImage": "mine", "enableGpu": True, "extraDockerfileSteps": "Dockerfile.steps"}
    assert read(project, content).notes == (
        "kept for the cluster: image (baseImage mine, extraDockerfileSteps Dockerfile.steps, enableGpu true); "
        "no container is built here",
    )


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({}, "entryScript must name a Python file, got None"),
        ({"entryScript": "missing.py"}, "entryScript 'missing.py' is not a Python file in "),
        ({"entryScript": "myenv.yml"}, "entryScript must name a Python file, got 'myenv.yml'"),
        ({"entryScript": 5}, "entryScript must name a Python file, got 5"),
        ({"entryScript": "score.py", "sourceDirectory": "nowhere"}, "'nowhere' is not a folder in "),
        (
            {"entryScript": "score.py", "condaFile": "nowhere.yml"},
            "condaDependenciesFile 'nowhere.yml' is not",
        ),
        ({"entryScript": "score.py", "runtime": "spark-py"}, "runtime must be python or python-slim"),
        ({"entryscript": "score.py"}, "there is no setting 'entryscript'; did you mean entryScript?"),
        ({"entryScript": "score.py", "conda_file": "x"}, "did you mean condaFile?"),
        (
            {"entryScript": "score.py", "environment": "AzureML-Minimal"},
            "environments are not registered here",
        ),
        ({"entryScript": "score.py", "environment": {"pyton": {}}}, "did you mean environment.python?"),
        ({"entryScript": "score.py", "environment": {"docker": "x"}}, "environment.docker must be an object"),
        (
            {"entryScript": "score.py", "environment": {"python": {"condaDependecies": {}}}},
            "did you mean environment.python.condaDependencies?",
        ),
        (
            {"entryScript": "score.py", "environment": {"python": {"userManagedDependencies": "no"}}},
            "userManagedDependencies must be true or false, got 'no'",
        ),
    ],
)
def test_bad_files_are_refused(project: Path, content: dict[str, Any], complaint: str) -> None:
    """The message names the file, the setting and the allowed or meant value."""
    with pytest.raises(InvalidSettings) as refused:
        read(project, content)
    assert complaint in str(refused.value)
    assert "inferenceconfig.json" in str(refused.value)


@pytest.mark.parametrize("variables", [{"A B": "x"}, {"A": ["x"]}, {"A": "x\0"}])
def test_bad_variables_are_refused(project: Path, variables: dict[str, Any]) -> None:
    """A variable that no process can have is the operator's mistake."""
    content = {"entryScript": "score.py", "environment": {"environmentVariables": variables}}
    with pytest.raises(InvalidSettings, match=r"inferenceconfig\.json: environment_variables must have"):
        read(project, content).model(project)


def settings_from(monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str | Path) -> Any:
    import argparse

    for name in ("STOKER_WORKSPACE", "AZUREML_ENTRY_SCRIPT", "AZUREML_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return serve_settings(parser.parse_args([*map(str, arguments), "--workspace", str(folder / "workspace")]))


def test_both_configurations_make_a_server(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`stoker serve --inference-config --deployment-config`, with a name and models as `az ml model deploy` has."""
    deployment = project / "deploymentconfig.json"
    deployment.write_text(
        json.dumps(
            {"computeType": "aks", "scoringTimeoutMs": 5, "tokenAuthEnabled": True, "maxQueueWaitMs": 7}
        )
    )
    settings = settings_from(
        monkeypatch,
        project,
        *("--inference-config", written(project, NESTED), "--deployment-config", deployment),
        *("--name", "digits", "--use-model", "tf-dnn-mnist", "--use-model", "labels:2"),
    )
    (model,) = settings.models
    assert (model.path, model.name) == (project / "aml_folder" / "score.py", "digits")
    assert (model.uses, model.environment_managed) == (("tf-dnn-mnist", "labels:2"), "system")
    assert model.environment.parent.parent == project / "workspace" / "run" / "conda"
    assert (settings.timeout_ms, settings.token_auth, settings.auth) == (5, True, False)
    assert settings.model_defaults == ModelSettings(max_queue_wait_ms=7)
    assert [note.partition("; ")[0] for note in settings.notes] == [
        "deploymentconfig.json (aks): tokens, scoring_timeout_ms 5, max_request_wait_time 7",
        "max_request_wait_time has no effect without replica_max_concurrent_requests",
        "kept for the cluster: image (baseImage mcr.microsoft.com/azureml/base)",
    ]


def test_options_win_over_the_inference_configuration(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--environment` names another one; a path beside it would be a second script."""
    file = written(project, FLAT)
    other = project / "other.yml"
    settings = settings_from(monkeypatch, project, "--inference-config", file, "--environment", other)
    assert settings.models[0].environment == other
    with pytest.raises(InvalidSettings, match="PATH and --inference-config both name"):
        settings_from(monkeypatch, project, project / "score.py", "--inference-config", file)
    with pytest.raises(InvalidSettings, match="--use-model describes PATH, which is missing"):
        settings_from(monkeypatch, project, "--use-model", "digits")
