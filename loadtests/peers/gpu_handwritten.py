"""A careful author's service on a GPU: Starlette, and ONNX Runtime in the handler, without batching.

It takes the bytes of a row, and answers those of the first output. MODEL_PATH names the ONNX file, ROW_DTYPE and
ROW_SHAPE say what a row is, PROVIDER is ONNX Runtime's.
"""

import argparse
import os

import numpy as np
import onnxruntime
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

session = onnxruntime.InferenceSession(os.environ["MODEL_PATH"], providers=[os.environ["PROVIDER"]])
input_name = session.get_inputs()[0].name
row_dtype = os.environ["ROW_DTYPE"]
row_shape = [int(size) for size in os.environ["ROW_SHAPE"].split(",")]


async def infer(request: Request) -> Response:
    """Answer one row."""
    row = np.frombuffer(await request.body(), row_dtype).reshape(1, *row_shape)
    (output, *_) = session.run(None, {input_name: row})
    return Response(output.tobytes(), media_type="application/octet-stream")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    app = Starlette(routes=[Route("/inference", infer, methods=["POST"])])
    uvicorn.run(app, host="127.0.0.1", port=parser.parse_args().port, log_level="warning", access_log=False)
