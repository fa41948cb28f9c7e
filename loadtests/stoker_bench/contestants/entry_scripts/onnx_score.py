"""An ONNX model: JSON to classes by `json.loads`, ONNX Runtime as it comes, and `np.argmax`."""

import json
import os
from typing import Any

import numpy as np
import onnxruntime

session: Any


def init() -> None:
    """Load the model."""
    global session  # noqa: PLW0603 - the contract of an entry script
    path = os.path.join(os.environ["AZUREML_MODEL_DIR"], "model.onnx")  # noqa: PTH118
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def run(raw_data: str) -> list[int]:
    """Answer [class, …] to {"data": [[784 floats], …]}."""
    rows = np.array(json.loads(raw_data)["data"], dtype=np.float32)
    (logits,) = session.run(None, {session.get_inputs()[0].name: rows})
    classes: list[int] = logits.argmax(axis=1).tolist()
    return classes
