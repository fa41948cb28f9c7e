"""A careful author's service: Starlette, orjson and ONNX Runtime in the handler, without batching.

The environment variable STOKER_BENCH_MODEL names the ONNX file. ONNX Runtime runs with one thread, its best setting
here: a row is too little work to share, and its spinning threads would take the core that uvicorn needs.
"""

from __future__ import annotations

import os

import numpy as np
import onnxruntime
import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(
    os.environ["STOKER_BENCH_MODEL"], options, providers=["CPUExecutionProvider"]
)
input_name = session.get_inputs()[0].name


async def score(request: Request) -> Response:
    """Answer the model's first output as JSON lists."""
    rows = np.array(orjson.loads(await request.body())["data"], dtype=np.float32)
    (outputs, *_) = session.run(None, {input_name: rows})
    return Response(orjson.dumps(outputs, option=orjson.OPT_SERIALIZE_NUMPY), media_type="application/json")


async def ready(request: Request) -> Response:
    """Answer 200: the session is loaded once this module is imported."""
    del request
    return Response()


app = Starlette(routes=[Route("/score", score, methods=["POST"]), Route("/ready", ready)])
