"""The entry script of the Azure how-to, unmodified: TensorFlow 1 code on the TensorFlow of today."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson
import pytest
from tests.http.raw_http import AsyncConnection, scoring
from tests.live_server import PRIMARY, LiveServer
from tests.tiny_models import read_idx

SHARED = Path(os.environ.get("STOKER_TEST_SHARED", Path(__file__).parents[3] / "shared"))
SCRIPT = SHARED / "azure" / "score.py"
IMAGES = SHARED / "data" / "mnist" / "t10k-images-idx3-ubyte.gz"
COUNT = 500
CONNECTIONS = 16

pytestmark = [
    pytest.mark.long,
    pytest.mark.tensorflow,
    pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"),
    pytest.mark.skipif(
        not (SCRIPT.is_file() and IMAGES.is_file()),
        reason=f"the how-to is not at {SHARED}; set STOKER_TEST_SHARED to the folder with azure/ and data/",
    ),
]

# TensorFlow never gives its memory back: it is imported in a process of its own. The classes are those of the
# checkpoint's graph, run as TensorFlow 1 runs it.
_WRITE_MODEL = """
import sys
from pathlib import Path
import numpy as np
from stoker_training import exports
from stoker_training.frameworks import keras
from stoker_training.fitting import build

folder, images = Path(sys.argv[1]), np.load(sys.argv[2])
keras.utils.set_random_seed(3)
model = build("softmax")
prefix = folder / exports.CHECKPOINT
exports.write_checkpoint(model, prefix)
np.save(folder / "classes.npy", exports.checkpoint_logits(prefix, images).argmax(axis=1))
"""


@dataclass(frozen=True)
class HowTo:
    """The served how-to.

    Attributes:
        server: The server.
        images: float32[500, 784].
        classes: What the graph of the checkpoint gives for them offline.
    """

    server: LiveServer
    images: np.ndarray
    classes: np.ndarray


@pytest.fixture(scope="module")
def howto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HowTo]:
    """The script as it was downloaded, in a folder of its own, with a model beside it."""
    folder = tmp_path_factory.mktemp("howto")
    images = read_idx(IMAGES)[:COUNT].reshape(-1, 784).astype(np.float32) / np.float32(255)
    np.save(folder / "images.npy", images)
    subprocess.run(
        [sys.executable, "-c", _WRITE_MODEL, str(folder), str(folder / "images.npy")],
        check=True,
        capture_output=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
    )
    sample = orjson.dumps({"data": images[:1]}, option=orjson.OPT_SERIALIZE_NUMPY)
    (folder / "sample_input.json").write_bytes(sample)
    script = Path(shutil.copy(SCRIPT, folder))
    scratch = tmp_path_factory.mktemp("server")
    options = ["--name", "howto", "--device", "cpu", "--frontends", "1"]
    with LiveServer(scratch, script, *options) as server:
        yield HowTo(server, images, np.load(folder / "classes.npy"))


@pytest.mark.anyio
async def test_every_image_has_the_class_of_the_graph(howto: HowTo) -> None:
    """One image a request, many callers at once, as `client.py` of the how-to sends them."""
    bodies = list(
        enumerate(
            orjson.dumps({"data": [image]}, option=orjson.OPT_SERIALIZE_NUMPY) for image in howto.images
        )
    )
    answers: dict[int, list[int]] = {}

    async def ask() -> None:
        async with await AsyncConnection.open(howto.server.port) as connection:
            while bodies:
                number, body = bodies.pop()
                answer = await connection.ask(scoring("/score", PRIMARY, body))
                assert answer.status == 200, answer.body
                answers[number] = answer.json()

    await asyncio.gather(*(ask() for _ in range(CONNECTIONS)))
    assert len(np.unique(howto.classes)) > 3, "the model tells images apart"
    assert [answers[number] for number in range(COUNT)] == [[int(one)] for one in howto.classes]
    assert "batching: merge, bodies made from sample_input.json" in howto.server.output()
    batches, requests = (
        howto.server.metric(f"stoker_batch_rows_{suffix}", model="howto") for suffix in ("count", "sum")
    )
    assert requests / batches > 2, "requests that waited were merged"


def test_many_images_in_one_request_have_their_classes(howto: HowTo) -> None:
    """The answer is the list that the script returns."""
    answer = howto.server.score(*howto.images[:100].tolist())
    assert answer.json() == howto.classes[:100].tolist()
    assert answer.header("x-ms-run-function-failed") == "False"
    assert float(answer.header("x-ms-run-fn-exec-ms") or "nan") >= 0


def test_the_log_says_that_the_script_gets_tensorflow_1(howto: HowTo) -> None:
    """And which name in which line made it so."""
    assert (
        "is given as tensorflow.compat.v1: the script uses tf.reset_default_graph (score.py, line 11), which only "
        "TensorFlow 1 has"
    ) in howto.server.output()
