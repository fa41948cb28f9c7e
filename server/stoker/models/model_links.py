"""The folder of models that an entry script finds as AZUREML_MODEL_DIR: links to registered versions, as on Azure.

RUN/models/DIGEST/azureml-models/NAME/VERSION/...

With one model AZUREML_MODEL_DIR is its `NAME/VERSION`, with several it is `azureml-models`. A version's folder has a
link to each file and folder of the version. Azure keeps the name of a registered folder (`outputs/model` becomes
`VERSION/model`), Stoker registers its files. Scripts find both.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from stoker.errors import InvalidSettings
from stoker.models.registered import Registered
from stoker.system.durable import private_folder

_ROOT: Final = "azureml-models"


def link_models(models: Sequence[Registered], run_dir: Path) -> Path:
    """Make the folder, or find an earlier one: it depends only on the versions.

    Returns:
        The value of AZUREML_MODEL_DIR.
    """
    references = [model.reference for model in models]
    for reference in references:
        if references.count(reference) > 1:
            raise InvalidSettings(f"a script cannot use {reference} twice")
    content = json.dumps(sorted((model.reference, str(model.files_dir.absolute())) for model in models))
    tree = run_dir.absolute() / "models" / hashlib.sha256(content.encode()).hexdigest()[:16]
    try:
        if not tree.is_dir():
            _make(tree, models)
    except OSError as error:
        raise InvalidSettings(f"the folder of models {tree} cannot be made: {error}") from error
    if len(models) == 1:
        return tree / _ROOT / models[0].name / str(models[0].version)
    return tree / _ROOT


def copy_model(model: Registered, folder: Path) -> None:
    """Copy a version in the layout of `link_models`, for scripts of another machine.

    A registered folder is a folder there. Its files stand beside it as links, which a transfer may leave out.
    """
    if (model.files_dir / model.source).is_file() or not model.source:
        shutil.copytree(model.files_dir, folder)
        return
    shutil.copytree(model.files_dir, folder / model.source)
    for entry in model.files_dir.iterdir():
        if entry.name != model.source:
            (folder / entry.name).symlink_to(f"{model.source}/{entry.name}")


def _make(tree: Path, models: Sequence[Registered]) -> None:
    """Build the tree elsewhere and move it to its place; another server may have made the same tree first."""
    staged = private_folder(tree.parent) / f".{tree.name}.{uuid.uuid4().hex}"
    try:
        for model in models:
            folder = staged / _ROOT / model.name / str(model.version)
            folder.mkdir(parents=True, mode=0o700)
            _link_files(folder, model)
        try:
            staged.rename(tree)
        except OSError:
            if not tree.is_dir():
                raise
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _link_files(folder: Path, model: Registered) -> None:
    files_dir = model.files_dir.absolute()
    for entry in files_dir.iterdir():
        (folder / entry.name).symlink_to(entry)
    as_folder = folder / model.source
    if model.source and not as_folder.is_symlink():
        as_folder.symlink_to(files_dir)
