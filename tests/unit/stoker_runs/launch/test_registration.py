"""Models that scripts have asked to have registered when they end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import InvalidSettings, LoadFailed, OperatorError
from stoker.models.repository import Repository
from stoker.settings.workspace import Workspace
from stoker_runs.launch.registration import register_model, register_requested
from stoker_runs.records.folder import RunFolder
from stoker_runs.records.record import Definition, RunRecord
from stoker_runs.records.states import RunState, Status
from stoker_runs.records.store import RunStore


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "workspace").create()


@pytest.fixture
def folder(workspace: Workspace) -> RunFolder:
    """A run that has written a file."""
    record = RunRecord("e_1_0000000a", "e", 1, Definition("train.py"))
    folder = RunStore(workspace.runs_dir).create(record, RunState(Status.FINALIZING))
    (folder.outputs / "model.pkl").write_bytes(b"weights")
    return folder


def ask(folder: RunFolder, **fields: Any) -> None:
    """Leave a line as the script's face does."""
    with folder.events.open("a") as events:
        events.write(json.dumps({"t": 1, "e": "register", "v": fields}) + "\n")


def test_requested_model_is_registered_with_its_origin(workspace: Workspace, folder: RunFolder) -> None:
    """The model has the script's name, tags and description, and its properties name the run."""
    ask(folder, model_name="digits", model_path="outputs/model.pkl", tags={"k": 1}, description="first")
    with folder.events.open("a") as events:
        events.write('{"t": 1, "e": "register"}\n{"t": 1, "e": "tag", "k": "a", "v": "b"}\n')
    register_requested(folder, workspace)
    model = Repository(workspace.models_dir).resolve("digits")
    assert (model.framework, model.description, model.tags) == ("files", "first", {"k": "1"})
    assert folder.id in model.properties.values()
    assert (model.files_dir / "model.pkl").read_bytes() == b"weights"


def test_failed_registration_does_not_stop_the_others(workspace: Workspace, folder: RunFolder) -> None:
    """The error has the first reason, once all have been tried."""
    ask(folder, model_path="outputs/model.pkl")
    ask(folder, model_name="missing", model_path="outputs/none.pkl")
    ask(folder, model_name="digits", model_path="outputs/model.pkl")
    with pytest.raises(InvalidSettings, match="register a model without a name"):
        register_requested(folder, workspace)
    assert Repository(workspace.models_dir).resolve("digits").version == 1
    with pytest.raises(OperatorError):
        Repository(workspace.models_dir).resolve("missing")


def test_a_model_is_registered_with_no_other_framework_than_the_named(
    workspace: Workspace, folder: RunFolder
) -> None:
    """A pickle is no ONNX model; without a framework it is kept as files for an entry script."""
    with pytest.raises(OperatorError):
        register_model(workspace, folder, "digits", "outputs/model.pkl", framework="onnx")
    registered = register_model(workspace, folder, "digits", "outputs/model.pkl")
    assert (registered.framework, registered.version) == ("files", 1)


def test_a_damaged_model_is_kept_as_files_unless_its_framework_is_named(
    workspace: Workspace, folder: RunFolder
) -> None:
    """An entry script may know what to do with it."""
    (folder.outputs / "model.onnx").write_bytes(b"weights")
    with pytest.raises(LoadFailed):
        register_model(workspace, folder, "digits", "outputs/model.onnx", framework="onnx")
    assert register_model(workspace, folder, "digits", "outputs/model.onnx").framework == "files"


def test_a_script_says_that_its_pickle_is_scikit_learns(workspace: Workspace, folder: RunFolder) -> None:
    """In Azure's word for it; then it is a model that is served by itself."""
    ask(folder, model_name="digits", model_path="outputs/model.pkl", model_framework="ScikitLearn")
    register_requested(folder, workspace)
    assert Repository(workspace.models_dir).resolve("digits").framework == "sklearn"
