"""mosec (https://github.com/mosecorg/mosec): dynamic batching behind a Rust front end, JSON by orjson.

MODEL_PATH names the ONNX file; mosec reads --port and the like itself. WORKERS, MAX_BATCH and MAX_WAIT_MS
tune it.
"""

import os

import numpy as np
import onnxruntime
import orjson
from mosec import Server, Worker


class Mlp(Worker):
    """One row a request: a batch is a list of rows [784], answered by as many rows [10]."""

    def __init__(self) -> None:
        """Load the model, once a worker process."""
        super().__init__()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            os.environ["MODEL_PATH"], options, providers=["CPUExecutionProvider"]
        )
        self.input_name = self.session.get_inputs()[0].name

    def deserialize(self, data: bytes) -> np.ndarray:
        """Read {"data": [[784 floats]]}."""
        return np.array(orjson.loads(data)["data"][0], dtype=np.float32)

    def forward(self, data: list[np.ndarray]) -> np.ndarray:
        """Run one batch; iterating over the outputs gives a row a request."""
        (logits,) = self.session.run(None, {self.input_name: np.stack(data)})
        return logits

    def serialize(self, data: np.ndarray) -> bytes:
        """Answer [[10 floats]]."""
        return orjson.dumps([data.tolist()])


if __name__ == "__main__":
    server = Server()
    server.append_worker(
        Mlp,
        num=int(os.environ["WORKERS"]),
        max_batch_size=int(os.environ["MAX_BATCH"]),
        max_wait_time=int(os.environ["MAX_WAIT_MS"]),
    )
    server.run()
