"""A model repository for Triton's Python backend, with models in the forms of its documented examples."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ADD_SUB: Final = """
import json
import os

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.dtypes = [
            pb_utils.triton_string_to_numpy(pb_utils.get_output_config_by_name(config, name)["data_type"])
            for name in ("SUM", "DIFFERENCE")
        ]
        self.limit = float(config["parameters"]["limit"]["string_value"])
        pb_utils.Logger.log_info(f"ready as {args['model_name']}:{args['model_version']}")

    def execute(self, requests):
        responses = []
        for request in requests:
            a = pb_utils.get_input_tensor_by_name(request, "A").as_numpy()
            b = pb_utils.get_input_tensor_by_name(request, "B")
            b = np.zeros_like(a) if b is None else b.as_numpy()
            if a.max() == 666:
                raise ValueError("a secret of the log")
            if a.max() > self.limit:
                code = pb_utils.TritonError.INVALID_ARG if a.max() < 2 * self.limit else pb_utils.TritonError.INTERNAL
                error = pb_utils.TritonError(f"{a.max():g} is above {self.limit:g}", code)
                responses.append(pb_utils.InferenceResponse(error=error))
                continue
            a += b
            outputs = [
                pb_utils.Tensor("SUM", a.astype(self.dtypes[0])),
                pb_utils.Tensor("DIFFERENCE", (a - 2 * b).astype(self.dtypes[1])),
                pb_utils.Tensor("REQUESTS", np.full((len(a), 2), [len(requests), os.getpid()], np.int64)),
            ]
            responses.append(pb_utils.InferenceResponse(output_tensors=outputs))
        return responses

    def finalize(self):
        print("add_sub is finalized")
"""
ADD_SUB_CONFIG: Final = """
name: "add_sub"
backend: "python"
max_batch_size: 16
dynamic_batching { max_queue_delay_microseconds: 1000 }
input [
  { name: "A" data_type: TYPE_FP32 dims: [ 4 ] }, { name: "B" data_type: TYPE_FP32 dims: [ 4 ] optional: true }
]
output [
  { name: "SUM" data_type: TYPE_FP32 dims: [ 4 ] }, { name: "DIFFERENCE" data_type: TYPE_FP16 dims: [ 4 ] },
  { name: "REQUESTS" data_type: TYPE_INT64 dims: [ 2 ] }
]
parameters { key: "limit" value { string_value: "100" } }
"""

WORDS: Final = """
import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "TEXT", "data_type": "TYPE_STRING", "dims": [1]})
        config.add_output({"name": "WORDS", "data_type": "TYPE_STRING", "dims": [-1]})
        config.add_output({"name": "ABOUT", "data_type": "TYPE_STRING", "dims": [1]})
        config.set_max_batch_size(0)
        return config

    def execute(self, requests):
        answers = []
        for request in requests:
            (text,) = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
            about = [request.request_id(), json.loads(request.parameters()), request.requested_output_names()]
            answers.append(
                pb_utils.InferenceResponse([
                    pb_utils.Tensor("WORDS", np.array(text.decode().split(), dtype=np.object_)),
                    pb_utils.Tensor("ABOUT", np.array([json.dumps(about)], dtype=np.object_)),
                ])
            )
        return answers
"""

CALLS: Final = """
import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        return [await self.answer(request) for request in requests]

    async def answer(self, request):
        (name,) = pb_utils.get_input_tensor_by_name(request, "MODEL").as_numpy().ravel()
        a = pb_utils.get_input_tensor_by_name(request, "A")
        calls = [
            pb_utils.InferenceRequest(model_name=name.decode(), requested_output_names=["SUM"], inputs=[a])
            for _ in range(2)
        ]
        first, second = await asyncio.gather(calls[0].async_exec(), calls[1].async_exec())
        third = calls[0].exec()
        for response in (first, second, third):
            if response.has_error():
                error = response.error()
                raise pb_utils.TritonModelException(f"{error.code()}: {error.message()}")
        total = sum(pb_utils.get_output_tensor_by_name(one, "SUM").as_numpy() for one in (first, second, third))
        return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("SUM", total)])
"""
CALLS_CONFIG: Final = """
backend: "python"
max_batch_size: 8
input [
  { name: "A" data_type: TYPE_FP32 dims: [ 4 ] }, { name: "MODEL" data_type: TYPE_STRING dims: [ 1 ] }
]
output [ { name: "SUM" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""


def write_model(repository: Path, name: str, script: str, config: str) -> None:
    """Write version 1 of a model; without `config` there is no config.pbtxt."""
    folder = repository / name / "1"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.py").write_text(script)
    if config:
        (repository / name / "config.pbtxt").write_text(config)


def write_repository(repository: Path) -> None:
    """Write `add_sub`, `words`, which completes its configuration itself, and `calls`, which calls other models."""
    write_model(repository, "add_sub", ADD_SUB, ADD_SUB_CONFIG)
    write_model(repository, "words", WORDS, "")
    write_model(repository, "calls", CALLS, CALLS_CONFIG)
