"""The files of a service as its pods are to have them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

from stoker.errors import InvalidSettings
from stoker.models.frameworks import SERVED_ALONE
from stoker.models.model_links import copy_model
from stoker.models.registered import Registered
from stoker.system.durable import private_folder
from stoker_azure.sdk.services.plan import Plan

__all__ = ["lay_out", "lay_out_versions"]

_REGISTERED: Final = "azureml-models"
_GRAPH: Final = "model.onnx"


def lay_out(folder: Path, plan: Plan, models: Sequence[Registered], inside: PurePosixPath) -> dict[str, Any]:
    """Copy the files of a service, and return its model as the deployment file of the pods has it.

    Args:
        folder: Where they are copied to; what is there goes.
        plan: The service.
        models: Its registered models.
        inside: What the folder is in the pods.

    Raises:
        InvalidSettings: Without a script there is nothing that can be served alone.
    """
    shutil.rmtree(folder, ignore_errors=True)
    for model in models:
        place = folder / _REGISTERED / model.name / str(model.version)
        if plan.inference is None:
            shutil.copytree(model.files_dir, place)
        else:
            copy_model(model, place)
    if plan.inference is None:
        if len(models) != 1 or models[0].framework not in SERVED_ALONE:
            raise InvalidSettings(
                f"{plan.name}: without an inference_config exactly one ONNX model, SavedModel, model of MLflow or of "
                "scikit-learn, or entry script can be deployed"
            )
        (model,) = models
        path = inside / _REGISTERED / model.name / str(model.version) / model.entry
        return {"path": str(path), "name": plan.name}
    script = Path(plan.inference["entryScript"])
    source = Path(plan.inference.get("sourceDirectory") or script.parent)
    if "sourceDirectory" in plan.inference:
        shutil.copytree(source, folder, dirs_exist_ok=True)
    else:
        private_folder(folder)
        shutil.copy(script, folder)
    served: dict[str, Any] = {
        "path": str(inside / script.relative_to(source).as_posix()),
        "name": plan.name,
    }
    if models:
        # As AZUREML_MODEL_DIR is on Azure: the one model, or the folder of all.
        root = inside / _REGISTERED
        served["model_dir"] = str(
            root / models[0].name / str(models[0].version) if len(models) == 1 else root
        )
    if variables := (plan.inference.get("environment") or {}).get("environmentVariables"):
        served["environment_variables"] = dict(variables)
    return served


def lay_out_versions(
    folder: Path, plan: Plan, models: Sequence[Registered], inside: PurePosixPath
) -> dict[str, Any] | None:
    """Copy a model that is served without a script so that pods which have another version of it take this one up.

    That is a folder of version folders, and beside those the label that says which one is meant; see `lay_out`.

    Returns:
        The model, the same for all of its versions; None for services that cannot have their files so.
    """
    if plan.inference is not None or len(models) != 1 or models[0].framework not in ("onnx", "tensorflow"):
        return None
    (model,) = models
    shutil.rmtree(folder, ignore_errors=True)
    base = private_folder(folder / model.name)
    version, entry = base / str(model.version), model.files_dir / model.entry
    if entry.is_dir():
        shutil.copytree(entry, version)
    else:
        shutil.copytree(model.files_dir, version)
        (version / model.entry).rename(version / _GRAPH)
    (base / "labels.json").write_text(json.dumps({"default": model.version}) + "\n", encoding="utf-8")
    return {"path": str(inside / model.name), "name": plan.name}
