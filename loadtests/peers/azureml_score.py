"""The entry script for azureml-inference-server-http; the model lies in AZUREML_MODEL_DIR, JSON by orjson."""

import os
from pathlib import Path

import numpy as np
import onnxruntime
import orjson


def init() -> None:
    """Load the model, once a worker process."""
    global session, input_name  # noqa: PLW0603 - the contract of an entry script
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    path = Path(os.environ["AZUREML_MODEL_DIR"], "mlp.onnx")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    input_name = session.get_inputs()[0].name


def run(raw_data: str) -> list:
    """Answer [[10 floats], …] to {"data": [[784 floats], …]}."""
    rows = np.array(orjson.loads(raw_data)["data"], dtype=np.float32)
    return session.run(None, {input_name: rows})[0].tolist()
