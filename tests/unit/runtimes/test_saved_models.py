"""SavedModels that TensorFlow itself loads, in the process of the tests."""

from __future__ import annotations

import base64
import json
import logging
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.deployment import Deployment, Device
from stoker.device import loading
from stoker.errors import LoadFailed
from stoker.runtimes.base import Runtime
from stoker.runtimes.tensorflow import load_saved_model
from stoker.tensors import TensorInfo
from stoker.wire.packed import pack, unpack
from stoker.wire.tfs_examples import entry_of, example_of

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed"),
]

CPU = Device("cpu", 0, "a processor")
WRITTEN = Path(__file__).parents[2] / "saved_models"
NAMES = sorted(folder.name for folder in WRITTEN.glob("tf*"))


@pytest.fixture(autouse=True)
def _skip_setup(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process can set the devices and threads of TensorFlow only once."""
    import tensorflow as tf

    monkeypatch.setattr("stoker.runtimes.tensorflow.import_tensorflow", lambda *_, **__: tf)


def load(path: Path, *signatures: str, **settings: Any) -> Runtime:
    """Load the default signature of a SavedModel, or the named ones."""
    deployment = Deployment(
        path.name, 1, "tensorflow", path, path, 8, 1 << 20, signatures=signatures, **settings
    )
    return load_saved_model(deployment, CPU, 1)


def _bytes(value: Any) -> bytes:
    """Return the bytes of a string, or of the object for bytes or an example in a file of expectations."""
    if isinstance(value, str):
        return value.encode()
    if "b64" in value:
        return base64.b64decode(value["b64"])
    return example_of([entry_of(name, numbers) for name, numbers in value["example"].items()])


def array_of(info: TensorInfo, value: Any) -> np.ndarray:
    """Return an input or output from a file of expectations as an array."""
    if info.dtype != "string":
        return np.array(value, info.dtype)
    array = np.empty(np.shape(value) if isinstance(value, list) else (), object)
    flat = np.array(value, object).reshape(-1).tolist()
    array.reshape(-1)[:] = [_bytes(each) for each in flat]
    return array


def answer(
    runtime: Runtime, inputs: dict[str, Any], signature: str = "serving_default"
) -> dict[str, np.ndarray]:
    """Return the answer to a request, whether the rows of the runtime are requests or rows of numbers."""
    (named,) = [each for each in runtime.signature.named if each.name == signature]
    feeds = {info.name: array_of(info, inputs[info.name]) for info in named.tensors.inputs}
    if runtime.signature.takes == "tensors":
        (answers,) = runtime.run([[pack(feeds, signature)]])
        assert isinstance(answers[0], bytes), answers[0]
        return dict(unpack(answers[0]))
    outputs = runtime.run([feeds[spec.name] for spec in runtime.signature.inputs])
    specs = runtime.signature.outputs
    return {spec.name: np.asarray(given) for spec, given in zip(specs, outputs, strict=True)}


def check(runtime: Runtime, signature: str, expected: dict[str, Any]) -> None:
    """Compare the answer of a signature with the answer of the TensorFlow that wrote the model."""
    (named,) = [each for each in runtime.signature.named if each.name == signature]
    answers = answer(runtime, expected["inputs"], signature)
    assert answers.keys() == expected["outputs"].keys()
    for info in named.tensors.outputs:
        wanted = array_of(info, expected["outputs"][info.name])
        assert answers[info.name].shape == wanted.shape
        if info.dtype == "string":
            assert answers[info.name].tolist() == wanted.tolist()
        else:
            rtol = 5e-3 if info.dtype == "float16" else 1e-5
            np.testing.assert_allclose(answers[info.name], wanted, rtol=rtol)


def _write(x: Any) -> Any:
    import tensorflow as tf

    with tf.control_dependencies([tf.io.write_file("/dev/null", "written")]):
        return tf.identity(x)


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of signatures that are no plain functions of rows of numbers."""
    import tensorflow as tf

    module = tf.Module()
    rows = tf.TensorSpec([None, 3], tf.float32, "x")

    def add(name: str, function: Any, spec: Any = rows) -> None:
        setattr(module, name, tf.function(lambda x: {"y": function(x)}, input_signature=[spec]))

    add("ragged", tf.strings.split, tf.TensorSpec([None], tf.string, "x"))
    add("sparse", tf.sparse.from_dense)
    add("slices", lambda x: tf.IndexedSlices(x, tf.range(tf.shape(x)[0])))
    add("positive", lambda x: tf.boolean_mask(x, x[:, 0] >= 0))
    module.count = tf.Variable(0.0)
    add("counted", lambda x: x + module.count.assign_add(1.0))
    add("python", lambda x: tf.py_function(lambda y: y, [x], tf.float32))
    add("writing", _write)
    add("upper", tf.strings.upper, tf.TensorSpec([], tf.string, "x"))
    add("join", tf.strings.reduce_join, tf.TensorSpec([None], tf.string, "x"))
    add("mean", tf.reduce_mean)
    add("any", lambda x: tf.reduce_any(x > 0))
    names = (
        *("ragged", "sparse", "slices", "positive", "counted", "python", "writing"),
        *("upper", "join", "mean", "any"),
    )
    path = tmp_path_factory.mktemp("odd")
    tf.saved_model.save(module, str(path), signatures={name: getattr(module, name) for name in names})
    return path


@pytest.mark.parametrize(
    ("name", "kind", "advice"),
    [
        ("ragged", "RaggedTensor", "its to_tensor(shape=...)"),
        ("sparse", "SparseTensor", "tf.sparse.to_dense of it"),
        ("slices", "IndexedSlices", "tf.convert_to_tensor of it"),
    ],
)
def test_output_that_is_no_dense_tensor_is_refused(odd: Path, name: str, kind: str, advice: str) -> None:
    """The error names an output to export instead of a sparse or ragged one."""
    with pytest.raises(LoadFailed) as refused:
        load(odd, name)
    assert f"'y' of {odd} is no dense tensor ({kind})" in str(refused.value)
    assert f"export a signature that has {advice} in its place" in str(refused.value)


@pytest.mark.parametrize(
    ("name", "x", "expected"),
    [
        ("upper", "abc", b"ABC"),
        ("join", ["a", "b"], b"ab"),
        ("mean", [[1, 2, 3]], 2.0),
        ("any", [[0, 0, 1]], True),
    ],
)
def test_output_without_axes_is_one_value_for_its_request(
    odd: Path, name: str, x: Any, expected: Any
) -> None:
    """A scalar of TensorFlow is no array of numpy, and belongs to no row."""
    runtime = load(odd, name)
    assert runtime.signature.takes == "tensors"
    given = answer(runtime, {"x": x}, name)["y"]
    assert (given.shape, given.item()) == ((), expected)


def test_model_that_drops_rows_is_not_batched(odd: Path) -> None:
    """The number of rows in the answer depends on their values, so its rows cannot be assigned to callers."""
    isolation = load(odd, "positive").signature.isolation
    assert isolation is not None
    assert not isolation.batched


@pytest.mark.parametrize("name", NAMES)
def test_saved_model_of_any_tensorflow_is_served(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """All signatures answer as the TensorFlow that wrote them, without a warning."""
    expected = json.loads((WRITTEN / name / "expected.json").read_text())
    with caplog.at_level(logging.WARNING):
        runtime = load(WRITTEN / name, "*")
    assert [one for one in caplog.messages if "changes more than the answer" not in one] == []
    assert {named.name for named in runtime.signature.named} == expected.keys()
    for signature, case in expected.items():
        check(runtime, signature, case)


def test_models_beside_each_other_keep_their_variables() -> None:
    """Variables of TensorFlow 1 have the same names in each model, and no objects."""
    names = ("tf1_12_dense", "tf1_15_tags")
    runtimes = {name: load(WRITTEN / name) for name in names}
    for name in (*names, names[0]):
        expected = json.loads((WRITTEN / name / "expected.json").read_text())
        check(runtimes[name], "serving_default", expected["serving_default"])


@pytest.mark.parametrize("batching", ["auto", "rows"])
def test_variables_are_restored_after_the_test_of_rows(odd: Path, batching: str) -> None:
    """The first caller finds the saved values; from then on each call changes them."""
    deployment = Deployment(
        "counted", 1, "tensorflow", odd, odd, 8, 1 << 20, signatures=("counted",), batching=batching
    )
    loaded = loading.load(deployment, CPU)
    isolation = loaded.signature.isolation
    assert isolation is not None
    assert (isolation.batched, isolation.keeps_state) == (batching == "rows", True)
    assert batching == "rows" or "AssignAddVariableOp changes more than the answer" in isolation.reason
    other, _ = loading.fork(loaded, "counted")
    answers = [
        answer(each, {"x": [[0.0, 1.0, 2.0]]}, "counted")["y"].tolist() for each in (loaded.runtime, other)
    ]
    assert answers == [[[1.0, 2.0, 3.0]], [[2.0, 3.0, 4.0]]]


def test_a_model_keeps_state_if_one_of_its_signatures_does(odd: Path) -> None:
    """The signatures share their variables."""
    isolation = load(odd, "positive", "counted").signature.isolation
    assert isolation is not None
    assert isolation.keeps_state


def test_a_signature_that_calls_python_is_refused(odd: Path) -> None:
    """The file does not have the function; TensorFlow itself would fail only at the first request."""
    with pytest.raises(LoadFailed, match=r"the signature python of .* calls Python .* \(EagerPyFunc\)"):
        load(odd, "python")


def test_side_effects_are_logged_before_loading(odd: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One line has the operators of each signature that read or write outside of the server."""
    isolation = load(odd, "writing").signature.isolation
    assert (
        str(isolation) == "not batched: WriteFile changes more than the answer (batching: rows changes that)"
    )
    assert caplog.messages[0] == (
        f"{odd} reaches out of the server: for requests to python: EagerPyFunc; "
        "for requests to writing: WriteFile"
    )
