"""mosec (https://github.com/mosecorg/mosec) on a GPU: batches of rows as bytes, behind its Rust front end.

It takes the bytes of a row, and answers those of the first output. MODEL_PATH names the ONNX file, ROW_DTYPE and
ROW_SHAPE say what a row is, PROVIDER is ONNX Runtime's. mosec reads --port itself.
"""

import os

import numpy as np
import onnxruntime
from mosec import Server, Worker

MOST_ROWS = 64
WAIT_MS = 1


class Model(Worker):
    """One row a request."""

    def __init__(self) -> None:
        """Load the model."""
        super().__init__()
        self.session = onnxruntime.InferenceSession(
            os.environ["MODEL_PATH"], providers=[os.environ["PROVIDER"]]
        )
        self.input_name = self.session.get_inputs()[0].name
        self.shape = [int(size) for size in os.environ["ROW_SHAPE"].split(",")]

    def deserialize(self, data: bytes) -> np.ndarray:
        """Read a row."""
        return np.frombuffer(data, os.environ["ROW_DTYPE"]).reshape(self.shape)

    def forward(self, data: list[np.ndarray]) -> np.ndarray:
        """Run one batch; iterating over the outputs gives a row a request."""
        (outputs, *_) = self.session.run(None, {self.input_name: np.stack(data)})
        return outputs

    def serialize(self, data: np.ndarray) -> bytes:
        """Answer a row of outputs."""
        return data.tobytes()


if __name__ == "__main__":
    server = Server()
    server.append_worker(Model, num=1, max_batch_size=MOST_ROWS, max_wait_time=WAIT_MS)
    server.run()
