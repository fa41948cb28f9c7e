"""A plain FastAPI service as its tutorial writes it: a pydantic body, a handler, the model called in it.

MODEL_PATH names the ONNX file.
"""

import os

import numpy as np
import onnxruntime
from fastapi import FastAPI
from pydantic import BaseModel

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(os.environ["MODEL_PATH"], options, providers=["CPUExecutionProvider"])
input_name = session.get_inputs()[0].name
app = FastAPI()


class Rows(BaseModel):
    """Rows of 784 numbers."""

    data: list[list[float]]


@app.post("/score")
async def score(rows: Rows) -> list[list[float]]:
    """Answer [[10 floats], …]."""
    batch = np.array(rows.data, dtype=np.float32)
    return session.run(None, {input_name: batch})[0].tolist()
