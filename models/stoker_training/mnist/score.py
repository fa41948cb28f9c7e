"""Entry script of the MNIST model: takes rows of 784 numbers in 0..1, returns the probabilities of the digits."""

import os
from pathlib import Path

import numpy as np
import onnxruntime

import stoker


def init() -> None:
    """Load the model once, onto the device that the server chose."""
    global session
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(os.environ.get("STOKER_INTRA_OP_THREADS", "0"))
    kind, _, number = os.environ.get("STOKER_DEVICE", "cpu").partition(":")
    provider = ("CUDAExecutionProvider", {"device_id": number}) if kind == "cuda" else "CPUExecutionProvider"
    model = Path(os.environ["AZUREML_MODEL_DIR"], "model.onnx")
    session = onnxruntime.InferenceSession(model, options, providers=[provider])


@stoker.batched(shape=(784,), dtype="float32")
def run(data: np.ndarray) -> np.ndarray:
    """Return the probability of each digit for each row, to four decimals: float32 [rows, 10]."""
    (logits,) = session.run(["logits"], {"x": data})
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return (powers / powers.sum(axis=1, keepdims=True)).round(4)
