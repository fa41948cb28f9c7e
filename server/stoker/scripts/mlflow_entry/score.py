"""The entry script of models in MLflow's format that no runtime loads by itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from stoker.scripts.mlflow_model import MlflowModel

model: MlflowModel


def init() -> None:
    """Load the model of the folder that the server names."""
    global model  # noqa: PLW0603  # `run` gets nothing but the request
    model = MlflowModel(Path(os.environ["AZUREML_MODEL_DIR"]))


def run(raw_data: str) -> Any:
    """Answer a request of MLflow's scoring protocol."""
    return model.answer(raw_data)
