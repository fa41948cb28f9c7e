"""Environments and inference configurations of deployment code, and what `stoker serve` makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import stoker.azure  # noqa: F401  # provides azureml

from azureml.core.conda_dependencies import CondaDependencies  # isort: skip
from azureml.core.environment import DEFAULT_CPU_IMAGE, DEFAULT_GPU_IMAGE, Environment
from azureml.core.model import InferenceConfig
from azureml.exceptions import UserErrorException, WebserviceException

from stoker.environments.files import read_environment
from stoker_azure.config import InferenceConfig as ServerInferenceConfig

MYENV = """
name: project_environment
dependencies:
  # The python interpreter version.
- python=3.6.2

- pip:
  - azureml-defaults>=1.0.45
  - numpy
channels:
- conda-forge
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a script and a conda file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "score.py").write_text("def init(): ...\n")
    (tmp_path / "myenv.yml").write_text(MYENV)
    return tmp_path


def served(config: InferenceConfig) -> ServerInferenceConfig:
    """The settings that `stoker serve --inference-config` reads."""
    file = Path("inferenceconfig.json")
    file.write_text(json.dumps(config.to_json()))
    return ServerInferenceConfig.from_file(file)


def test_a_conda_file_is_kept_as_it_was_read() -> None:
    """Its packages, channels and Python can be read, and nothing is added."""
    packages = CondaDependencies("myenv.yml")
    assert packages.as_dict() == yaml.safe_load(MYENV)
    assert packages.conda_packages == ["python=3.6.2"]
    assert packages.pip_packages == ["azureml-defaults>=1.0.45", "numpy"]
    assert packages.conda_channels == ["conda-forge"]
    assert packages.get_python_version() == "3.6.2"
    assert yaml.safe_load(packages.serialize_to_string()) == packages.as_dict()


def test_packages_are_added_replaced_and_removed() -> None:
    """They are matched by name, in any version and spelling."""
    packages = CondaDependencies.create(
        pip_packages=["numpy", "scikit-learn==1.5"], conda_packages=["scipy=1.9"], python_version="3.11"
    )
    packages.add_pip_package("NumPy>=2")
    packages.add_pip_package("pandas")
    packages.remove_pip_package("scikit_learn")
    packages.add_conda_package("conda-forge::scipy=1.10")
    packages.add_conda_package("libgomp")
    packages.remove_conda_package("libgomp")
    packages.set_python_version("3.12")
    packages.set_pip_option("--pre")
    packages.set_pip_index_url("--index-url https://a.example/simple")
    packages.set_pip_index_url("--index-url https://b.example/simple")
    packages.add_channel("conda-forge")
    packages.add_channel("conda-forge")
    assert packages.as_dict() == {
        "name": "project_environment",
        "dependencies": [
            "python=3.12",
            "conda-forge::scipy=1.10",
            {"pip": ["--index-url https://b.example/simple", "--pre", "NumPy>=2", "pandas"]},
        ],
        "channels": ["conda-forge"],
    }
    assert packages.pip_options == ["--index-url https://b.example/simple", "--pre"]
    packages.set_pip_requirements(["onnx"])
    packages.remove_pip_option("--pre")
    packages.remove_channel("conda-forge")
    assert (packages.pip_packages, packages.conda_channels) == (["onnx"], [])


def test_a_conda_file_is_written_where_stoker_reads_it(folder: Path) -> None:
    """By `save` and `save_to_file`, in a form that `stoker serve --environment` takes."""
    packages = CondaDependencies.create(pip_packages=["numpy"], python_version="3.11")
    assert packages.save() == "conda_dependencies.yml"
    assert packages.save_to_file(str(folder), "other.yml") == "other.yml"
    for name in ("conda_dependencies.yml", "other.yml"):
        specification = read_environment(folder / name)
        assert [entry.text for entry in specification.entries] == ["numpy"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("dependencies: [", "is not YAML"),
        ("- numpy", "must have a list of dependencies"),
        ("dependencies: numpy", "must have a list of dependencies"),
        ("dependencies: [{npm: [left-pad]}]", "neither a package nor a list under pip"),
        (None, "cannot be read"),
    ],
)
def test_bad_conda_file_is_refused_with_its_name(folder: Path, text: str | None, reason: str) -> None:
    """With the file's name and the reason."""
    if text is not None:
        (folder / "bad.yml").write_text(text)
    with pytest.raises(UserErrorException, match=rf"bad\.yml.*{reason}"):
        Environment.from_conda_specification("bad", "bad.yml")


def test_a_requirements_file_becomes_a_list_for_pip(folder: Path) -> None:
    """Without comments; files that it names are found from elsewhere too."""
    (folder / "requirements.txt").write_text("# ours\nnumpy>=2  # newer\n\n-r more.txt\n--constraint=c.txt\n")
    environment = Environment.from_pip_requirements("mine", "requirements.txt", pip_version="24")
    packages = environment.python.conda_dependencies
    assert packages.pip_packages == ["numpy>=2"]
    assert packages.pip_options == [f"-r {folder}/more.txt", f"--constraint {folder}/c.txt"]
    with pytest.raises(UserErrorException, match=r"nothing\.txt cannot be read"):
        Environment.from_pip_requirements("mine", "nothing.txt")


def test_a_clone_is_independent() -> None:
    """It has another name, and its changes are its own."""
    environment = Environment.from_conda_specification(name="myenv", file_path="myenv.yml")
    other = environment.clone("other")
    other.python.conda_dependencies.add_pip_package("pandas")
    assert other.name == "other"
    assert environment.python.conda_dependencies.pip_packages == ["azureml-defaults>=1.0.45", "numpy"]


@pytest.mark.parametrize(("is_user_managed", "managed"), [(None, ""), (True, "user"), (False, "system")])
def test_packages_are_installed_only_on_request(is_user_managed: bool | None, managed: str) -> None:
    """Azure's default is to install them; here that needs a request."""
    environment = Environment.from_conda_specification("myenv", "myenv.yml")
    assert environment.python.user_managed_dependencies is False
    if is_user_managed is not None:
        environment.python.user_managed_dependencies = is_user_managed
    assert served(InferenceConfig("score.py", environment=environment)).managed == managed


def test_the_configuration_of_the_how_to(folder: Path) -> None:
    """The script, its packages, its image; as the server reads it."""
    environment = Environment.from_conda_specification(name="myenv", file_path="myenv.yml")
    environment.docker.base_image = DEFAULT_GPU_IMAGE
    environment.environment_variables["A"] = "b"
    config = served(InferenceConfig(entry_script="score.py", environment=environment, description="Digits."))
    assert (config.entry_script, config.source_directory) == (folder / "score.py", None)
    assert config.conda == yaml.safe_load(MYENV)
    assert dict(config.environment_variables) == {"A": "b"}
    assert config.description == "Digits."
    (note,) = config.notes
    assert DEFAULT_GPU_IMAGE in note
    assert "kept for the cluster" in note


def test_default_image_is_left_out_of_json() -> None:
    """The default image, none, and an environment without packages."""
    environment = Environment("mine")
    assert environment.docker.base_image == DEFAULT_CPU_IMAGE
    for image in (DEFAULT_CPU_IMAGE, None):
        environment.docker.base_image = image
        assert served(InferenceConfig("score.py", environment=environment)).notes == ()


def test_the_older_form_becomes_an_environment(folder: Path) -> None:
    """It has a conda file in the source directory, and options of the image."""
    source = folder / "source"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "score.py").touch()
    (source / "env.yml").write_text(MYENV)
    config = InferenceConfig(
        entry_script="sub/score.py",
        runtime="python",
        conda_file="env.yml",
        source_directory="source",
        enable_gpu=True,
        base_image="mine:1",
        cuda_version="10.0",
    )
    assert config.environment is not None
    assert config.environment.name == "env"
    read = served(config)
    assert (read.entry_script, read.source_directory) == (source / "sub" / "score.py", source)
    assert read.conda == yaml.safe_load(MYENV)
    assert any("baseImage mine:1, enableGpu true, cudaVersion 10.0" in note for note in read.notes)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"entry_script": "missing.py"}, r"entry_script 'missing\.py' is not a Python file"),
        ({"entry_script": "myenv.yml"}, "is not a Python file"),
        ({"entry_script": ""}, "is not a Python file"),
        ({"entry_script": "score.py", "source_directory": "nowhere"}, "nowhere is not a folder"),
        ({"entry_script": "score.py", "runtime": "spark-py"}, "runtime must be python or python-slim"),
        (
            {"entry_script": "score.py", "environment": Environment("e"), "conda_file": "myenv.yml"},
            "conda_file cannot be given beside an environment",
        ),
    ],
)
def test_a_wrong_configuration_is_refused_when_it_is_made(arguments: dict[str, Any], reason: str) -> None:
    """Before anything is deployed."""
    with pytest.raises(WebserviceException, match=reason):
        InferenceConfig(**arguments)


def test_a_script_that_has_gone_is_missed() -> None:
    """`validate_configuration` looks again."""
    config = InferenceConfig("score.py")
    config.validate_configuration()
    Path("score.py").unlink()
    with pytest.raises(WebserviceException, match="is not a Python file"):
        config.validate_configuration()
