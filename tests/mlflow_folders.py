"""Folders in MLflow's format, as `mlflow.*.save_model` leaves them, made without MLflow."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import yaml
from tests.tiny_models import write_doubler

__all__ = ["PRICES", "write_mlmodel", "write_onnx", "write_sklearn"]

PRICES = [{"name": "rooms", "type": "long"}, {"name": "size", "type": "double"}]
"""The columns of the model of `write_sklearn`."""


def write_mlmodel(
    folder: Path,
    flavors: dict[str, Any],
    inputs: list[dict[str, Any]] | None = None,
    example: tuple[dict[str, Any], Any] | None = None,
) -> Path:
    """Write the description of a model, with its signature and its input example if there are some."""
    folder.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {"artifact_path": "model", "flavors": flavors, "mlflow_version": "2.16.0"}
    if inputs is not None:
        content["signature"] = {
            "inputs": json.dumps(inputs),
            "outputs": '[{"type": "double"}]',
            "params": None,
        }
    if example is not None:
        info, value = example
        content["saved_input_example_info"] = {"artifact_path": "input_example.json", **info}
        (folder / "input_example.json").write_text(json.dumps(value))
    (folder / "MLmodel").write_text(yaml.safe_dump(content))
    return folder


def write_sklearn(folder: Path, *, signature: bool = True) -> Path:
    """A linear regression, 100 for each room and 2 for each unit of size, with all files that MLflow writes."""
    import pandas as pd
    from sklearn.linear_model import LinearRegression

    table = pd.DataFrame({"rooms": [1, 2, 3, 4], "size": [10.0, 30.5, 20.0, 45.0]})
    model = LinearRegression().fit(table, 100 * table["rooms"] + 2 * table["size"])
    sklearn = {
        "pickled_model": "model.pkl",
        "serialization_format": "cloudpickle",
        "sklearn_version": "1.5.2",
    }
    python = {"env": {"conda": "conda.yaml"}, "loader_module": "mlflow.sklearn", "predict_fn": "predict"}
    write_mlmodel(
        folder,
        {"python_function": python, "sklearn": sklearn},
        PRICES if signature else None,
        (
            {"type": "dataframe", "pandas_orient": "split"},
            {"columns": ["rooms", "size"], "data": [[1, 2.5], [3, 4.5]]},
        ),
    )
    (folder / "model.pkl").write_bytes(pickle.dumps(model))
    (folder / "requirements.txt").write_text("scikit-learn\npandas\n")
    (folder / "python_env.yaml").write_text("python: 3.11.5\ndependencies: [-r requirements.txt]\n")
    return folder


def write_onnx(folder: Path) -> Path:
    """A model that doubles four numbers."""
    write_doubler(folder / "model.onnx")
    (folder / "conda.yaml").write_text("dependencies: [python=3.11, pip: [numpy]]\n")
    return write_mlmodel(
        folder,
        {
            "onnx": {"data": "model.onnx", "onnx_version": "1.17.0"},
            "python_function": {"loader_module": "mlflow.onnx"},
        },
        [{"type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [-1, 4]}}],
    )
