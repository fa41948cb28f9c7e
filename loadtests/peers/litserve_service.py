"""LitServe (https://github.com/Lightning-AI/LitServe) with its batching and its ZeroMQ transport.

MODEL_PATH names the ONNX file, PORT the port; WORKERS, API_SERVERS, MAX_BATCH and BATCH_TIMEOUT_S tune it.
"""

import os
from typing import Any

import litserve
import numpy as np
import onnxruntime


class Mlp(litserve.LitAPI):
    """One row a request; a batch of one where MAX_BATCH is 1."""

    def setup(self, device: str) -> None:
        """Load the model, once a worker process."""
        del device
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            os.environ["MODEL_PATH"], options, providers=["CPUExecutionProvider"]
        )
        self.input_name = self.session.get_inputs()[0].name

    def decode_request(self, request: dict[str, Any]) -> np.ndarray:
        """Read {"data": [[784 floats]]}."""
        return np.array(request["data"], dtype=np.float32)

    def batch(self, inputs: list[np.ndarray]) -> np.ndarray:
        """Join the rows."""
        return np.concatenate(inputs)

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Run one batch."""
        (logits,) = self.session.run(None, {self.input_name: x})
        return logits

    def unbatch(self, output: np.ndarray) -> list[np.ndarray]:
        """Return a row a request."""
        return list(output)

    def encode_response(self, output: np.ndarray) -> list[Any]:
        """Answer [[10 floats]]."""
        return output.reshape(1, -1).tolist()


if __name__ == "__main__":
    api = Mlp(max_batch_size=int(os.environ["MAX_BATCH"]), batch_timeout=float(os.environ["BATCH_TIMEOUT_S"]))
    server = litserve.LitServer(
        api, accelerator="cpu", workers_per_device=int(os.environ["WORKERS"]), fast_queue=True
    )
    server.run(
        host="127.0.0.1",
        port=int(os.environ["PORT"]),
        num_api_servers=int(os.environ["API_SERVERS"]),
        log_level="warning",
        generate_client_file=False,
        access_log=False,
    )
