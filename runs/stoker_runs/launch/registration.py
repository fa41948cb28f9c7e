"""From run to service: a run's file or folder becomes the next version of a model, which says where it came from."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from stoker.errors import InvalidSettings, LoadFailed, OperatorError, RepositoryError
from stoker.models.frameworks import FRAMEWORKS, Detected, Framework, detect
from stoker.models.registered import Registered
from stoker.models.repository import ModelFacts, Repository
from stoker.settings.workspace import Workspace
from stoker_base.trees import files_below
from stoker_runs.errors import UnknownRun
from stoker_runs.records.folder import RunFolder, find_file
from stoker_runs.records.store import RunStore

_LOG: Final = logging.getLogger(__name__)
# In it a training says which run it was.
_METRICS: Final = "metrics.json"
_AZURE_WORDS: Final = {"sklearn": "scikitlearn"}


def origin_of(folder: RunFolder) -> dict[str, str]:
    """Return the properties that link a version of a model to its run: id, snapshot, data, commit."""
    record = folder.record()
    properties = folder.properties()
    facts = {
        "run": record.id,
        "experiment": record.experiment,
        "snapshot": record.snapshot,
        "commit": properties.get("azureml.git.commit", ""),
        **{f"data.{name}": digest for name, digest in record.data.items()},
    }
    return {name: value for name, value in facts.items() if value}


def file_of_run(workspace: Workspace, reference: str, name: Path) -> tuple[Path, dict[str, str]]:
    """Return a file or folder of a run, and the properties that link a version of a model to the run.

    Raises:
        UnknownRun: There is no such run.
        SubmissionRefused: It has no such file.
    """
    folder = RunStore(workspace.runs_dir).find(reference)
    return find_file(folder, name.as_posix()), origin_of(folder)


def origin_of_copy(workspace: Workspace, path: Path) -> dict[str, str]:
    """Say which run has written a folder, if it says so itself and is a copy of that run's outputs, byte by byte."""
    try:
        run_id = json.loads((path / _METRICS).read_bytes())["run"]
        folder = RunStore(workspace.runs_dir).get(str(run_id))
        return origin_of(folder) if _contents(path) == _contents(folder.outputs) else {}
    except (OSError, ValueError, LookupError, TypeError, UnknownRun):
        return {}


def _contents(folder: Path) -> dict[str, str]:
    contents = {}
    for file in files_below(folder):
        with file.open("rb") as source:
            contents[str(file.relative_to(folder))] = hashlib.file_digest(source, "sha256").hexdigest()
    return contents


def register_model(
    workspace: Workspace,
    folder: RunFolder,
    name: str,
    path: str | None = None,
    *,
    framework: Framework | None = None,
    description: str = "",
    tags: Mapping[str, str] | None = None,
    properties: Mapping[str, str] | None = None,
) -> Registered:
    """Register what a run has written as the next version of a model.

    Args:
        path: Name of a file or folder of the run; None for the name of the model.
        framework: The framework, if the file could be of several.
        properties: Further immutable labels, besides the origin of the model.

    Raises:
        SubmissionRefused: The run has no such file; the message lists those that it has.
        OperatorError: It is no model, or cannot be copied.
    """
    source = find_file(folder, path or name)
    facts = ModelFacts(
        description=description, tags=tags or {}, properties={**(properties or {}), **origin_of(folder)}
    )
    detected = _detected(source, framework)
    repository = Repository(workspace.create().models_dir)
    try:
        return _registered(repository, name, source, detected, facts)
    except LoadFailed as error:
        if framework is not None:
            raise
        _LOG.warning("%s is registered as files for an entry script: %s", name, error)
        return _registered(repository, name, source, Detected("files", source), facts)


def _registered(
    repository: Repository, name: str, source: Path, detected: Detected, facts: ModelFacts
) -> Registered:
    def read_signature(copy: Detected, files_dir: Path) -> Mapping[str, Any] | None:
        from stoker.device.signature_probe import learn_signature

        return learn_signature(name, source, detected, copy, files_dir, _LOG.info)

    return repository.register(
        name,
        source,
        now=datetime.now(UTC),
        framework=detected.framework,
        read_signature=None if detected.framework == "files" else read_signature,
        **facts,
    )


def _detected(source: Path, framework: Framework | None) -> Detected:
    # Azure's word for them is given with models of all kinds.
    wanted = None if framework == "sklearn" else framework
    try:
        detected = detect(source, wanted)
    except RepositoryError:
        # The files are for an entry script, which knows how to load them.
        if wanted is not None:
            raise
        return detect(source, "files")
    # Pickles are for an entry script too, unless the framework is named.
    return detect(source, "files") if detected.framework == "sklearn" != framework else detected


def register_requested(folder: RunFolder, workspace: Workspace) -> None:
    """Register the models that the script has asked to have registered when it ends.

    Raises:
        OperatorError: One could not be; the others were.
    """
    problems: list[OperatorError] = []
    for line in folder.event_lines():
        request = line.get("v")
        if line.get("e") != "register" or not isinstance(request, dict):
            continue
        try:
            _register_one(folder, workspace, request)
        except OperatorError as error:
            problems.append(error)
    if problems:
        raise problems[0]


def _register_one(folder: RunFolder, workspace: Workspace, request: Mapping[str, Any]) -> None:
    name = request.get("model_name")
    if not isinstance(name, str):
        raise InvalidSettings("a script has asked to register a model without a name")
    framework = str(request.get("model_framework") or "").lower()
    register_model(
        workspace,
        folder,
        name,
        request.get("model_path"),
        framework=next((one for one in FRAMEWORKS if framework in (one, _AZURE_WORDS.get(one))), None),
        description=str(request.get("description") or ""),
        tags={str(key): str(value) for key, value in (request.get("tags") or {}).items()},
        properties={str(key): str(value) for key, value in (request.get("properties") or {}).items()},
    )
