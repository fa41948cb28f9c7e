"""The files of a service as its pods are to have them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from stoker.errors import InvalidSettings
from stoker.models.frameworks import Framework
from stoker.models.registered import Registered
from stoker.models.repository import Repository
from stoker_azure.sdk.services.cluster_deploying import write_pod_files, write_versioned_files
from stoker_azure.sdk.services.records import Plan

INSIDE = PurePosixPath("/models/digits")
NOW = datetime(2026, 11, 23, tzinfo=UTC)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "models")


def registered(repository: Repository, tmp_path: Path, name: str, framework: Framework) -> Registered:
    """A model of one file, of which nobody asks whether it can be loaded."""
    file = tmp_path / f"{name}.{'onnx' if framework == 'onnx' else 'pkl'}"
    file.write_text(name)
    return repository.register(name, file, now=NOW, framework=framework)


def plan(**fields: Any) -> Plan:
    """A service."""
    return Plan(name="digits", kind="aks", **fields)


def script(tmp_path: Path, **inference: Any) -> dict[str, Any]:
    """The files of an `InferenceConfig` with a script that has a file beside it."""
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "score.py").write_text("def init(): ...\n")
    (folder / "labels.txt").write_text("0\n")
    return {"entryScript": str(folder / "score.py"), **inference}


def files(folder: Path) -> list[str]:
    """Names of all files below a folder."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_a_script_has_its_models_and_variables(repository: Repository, tmp_path: Path) -> None:
    """Alone it is the one file, with its folder all files of that; several models lie below one folder."""
    models = [registered(repository, tmp_path, name, "files") for name in ("one", "two")]
    inference = script(tmp_path, environment={"environmentVariables": {"A": "b"}})
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "of-before").write_text("")
    served = write_pod_files(folder, plan(inference=inference), models, INSIDE)
    assert served == {
        "path": "/models/digits/score.py",
        "name": "digits",
        "model_dir": "/models/digits/azureml-models",
        "environment_variables": {"A": "b"},
    }
    assert files(folder) == ["azureml-models/one/1/one.pkl", "azureml-models/two/1/two.pkl", "score.py"]
    inference["sourceDirectory"] = str(tmp_path / "source")
    served = write_pod_files(folder, plan(inference=inference), models[:1], INSIDE)
    assert served["model_dir"] == "/models/digits/azureml-models/one/1"
    assert files(folder) == ["azureml-models/one/1/one.pkl", "labels.txt", "score.py"]
    del inference["environment"]
    assert write_pod_files(folder, plan(inference=inference), [], INSIDE) == {
        "path": "/models/digits/score.py",
        "name": "digits",
    }


def test_a_model_is_served_alone_if_it_can_be(repository: Repository, tmp_path: Path) -> None:
    """One of them, which needs no script."""
    graph = registered(repository, tmp_path, "graph", "onnx")
    weights = registered(repository, tmp_path, "weights", "files")
    served = write_pod_files(tmp_path / "files", plan(), [graph], INSIDE)
    assert served == {"path": "/models/digits/azureml-models/graph/1/graph.onnx", "name": "digits"}
    assert files(tmp_path / "files") == ["azureml-models/graph/1/graph.onnx"]
    for models in ([], [weights], [graph, weights]):
        with pytest.raises(InvalidSettings, match="without an inference_config exactly one ONNX model"):
            write_pod_files(tmp_path / "files", plan(), models, INSIDE)


def test_pods_that_follow_versions_find_a_folder_of_them(repository: Repository, tmp_path: Path) -> None:
    """A label chooses one; scripts, and models that need one, have their files elsewhere."""
    graph = registered(repository, tmp_path, "graph", "onnx")
    again = registered(repository, tmp_path, "graph", "onnx")
    folder = tmp_path / "files"
    for model in (graph, again):
        served = write_versioned_files(folder, plan(), [model], INSIDE)
        assert served == {"path": "/models/digits/graph", "name": "digits"}
    assert files(folder) == ["graph/2/model.onnx", "graph/labels.json"]
    assert json.loads((folder / "graph" / "labels.json").read_text()) == {"default": 2}
    weights = registered(repository, tmp_path, "weights", "files")
    assert write_versioned_files(folder, plan(), [weights], INSIDE) is None
    assert write_versioned_files(folder, plan(), [graph, weights], INSIDE) is None
    assert write_versioned_files(folder, plan(inference={"entryScript": "score.py"}), [graph], INSIDE) is None
