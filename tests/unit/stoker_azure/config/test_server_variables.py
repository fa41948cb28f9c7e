"""The variables and the config.json of Azure's own inference server."""

import argparse
import json
from pathlib import Path

import pytest

from stoker.commands.serve import add_arguments, serve_settings
from stoker.errors import InvalidSettings
from stoker.settings.model import ModelSettings
from stoker.settings.server import ServerSettings
from stoker_azure.config import AzureServer
from stoker_azure.config.server_variables import SERVER_VARIABLES

SCRIPT = "def init(): ...\ndef run(raw_data): ...\n"


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An AML_APP_ROOT with a script in a folder and a model; the tests start somewhere else."""
    app = tmp_path / "azureml-app"
    (app / "source").mkdir(parents=True)
    (app / "source" / "score.py").write_text(SCRIPT)
    (app / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in (*SERVER_VARIABLES, "AZUREML_CONFIG_FILE", "STOKER_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)
    return app


def serve(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], *arguments: str | Path) -> ServerSettings:
    """The settings of `stoker serve` with these variables."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return serve_settings(parser.parse_args([str(argument) for argument in arguments]))


def test_an_image_of_azure_starts_as_it_is(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`stoker serve` alone serves the script that the image's variables name, with their settings."""
    settings = serve(
        monkeypatch,
        {
            "AML_APP_ROOT": str(app),
            "AZUREML_ENTRY_SCRIPT": "source/score.py",
            "AZUREML_SOURCE_DIRECTORY": "source",
            "AZUREML_MODEL_DIR": "azureml-app/models",
            "SCORING_TIMEOUT_MS": "1500",
            "WORKER_COUNT": "3",
            "SERVICE_NAME": "digits",
            "AML_MODEL_DC_STORAGE_ENABLED": "true",
            "WORKER_TIMEOUT": "300",
        },
    )
    assert settings.models == (
        ModelSettings(
            path=app / "source" / "score.py",
            name="digits",
            model_dir=app / "models",
            environment_variables={
                "AML_APP_ROOT": str(app),
                "AZUREML_SOURCE_DIRECTORY": "source",
                "SERVICE_NAME": "digits",
            },
        ),
    )
    assert (settings.timeout_ms, settings.replicas, settings.collect) == (1500, 3, True)
    assert settings.notes == (
        "the environment: AZUREML_ENTRY_SCRIPT source/score.py is served",
        "WORKER_TIMEOUT has no effect: a device process is watched, and replaced when it ends",
    )


def test_the_current_directory_is_the_app_root(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where AML_APP_ROOT is not set, as with Azure's command line; a name with blanks becomes one of a service."""
    monkeypatch.chdir(app / "source")
    settings = serve(monkeypatch, {"AZUREML_ENTRY_SCRIPT": "score.py", "SERVICE_NAME": "ML service"})
    (model,) = settings.models
    assert (model.path, model.name, model.model_dir) == (app / "source" / "score.py", "ML-service", None)
    assert model.environment_variables is not None
    assert model.environment_variables["AML_APP_ROOT"] == str(app / "source")


def test_a_variable_wins_over_the_file(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """config.json has the same names; numbers and switches are as good as texts there."""
    config = app / "config.json"
    content = {
        "SCORING_TIMEOUT_MS": 900,
        "WORKER_COUNT": 2,
        "AML_MODEL_DC_STORAGE_ENABLED": True,
        "SERVICE_VERSION": 2.5,
        "AML_CORS_ORIGINS": "https://x.example",
        "x": 1,
    }
    config.write_text(json.dumps(content))
    environ = {
        "AML_APP_ROOT": str(app),
        "AZUREML_ENTRY_SCRIPT": "source/score.py",
        "SCORING_TIMEOUT_MS": "800",
    }
    settings = serve(monkeypatch, environ)
    assert (settings.timeout_ms, settings.replicas, settings.collect) == (800, 2, True)
    assert (settings.service_version, settings.cors_origins) == ("2.5", ("https://x.example",))
    assert settings.notes[1:] == ("names in config.json that are no settings of the server: x",)


def test_config_file_is_enough(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AZUREML_CONFIG_FILE alone is enough; the log level reaches the script's process."""
    config = app / "elsewhere.json"
    config.write_text(
        json.dumps(
            {
                "AZUREML_ENTRY_SCRIPT": "source/score.py",
                "AML_APP_ROOT": str(app),
                "AZUREML_LOG_LEVEL": "DEBUG",
            }
        )
    )
    (model,) = serve(monkeypatch, {"AZUREML_CONFIG_FILE": str(config)}).models
    assert model.path == app / "source" / "score.py"
    assert model.environment_variables == {"AML_APP_ROOT": str(app), "AZUREML_LOG_LEVEL": "DEBUG"}


def test_the_file_beside_the_script_is_found(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked for in AML_APP_ROOT, then beside the script; an empty one is none."""
    (app / "config.json").touch()
    (app / "source" / "config.json").write_text('{"SCORING_TIMEOUT_MS": 700}')
    environ = {"AML_APP_ROOT": str(app), "AZUREML_ENTRY_SCRIPT": "source/score.py"}
    assert serve(monkeypatch, environ).timeout_ms == 700


def test_stokers_own_settings_win(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path, a registered model or a deployment file wins over all of Azure's variables."""
    environ = {
        "AML_APP_ROOT": str(app),
        "AZUREML_ENTRY_SCRIPT": "source/score.py",
        "SCORING_TIMEOUT_MS": "800",
        "WORKER_COUNT": "3",
        "STOKER_REPLICAS": "2",
    }
    assert serve(monkeypatch, environ).replicas == 2
    assert serve(monkeypatch, environ, "--timeout-ms", "9").timeout_ms == 9
    file = app / "stoker.yaml"
    file.write_text("models: [{path: other.onnx}]")
    for arguments in (["other.onnx"], ["--model", "digits"], ["--config", file]):
        settings = serve(monkeypatch, environ, *arguments)
        assert (settings.timeout_ms, settings.notes) == (60_000, ())
        assert settings.models[0].path != app / "source" / "score.py"


def test_without_a_script_nothing_is_read(app: Path) -> None:
    """A SCORING_TIMEOUT_MS or a config.json of somebody else is none of ours."""
    (app / "config.json").write_text("not JSON")
    assert (
        AzureServer.find({"SCORING_TIMEOUT_MS": "5", "WORKER_COUNT": "x", "AML_APP_ROOT": str(app)}) is None
    )
    (app / "config.json").write_text("{}")
    assert AzureServer.find({"AZUREML_CONFIG_FILE": str(app / "config.json")}) is None


@pytest.mark.parametrize(
    ("environ", "complaint"),
    [
        ({"AZUREML_ENTRY_SCRIPT": "missing.py"}, "AZUREML_ENTRY_SCRIPT: there is no file "),
        ({"SCORING_TIMEOUT_MS": "long"}, "the environment: timeout_ms must be a whole number, got 'long'"),
        ({"WORKER_COUNT": "65"}, "the environment: replicas must be a whole number between"),
        ({"AZUREML_CONFIG_FILE": "missing.json"}, "missing.json cannot be read"),
    ],
)
def test_bad_values_are_refused(
    app: Path, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], complaint: str
) -> None:
    """The message has the allowed values."""
    base = {"AML_APP_ROOT": str(app), "AZUREML_ENTRY_SCRIPT": "source/score.py"}
    with pytest.raises(InvalidSettings) as refused:
        serve(monkeypatch, {**base, **environ})
    assert complaint in str(refused.value)
