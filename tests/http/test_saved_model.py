"""SavedModels: TensorFlow Serving's layout served as it is."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.http.raw_http import rows_body, scoring
from tests.live_server import PRIMARY, LiveServer
from tests.patience import PROGRAM_S

from stoker_client import Client

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"),
]

# TensorFlow warns a lot, and never gives its memory back: it is imported in a process of its own.
_WRITE_MODELS = """
import json
import logging
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import numpy as np

from stoker.settings.choices import Acceleration
from stoker.errors import LoadFailed
from stoker.offline import Predictor
from stoker.runtimes.tensorflow import load_saved_model
from stoker.runtimes.tensorflow_setup import import_tensorflow
from stoker.deployment import Device, Deployment
from stoker.wire.packed import pack, unpack
from stoker.wire.tfs_examples import entry_of, example_of

logging.basicConfig(level="INFO")
cpu = Device("cpu", 0, "a processor")
tf = import_tensorflow(cpu, 1, keras=False)

class Squares(tf.Module):
    def __init__(self, plus):
        self.plus = tf.Variable(float(plus))

    @tf.function(input_signature=[tf.TensorSpec([None, 2, 3], tf.float32, name="x")])
    def __call__(self, x):
        return {"squares": x * x + self.plus, "sums": tf.reduce_sum(x, [1, 2])}

for version in sys.argv[2:]:
    model = Squares(version)
    tf.saved_model.save(model, f"{sys.argv[1]}/{version}", signatures=model.__call__)

path = Path(sys.argv[1], version)
xla = Acceleration(xla=True)
deployment = Deployment("squares", 1, "tensorflow", path, path, 8, 1024, batch_buckets=(1, 4), acceleration=xla)
runtime = load_saved_model(deployment, cpu, 1)
rows = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
answers = {
    size: [array.tolist() for array in each.run([rows[:size]])]
    for size, each in ((1, runtime), (3, runtime), (4, runtime.fork()))
}
marked = {
    size: compiled.function_def.attr["_XlaMustCompile"].b for size, compiled in runtime.fork()._compiled.items()
}
names = [spec.name for spec in runtime.signature.outputs]

class Several(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, name="x")])
    def embed(self, x):
        return {"embedding": x + 1}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="words")])
    def lengths(self, words):
        return {"lengths": tf.strings.length(words)}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.complex64, name="z")])
    def odd(self, z):
        return {"z": z}

several = Several()
tf.saved_model.save(several, f"{sys.argv[1]}-several", signatures={
    "embed": several.embed, "lengths": several.lengths, "odd": several.odd,
})

v1 = tf.compat.v1
with tf.Graph().as_default(), v1.Session() as session:
    inputs = v1.placeholder(tf.string, [None], name="inputs")
    (x,) = v1.parse_example(inputs, {"x": v1.FixedLenFeature([2], tf.float32)}).values()
    scores = tf.nn.softmax(x)
    classes = tf.tile([["no", "yes"]], [tf.shape(scores)[0], 1])
    describe = v1.saved_model
    builder = describe.Builder(f"{sys.argv[1]}-methods")
    builder.add_meta_graph_and_variables(session, ["serve"], {
        "serving_default": describe.classification_signature_def(inputs, classes, scores),
        "sums": describe.regression_signature_def(inputs, tf.reduce_sum(x, 1)),
        "raw": describe.predict_signature_def({"x": x}, {"scores": scores}),
    })
    builder.save()

def loaded(name, *signatures):
    path = Path(f"{sys.argv[1]}-{name}")
    return load_saved_model(Deployment(name, 1, "tensorflow", path, path, 8, 1024, signatures=signatures), cpu, 1)

def refused(*arguments):
    try:
        loaded(*arguments)
    except LoadFailed as error:
        return str(error)

embed = loaded("several", "embed")
both = loaded("several", "lengths", "*").fork()
words = np.empty(2, object)
words[:] = [b"a", b"abc"]
(given,) = both.run([[
    pack({"x": np.float32([[1, 2]])}, "embed"),
    pack({"words": words}),
    pack({"x": np.float32([[3, 4], [5, 6]])}, "embed"),
]])
methods = loaded("methods", "*")
example = example_of([entry_of("x", [0.5, 0.5])])
examples = np.empty(1, object)
examples[:] = [example]
(judged,) = methods.run([[pack({"inputs": examples}), pack({"inputs": examples}, "sums")]])
offline = Predictor(sys.argv[1], "cpu", max_batch_rows=64)(np.load(f"{sys.argv[1]}.npy"))
np.savez(f"{sys.argv[1]}.npz", **offline)
print(json.dumps({
    "keras": ["keras" in sys.modules, PathFinder.find_spec("tensorflow.keras", tf.__path__) is not None],
    "names": names,
    "answers": answers,
    "compiled": marked,
    "refused": [refused("several"), refused("several", "*"), refused("several", "odd"), refused("several", "more")],
    "embed": [str(embed.signature), [named.name for named in embed.signature.signatures]],
    "embedded": embed.run([np.float32([[1, 2]])])[0].tolist(),
    "both": [[named.name, named.method, str(named.tensors.batched)] for named in both.signature.named],
    "given": [{name: array.tolist() for name, array in unpack(answer).items()} for answer in given],
    "methods": [[named.name, named.method] for named in methods.signature.named],
    "judged": [
        {name: array.astype(str).tolist() for name, array in unpack(answer).items()} for answer in judged
    ],
}))
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], str]:
    """A base path in TensorFlow Serving's layout with the versions 2 and 10 of a model of two outputs.

    Beside it what the process that wrote them found when it compiled the latter, and its log.
    """
    base = tmp_path_factory.mktemp("saved-model") / "models" / "squares"
    base.parent.mkdir()
    np.save(f"{base}.npy", np.random.default_rng(4).standard_normal((100, 2, 3)).astype(np.float32))
    command = [sys.executable, "-c", _WRITE_MODELS, str(base), "2", "10"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_S, check=False)
    assert done.returncode == 0, done.stderr
    return base, json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.fixture(scope="module")
def squares(
    written: tuple[Path, dict[str, Any], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveServer]:
    """A server of both versions."""
    scratch = tmp_path_factory.mktemp("server")
    with LiveServer(scratch, written[0], "--frontends", "1", "--device", "cpu") as server:
        yield server


def test_keras_is_not_imported_and_stays_importable(written: tuple[Path, dict[str, Any], str]) -> None:
    """It would be half of the processor time of a start, and a program that predicts may want it later."""
    assert written[1]["keras"] == [False, True]


def test_sizes_of_batches_are_compiled_with_xla(written: tuple[Path, dict[str, Any], str]) -> None:
    """Each bucket once; other sizes run as they did, forks share what was compiled, and all answer the same."""
    _, report, log = written
    assert report["compiled"] == {"1": True, "4": True}
    assert "squares: compiled with XLA for batches of 1, 4 rows in " in log
    rows = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    for size in (1, 3, 4):
        answers = dict(zip(report["names"], report["answers"][str(size)], strict=True))
        np.testing.assert_allclose(answers["squares"], rows[:size] ** 2 + 10, rtol=1e-6)
        np.testing.assert_allclose(answers["sums"], rows[:size].sum(axis=(1, 2)), rtol=1e-6)


def test_a_single_signature_keeps_its_rows(written: tuple[Path, dict[str, Any], str]) -> None:
    """It is named, for the model has no `serving_default`; without a name the error says which there are."""
    _, report, _ = written
    assert report["embed"] == ["x float32[n,2] -> embedding float32[n,2]", ["embed"]]
    assert report["embedded"] == [[2.0, 3.0]]
    unclear, every, odd, unknown = report["refused"]
    for message in (unclear, every):
        assert "no signature 'serving_default', and several others: embed, lengths, odd" in message
        assert "the setting signature (--signature)" in message
    assert "'z' of" in odd
    assert "complex64" in odd
    assert "has no signature 'more', it has: embed, lengths, odd" in unknown


def test_several_signatures_share_a_model(written: tuple[Path, dict[str, Any], str]) -> None:
    """Each request is answered by the signature that it names; what cannot be served is left out and said."""
    _, report, log = written
    assert report["both"] == [["lengths", "predict", "True"], ["embed", "predict", "True"]]
    assert report["given"] == [
        {"embedding": [[2.0, 3.0]]},
        {"lengths": [1, 3]},
        {"embedding": [[4.0, 5.0], [6.0, 7.0]]},
    ]
    assert "several: the signature odd is left out: 'z' of" in log


def test_signatures_that_parse_examples(written: tuple[Path, dict[str, Any], str]) -> None:
    """Their use is read from the SavedModel, which parses the examples that are serialized here."""
    _, report, _ = written
    assert report["methods"] == [["serving_default", "classify"], ["raw", "predict"], ["sums", "regress"]]
    assert report["judged"] == [
        {"classes": [["no", "yes"]], "scores": [["0.5", "0.5"]]},
        {"outputs": ["1.0"]},
    ]


def test_the_newest_version_answers_with_all_outputs(squares: LiveServer) -> None:
    """Of a base path the highest number is served, compared as a number; outputs come by name."""
    rows = np.arange(18, dtype=np.float32).reshape(3, 2, 3)
    with squares.connect() as connection:
        answer = connection.ask(scoring("/score", PRIMARY, rows_body(*rows.tolist())))

    assert answer.status == 200
    content = answer.json()
    assert set(content) == {"squares", "sums"}
    np.testing.assert_allclose(content["squares"], rows * rows + 10)
    np.testing.assert_allclose(content["sums"], rows.sum(axis=(1, 2)))
    assert "squares version 10 (tensorflow)" in squares.output()


def test_a_predictor_gives_the_same_bits(
    written: tuple[Path, dict[str, Any], str], squares: LiveServer
) -> None:
    """A hundred rows, in batches of 64 without a server, are answered as by the server."""
    base = written[0]
    with Client(f"http://127.0.0.1:{squares.port}/score", PRIMARY) as client:
        theirs = client.infer({"x": np.load(f"{base}.npy")})
    with np.load(f"{base}.npz") as ours:
        assert {name: ours[name].tobytes() for name in ours} == {
            name: array.tobytes() for name, array in theirs.items()
        }


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([1, 2, 3], "expected rows of 2 × 3 numbers, row 0 has 3"),
        ([[1, 2, 3], [4, 5]], "expected rows of 2 × 3 numbers, row 0 has 2"),
        ([[1, 2, 3], [4, 5, "6"]], "row 0 has a string, expected a number"),
    ],
)
def test_rows_of_two_axes_are_checked(squares: LiveServer, row: list[object], message: str) -> None:
    """Rows of several axes are checked at every level."""
    with squares.connect() as connection:
        answer = connection.ask(scoring("/score", PRIMARY, rows_body(row)))

    assert (answer.status, answer.error_code()) == (422, "invalid_input")
    assert message in answer.json()["message"]


def test_the_description_shows_the_shape(squares: LiveServer) -> None:
    """The signature of the SavedModel is in the description."""
    schemas = squares.describe("/swagger.json").json()["definitions"]
    row = schemas["ServiceInput"]["properties"]["data"]["items"]

    assert (row["minItems"], row["maxItems"]) == (2, 2)
    assert (row["items"]["minItems"], row["items"]["maxItems"]) == (3, 3)
    assert set(schemas["ServiceOutput"]["properties"]) == {"squares", "sums"}


def test_only_the_device_process_holds_tensorflow(squares: LiveServer) -> None:
    """No framework is mapped into frontends or the supervisor."""
    holders = {pid for pid in squares.pids() if "libtensorflow" in Path(f"/proc/{pid}/maps").read_text()}

    assert holders == set(squares.device_pids())
