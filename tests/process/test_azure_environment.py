"""A server in the environment of an Azure image: no option names the model."""

import json
from pathlib import Path

from tests.http.raw_http import request
from tests.live_server import LiveServer

SCRIPT = """
import json
import os
import helper

def init():
    global seen
    names = ("AML_APP_ROOT", "AZUREML_MODEL_DIR", "SCORING_TIMEOUT_MS", "AZUREML_LOG_LEVEL")
    seen = {name: os.environ[name] for name in names} | {"helper": helper.NAME, "here": os.getcwd()}

def run(raw_data):
    return seen
"""


def test_the_variables_of_an_image_are_enough(tmp_path: Path) -> None:
    """`stoker serve` alone serves the script that they name, at its place, with its models and settings."""
    app = tmp_path / "azureml-app"
    (app / "source").mkdir(parents=True)
    (app / "source" / "score.py").write_text(SCRIPT)
    (app / "source" / "helper.py").write_text("NAME = 'of the source directory'\n")
    (app / "config.json").write_text(json.dumps({"AZUREML_LOG_LEVEL": "DEBUG", "SERVICE_VERSION": "3.2"}))
    (tmp_path / "models").mkdir()
    variables = {
        "AML_APP_ROOT": str(app),
        "AZUREML_ENTRY_SCRIPT": "source/score.py",
        "AZUREML_SOURCE_DIRECTORY": "source",
        "AZUREML_MODEL_DIR": str(tmp_path / "models"),
        "SCORING_TIMEOUT_MS": "12345",
        "SERVICE_NAME": "My service",
    }
    with LiveServer(tmp_path, "--no-auth", "--frontends", "1", env=variables) as server:
        with server.connect() as connection:
            answer = connection.ask(request("POST", "/api/v1/service/My-service/score", [], b"{}"))
        described = server.describe("/swagger.json").json()["info"]
        output = server.output()
    assert answer.json() == {
        "AML_APP_ROOT": str(app),
        "AZUREML_MODEL_DIR": str(tmp_path / "models"),
        "SCORING_TIMEOUT_MS": "12345",
        "AZUREML_LOG_LEVEL": "DEBUG",
        "helper": "of the source directory",
        "here": str(app),
    }
    assert (described["title"], described["version"]) == ("My service", "3.2")
    assert (
        f"the environment and {app / 'config.json'}: AZUREML_ENTRY_SCRIPT source/score.py is served" in output
    )
