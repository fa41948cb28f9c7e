"""Calls to TensorFlow and Keras models are gathered. TensorFlow stays in memory, so they run in another process."""

import importlib.util
import json
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"),
]

_PRELUDE = """
import json
import os
import sys

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import tensorflow as tf

from stoker.scripts.invocation import ScriptCalls
from stoker.scripts.gathered_calls import GatheredCalls
from stoker.scripts.gathering_check import check_gathering
from stoker.scripts.self_check import Disproved
from stoker.scripts.script_sample import Sample
from stoker.wire.script_requests import ScriptRequest

FOUND = {}


def try_out(name, run):
    calls = ScriptCalls(lambda raw_data: run(json.loads(raw_data)["data"]))
    gathered = GatheredCalls(calls, max_rows=64, max_threads=8, wait_s=30)
    sample = Sample(b'{"data": [[0.5, 0.25, 1.0, 2.0]]}', "application/json", "sample")
    try:
        methods = check_gathering(calls, sample, gathered, 64)
        gathered.largest_batch = 0
        bodies = [json.dumps({"data": [[float(n + row)] * 4 for row in range(1 + n % 2)]}) for n in range(6)]
        answers = gathered.answers([ScriptRequest(b"id", body.encode()) for body in bodies])
        right = all(
            np.allclose(json.loads(answer.body), run(json.loads(body)["data"]), rtol=1e-5)
            for body, answer in zip(bodies, answers, strict=True)
        )
        FOUND[name] = [methods, gathered.largest_batch, right]
    except Disproved as reason:
        FOUND[name] = str(reason)
    finally:
        gathered.close()
"""

_EAGER = """
model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(3, activation="softmax")])
noisy = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.GaussianNoise(1.0)])


class Module(tf.Module):
    def __init__(self):
        super().__init__()
        self.weights = tf.Variable(tf.random.stateless_normal((4, 3), seed=(1, 2)))

    @tf.function(input_signature=[tf.TensorSpec((None, 4), tf.float32)], autograph=False)
    def score(self, x):
        return {"scores": x @ self.weights, "sums": tf.reduce_sum(x, axis=1)}

    @tf.function(input_signature=[tf.TensorSpec((None, 4), tf.float32)], autograph=False)
    def centred(self, x):
        return x - tf.reduce_mean(x, axis=0)


module = Module()
folder = sys.argv[1]
tf.saved_model.save(module, folder, signatures={"serving_default": module.score})
loaded = tf.saved_model.load(folder)
signature = loaded.signatures["serving_default"]

try_out("call", lambda rows: model(np.array(rows, np.float32), training=False).numpy().tolist())
try_out("call with tensors", lambda rows: model(tf.constant(rows)).numpy().tolist())
try_out("predict", lambda rows: model.predict(np.array(rows), verbose=0).tolist())
try_out("predict_on_batch", lambda rows: model.predict_on_batch(np.array(rows)).tolist())
try_out("signature", lambda rows: signature(x=tf.constant(rows))["scores"].numpy().tolist())
try_out("function", lambda rows: loaded.score(tf.constant(rows))["sums"].numpy().tolist())
try_out("mean over rows", lambda rows: loaded.centred(tf.constant(rows)).numpy().tolist())
try_out("noise", lambda rows: noisy(np.array(rows, np.float32), training=True).numpy().tolist())
"""

_GRAPH = """
v1 = tf.compat.v1
graph = tf.Graph()
doubled = v1.Session(graph=tf.Graph())
with doubled.graph.as_default():
    inner = v1.placeholder(tf.float32, (None, 4))
    outer = inner * 2


def in_default_session(rows):
    assert v1.get_default_graph() is graph
    assert v1.get_default_session() is session
    return y.eval({x: rows}).tolist()


# `init` of a script leaves such a session on its thread.
with graph.as_default(), v1.Session().as_default() as session:
    x = v1.placeholder(tf.float32, (None, 4), name="x")
    keep = v1.placeholder_with_default(1.0, (), name="keep")
    y = tf.multiply(x, 3.0 * keep, name="y")
    try_out("eval", lambda rows: y.eval(session=session, feed_dict={x: np.array(rows)}).tolist())
    try_out("default session", in_default_session)
    try_out("names", lambda rows: session.run(["y:0", "x:0"], {"x:0": rows, "keep:0": 0.5})[0].tolist())
    try_out("two sessions", lambda rows: doubled.run(outer, {inner: session.run(y, {x: rows})}).tolist())
print(json.dumps(FOUND))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """For each script the gathered methods, the largest batch, and whether answers were right; or the reason."""
    command = [sys.executable, "-c", _PRELUDE + _EAGER + _GRAPH, str(tmp_path_factory.mktemp("saved"))]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return dict(json.loads(ran.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    ("script", "method"),
    [
        ("call", "Model.__call__"),
        ("call with tensors", "Model.__call__"),
        ("predict", "Model.predict"),
        ("predict_on_batch", "Model.predict_on_batch"),
        ("signature", "ConcreteFunction.__call__"),
        ("function", "RestoredFunction.__call__"),
        ("eval", "BaseSession.run"),
        ("default session", "BaseSession.run"),
        ("names", "BaseSession.run"),
        ("two sessions", "BaseSession.run"),
    ],
)
def test_calls_are_gathered(found: dict[str, object], script: str, method: str) -> None:
    """All ways to call Keras, a SavedModel or a session are gathered; all six requests come together."""
    assert found[script] == [[method], 6, True]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (
            "mean over rows",
            "RestoredFunction.__call__: beside a row of the kind 'other' row 1 of 2 gets another answer",
        ),
        ("noise", "two equal requests got different answers: "),
    ],
)
def test_function_that_mixes_rows_is_not_batched(found: dict[str, object], script: str, reason: str) -> None:
    """A function that looks at all rows, and a random one, are not batched."""
    assert str(found[script]).startswith(reason)
