"""SavedModels as TensorFlow itself loads them, in the process of the tests."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import LoadFailed
from stoker.runtimes.base import Runtime
from stoker.runtimes.tensorflow import load_saved_model
from stoker.servable import Device, Servable

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed"),
]

CPU = Device("cpu", 0, "a processor")


@pytest.fixture(autouse=True)
def _set_up_already(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which devices and threads TensorFlow has can be said only once in a process."""
    import tensorflow as tf

    monkeypatch.setattr("stoker.runtimes.tensorflow.import_tensorflow", lambda *_: tf)


def load(path: Path, *signatures: str, **settings: Any) -> Runtime:
    """The runtime of a SavedModel, of its default signature or of those that are named."""
    servable = Servable(path.name, 1, "tensorflow", path, path, 8, 1 << 20, signatures=signatures, **settings)
    return load_saved_model(servable, CPU, 1)


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of functions of rows that are no plain functions of rows, each a signature."""
    import tensorflow as tf

    module = tf.Module()
    rows = tf.TensorSpec([None, 3], tf.float32, "x")

    def add(name: str, function: Any, spec: Any = rows) -> None:
        setattr(module, name, tf.function(lambda x: {"y": function(x)}, input_signature=[spec]))

    add("ragged", tf.strings.split, tf.TensorSpec([None], tf.string, "x"))
    add("sparse", tf.sparse.from_dense)
    add("slices", lambda x: tf.IndexedSlices(x, tf.range(tf.shape(x)[0])))
    add("positive", lambda x: tf.boolean_mask(x, x[:, 0] >= 0))
    names = ("ragged", "sparse", "slices", "positive")
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
def test_what_is_no_dense_tensor_is_refused(odd: Path, name: str, kind: str, advice: str) -> None:
    """What it consists of has other rows than the inputs; the error says what to export instead."""
    with pytest.raises(LoadFailed) as refused:
        load(odd, name)
    assert f"'y' of {odd} is no dense tensor ({kind})" in str(refused.value)
    assert f"export a signature that has {advice} in its place" in str(refused.value)


def test_rows_of_which_some_are_left_out_are_not_batched(odd: Path) -> None:
    """How many rows come back depends on what they hold, so whose each is cannot be told."""
    verdict = load(odd, "positive").signature.verdict
    assert verdict is not None
    assert not verdict.batched
