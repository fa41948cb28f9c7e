"""From settings to models that know their environment, and to the processes that they run in."""

import argparse
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

import msgspec
import pytest

from stoker.commands import serve
from stoker.deployment import Deployment
from stoker.environments.build import Built
from stoker.environments.files import read_environment
from stoker.environments.specification import Specification
from stoker.errors import EnvironmentUnusable, InvalidSettings
from stoker.models.deployments import environment_of, resolve
from stoker.models.repository import Repository
from stoker.settings.loading import load_settings
from stoker.settings.model import ModelSettings
from stoker.settings.server import ServerSettings
from stoker.settings.workspace import Workspace
from stoker.supervisor.groups import group
from stoker.supervisor.stock import Stock


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "workspace").create()


def folder_of(path: Path, **files: str) -> Path:
    """A folder with these files; the last `_` stands for a dot."""
    path.mkdir()
    for name, text in files.items():
        (path / ".".join(name.rsplit("_", 1))).write_text(text)
    return path


def deployed(workspace: Workspace, *models: ModelSettings) -> list[Deployment]:
    with ExitStack() as leases:
        return resolve(ServerSettings(models=models), workspace, leases)


def lines(model: Deployment) -> list[str] | None:
    environment = environment_of(model)
    return None if environment is None else environment.specification.lines


def chosen(*arguments: str) -> ServerSettings:
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    return serve.serve_settings(parser.parse_args(arguments))


def test_a_deployment_file_names_the_environment_of_each_model(tmp_path: Path) -> None:
    """The path is relative to the file, like the others; the user manages it by default."""
    file = tmp_path / "deployment.yaml"
    file.write_text(
        "models:\n- {path: a.py, environment: a.yml, environment_managed: system}\n- {path: b.py}\n"
    )
    first, second = load_settings({}, {}, file, ()).models
    assert (first.environment, first.environment_managed) == (tmp_path / "a.yml", "system")
    assert (second.environment, second.environment_managed) == (None, "user")
    file.write_text("models:\n- {path: a.py, environment_managed: nobody}\n")
    with pytest.raises(InvalidSettings, match="environment_managed must be user or system"):
        load_settings({}, {}, file, ())


def test_the_command_line_names_it_for_the_models_that_it_names(tmp_path: Path) -> None:
    """For PATH and for registered models alike; without a model there is nothing to describe."""
    models = chosen("score.py", "--model", "digits", "--environment", "my.yml", "--system-managed").models
    assert [model.environment for model in models] == [Path("my.yml")] * 2
    assert [model.environment_managed for model in models] == ["system"] * 2
    assert chosen("score.py").models[0].environment_managed == "user"
    for option in (["--environment", "my.yml"], ["--system-managed"]):
        with pytest.raises(InvalidSettings, match="which are missing"):
            chosen(*option)


def test_a_file_beside_a_script_or_in_a_registered_folder_is_found(
    tmp_path: Path, workspace: Workspace
) -> None:
    """A pickle needs packages as a script does; the file of another model takes none of the project around it."""
    script = folder_of(tmp_path / "script", score_py="", model_pkl="", requirements_txt="six\n")
    plain = folder_of(tmp_path / "plain", model_onnx="weights", requirements_txt="six\n")
    Repository(workspace.models_dir).register("kept", plain, now=datetime(2026, 11, 21, tzinfo=UTC))
    models = deployed(
        workspace,
        ModelSettings(path=script / "score.py"),
        ModelSettings(path=script / "model.pkl", name="pickle"),
        ModelSettings(path=plain / "model.onnx"),
        ModelSettings(registered="kept"),
        ModelSettings(path=plain / "model.onnx", name="told", environment=plain / "requirements.txt"),
    )
    assert [lines(model) for model in models] == [["six"], ["six"], None, ["six"], ["six"]]


def test_a_bad_file_stops_the_start(
    tmp_path: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read once, before anything is started, for each kind of management."""
    script = folder_of(tmp_path / "script", score_py="", requirements_txt="six >> 1\n")
    settings = ServerSettings(models=(ModelSettings(path=script),), auth=False)
    read: list[Path] = []

    def read_counted(path: Path) -> Specification:
        read.append(path)
        return read_environment(path)

    monkeypatch.setattr("stoker.environments.files.read_environment", read_counted)
    with Stock(settings, workspace, print) as stock:
        with pytest.raises(EnvironmentUnusable, match=r"requirements\.txt, line 1"):
            stock.prepare_first(stock.find_models())
        (script / "requirements.txt").write_text("six\n")
        read.clear()
        stock.prepare_first(stock.find_models())
    assert read == [script / "requirements.txt"]


def test_a_model_with_a_virtual_environment_has_a_process_of_its_own(
    tmp_path: Path, workspace: Workspace
) -> None:
    """The others still share one; until it is built, this Python would run it."""
    folder = folder_of(tmp_path / "models", a_onnx="a", b_onnx="b", c_onnx="c", requirements_txt="six\n")
    models = deployed(
        workspace,
        *(
            ModelSettings(
                path=folder / f"{name}.onnx",
                environment=folder / "requirements.txt",
                environment_managed=manager,
            )
            for name, manager in (("a", "user"), ("b", "system"), ("c", "user"))
        ),
    )
    assert [[model.name for model in formed.models] for formed in group(models)] == [["a", "b", "c"]]
    environment = environment_of(models[1])
    assert environment is not None
    python = tmp_path / "venv" / "bin" / "python"
    built = Built("key", python, "3.11.7", MappingProxyType({}))
    models[1] = replace(models[1], interpreter=msgspec.structs.replace(environment, built=built).interpreter)
    assert models[1].interpreter == python
    assert [[model.name for model in formed.models] for formed in group(models)] == [
        ["a", "c"],
        ["b"],
    ]
