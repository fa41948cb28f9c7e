"""MLServer (https://github.com/SeldonIO/MLServer): a custom runtime behind the Open Inference Protocol.

MODEL_PATH names the ONNX file. The settings files lie in the folder mlserver, adaptive batching included.
"""

import os

import numpy as np
import onnxruntime
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class Mlp(MLModel):
    """Rows [n, 784] in, rows [n, 10] out."""

    async def load(self) -> bool:
        """Load the model."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            os.environ["MODEL_PATH"], options, providers=["CPUExecutionProvider"]
        )
        self.input_name = self.session.get_inputs()[0].name
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Run one batch."""
        rows = NumpyCodec.decode_input(payload.inputs[0]).astype(np.float32, copy=False)
        (logits,) = self.session.run(None, {self.input_name: rows})
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("logits", logits)])
