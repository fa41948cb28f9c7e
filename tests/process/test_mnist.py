"""All test images of MNIST through HTTP give exactly the classes that the runtime gives offline."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import orjson
import pytest
from tests.http.raw_http import AsyncConnection, scoring
from tests.live_server import PRIMARY, LiveServer, wait_until
from tests.tiny_models import read_idx, write_mlp

IMAGES = Path(
    os.environ.get("STOKER_TEST_MNIST", Path(__file__).parents[3] / "shared" / "data" / "mnist")
) / ("t10k-images-idx3-ubyte.gz")
CONNECTIONS = 64

pytestmark = pytest.mark.skipif(
    not IMAGES.is_file(),
    reason=f"MNIST's test images are not at {IMAGES}; set STOKER_TEST_MNIST to their folder",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The perceptron of the issue, 784-300-100-10, with random weights: its classes are as good to compare."""
    return write_mlp(tmp_path_factory.mktemp("mlp") / "mlp.onnx")


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    """The 10,000 test images as float32[10000, 784] in 0..1."""
    return read_idx(IMAGES).reshape(-1, 784).astype(np.float32) / np.float32(255)


@pytest.fixture(scope="module")
def offline(model: Path, images: np.ndarray) -> np.ndarray:
    """Logits of ONNX Runtime, float32[10000, 10]."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {"x": images})
    return np.asarray(logits)


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server of the model on the CPU, where offline and online arithmetic are the same."""
    with LiveServer(
        tmp_path_factory.mktemp("mnist"), model, "--device", "cpu", "--frontends", "2"
    ) as running:
        yield running


async def _score_all(port: int, bodies: Sequence[bytes], connections: int) -> np.ndarray:
    """Score every body, `connections` at a time; the logits in the order of the bodies."""
    queue = list(enumerate(bodies))[::-1]
    logits: list[list[list[float]]] = [[] for _ in bodies]

    async def ask() -> None:
        async with await AsyncConnection.open(port) as connection:
            while queue:
                number, body = queue.pop()
                answer = await connection.ask(scoring("/score", PRIMARY, body))
                assert answer.status == 200, answer.body
                logits[number] = orjson.loads(answer.body)

    await asyncio.gather(*(ask() for _ in range(connections)))
    return np.array([row for rows in logits for row in rows])


@pytest.mark.anyio
@pytest.mark.parametrize("rows", [1, 100], ids=["one row a request", "100 rows a request"])
async def test_every_image_has_its_offline_class(
    server: LiveServer, images: np.ndarray, offline: np.ndarray, rows: int
) -> None:
    """All 10,000 images over 64 connections give the classes, and nearly the logits, that ONNX Runtime gives."""
    bodies = [
        orjson.dumps({"data": images[start : start + rows]}, option=orjson.OPT_SERIALIZE_NUMPY)
        for start in range(0, len(images), rows)
    ]

    rows_before, batches_before = _rows_and_batches(server)

    logits = await _score_all(server.port, bodies, min(CONNECTIONS, len(bodies)))

    assert len(logits) == len(images) == 10_000
    np.testing.assert_array_equal(logits.argmax(axis=1), offline.argmax(axis=1))
    np.testing.assert_allclose(logits, offline, rtol=1e-4, atol=1e-4)
    # The device counts a batch when its answers have left.
    wait_until(lambda: _rows_and_batches(server)[0] >= rows_before + 10_000, "all rows are counted")
    batches = _rows_and_batches(server)[1] - batches_before
    assert len(images) / batches > 2, "requests ran together"


def _rows_and_batches(server: LiveServer) -> tuple[float, float]:
    return (
        server.metric("stoker_batch_rows_sum", model="mlp"),
        server.metric("stoker_batch_rows_count", model="mlp"),
    )
