"""The script and the sample of a model of MLflow."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final

from stoker.deployment import SAMPLE_INPUT
from stoker.errors import InvalidSettings
from stoker.scripts.mlflow_folder import MLMODEL, Column, MlflowFolder, TensorInput
from stoker.system.durable import private_folder, replace_file

ENTRY_SCRIPT: Final = Path(__file__).parents[1] / "scripts" / "mlflow_entry" / "score.py"
"""The script that serves models that no runtime loads by itself."""
_LEVELS: Final = 3


def folder_around(path: Path) -> Path | None:
    """Return the folder with an `MLmodel` that is the path or contains it; None without one."""
    for folder in (path, *path.parents)[:_LEVELS]:
        if (folder / MLMODEL).is_file():
            return folder
    return None


def sample_request(folder: Path, *, arrays: bool) -> Any:
    """Return the input example of a model as a request; None without a fitting one.

    Rows of a table whose columns have types become records, because bodies of records can be merged. Without types,
    values of one caller could change the types of another caller's, so the table stays as it is.

    Args:
        arrays: Whether the model takes only arrays, as do models that a runtime loads.
    """
    model = MlflowFolder.read(folder)
    sample = model.sample()
    takes = model.inputs[0] if model.inputs else None
    if arrays:
        fits = isinstance(takes, TensorInput) and isinstance(sample, dict) and "inputs" in sample
        return sample if fits else None
    return (
        sample if sample is None else _as_records(sample) if isinstance(takes, Column) else _as_split(sample)
    )


def write_sample(sample: Any, run_dir: Path) -> Path:
    """Write a request as a file."""
    content = json.dumps(sample).encode()
    path = run_dir / "mlflow" / hashlib.sha256(content).hexdigest()[:16] / SAMPLE_INPUT
    try:
        private_folder(path.parent)
        replace_file(path, content)
    except OSError as error:
        raise InvalidSettings(f"the sample input {path} cannot be written: {error}") from error
    return path


def _as_records(sample: Any) -> Any:
    split = sample.get("dataframe_split") if isinstance(sample, dict) else None
    if not isinstance(split, dict) or not split.get("columns"):
        return sample
    return {"dataframe_records": [dict(zip(split["columns"], row, strict=True)) for row in split["data"]]}


def _as_split(sample: Any) -> Any:
    records = sample.get("dataframe_records") if isinstance(sample, dict) else None
    if not isinstance(records, list) or not records:
        return sample
    columns = list(records[0])
    rows = [[record.get(column) for column in columns] for record in records]
    return {"dataframe_split": {"columns": columns, "data": rows}}
