"""The three models that a training exports: SavedModel, ONNX, TensorFlow 1 checkpoint; and whether they agree.

The SavedModel has the signature `serving_default` with the input `x` and the output `logits`. tf2onnx converts its
serving function to the ONNX model, with a dynamic batch axis. It was tried with TensorFlow 2.21, protobuf 7 and
numpy 2.4 and gives plain graphs (MatMul, Add, Relu, Conv, MaxPool), so the networks are not described a second time.

The checkpoint `mnist-tf.model` has the placeholder `network/X:0` and the logits `network/output/MatMul:0`. The Azure
how-to "Deploy a deep learning model for inference with GPU" serves such a checkpoint: its entry scripts keep working.
They read the result of the last matrix product, which must therefore hold the bias: the last hidden activation gets a
column of ones, and the last kernel gets the bias as one more row.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker.errors import OperatorError
from stoker_training.fitting import PIXELS
from stoker_training.frameworks import keras, tf

if TYPE_CHECKING:
    from collections.abc import Callable

_CHUNK_ROWS = 1000

Rows = NDArray[np.float32]


def in_chunks(score: Callable[[Rows], Rows], rows: Rows) -> Rows:
    """Apply `score` (float32[n, 784] to float32[n, 10]) chunk by chunk: float32[rows, 10].

    A convolution's activations of 10,000 images at once would take gigabytes.
    """
    chunks = np.array_split(rows, max(1, len(rows) // _CHUNK_ROWS))
    return np.concatenate([score(chunk) for chunk in chunks])


def serving_function(model: keras.Model) -> tf.types.experimental.PolymorphicFunction:
    """Return the model as a `tf.function`: `x` float32[n, 784] to `{"logits": float32[n, 10]}`."""

    def serve(x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"logits": model(x, training=False)}

    return tf.function(serve, input_signature=[tf.TensorSpec([None, PIXELS], tf.float32, name="x")])


def write_saved_model(model: keras.Model, folder: Path) -> None:
    """Write the model for serving: only weights and graph, no optimizer and no Keras objects."""
    module = tf.Module()
    module.variables_of_model = model.weights
    module.serve = serving_function(model)
    tf.saved_model.save(module, str(folder), signatures={"serving_default": module.serve})


def saved_model_logits(folder: Path, rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Run the written SavedModel: rows float32[n, 784] to logits float32[n, 10]."""
    serve = tf.saved_model.load(str(folder)).signatures["serving_default"]
    return in_chunks(lambda chunk: serve(x=tf.constant(chunk))["logits"].numpy(), rows)


_OPSET = 17


def write_onnx(model: keras.Model, path: Path) -> None:
    """Convert the Keras model and write it, checked against the ONNX specification."""
    import onnx
    import tf2onnx

    serve = serving_function(model)
    converted, _ = tf2onnx.convert.from_function(serve, input_signature=serve.input_signature, opset=_OPSET)
    for tensor in (*converted.graph.input, *converted.graph.output):
        tensor.type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.checker.check_model(converted, full_check=True)
    onnx.save(converted, path)


def onnx_logits(path: Path, rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Run the written ONNX model on the CPU: rows float32[n, 784] to logits float32[n, 10]."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return in_chunks(lambda chunk: session.run(["logits"], {"x": chunk})[0], rows)


CHECKPOINT = Path("model") / "mnist-tf.model"
"""The checkpoint's prefix within the run folder; TensorFlow adds `.meta`, `.index` and `.data-…`."""

_v1 = tf.compat.v1


def write_checkpoint(model: keras.Model, prefix: Path) -> None:
    """Write the Keras model as a graph and its variables, readable by TensorFlow 1 (`import_meta_graph`)."""
    prefix.parent.mkdir(parents=True)
    # Keras reads weights only outside of a TensorFlow 1 graph.
    *hidden, (_, (kernel, bias)) = [(layer, layer.get_weights()) for layer in model.layers]
    values = _Values()
    with tf.Graph().as_default():
        with _v1.variable_scope("network", use_resource=False):
            activation = _v1.placeholder(tf.float32, [None, PIXELS], name="X")
            for layer, weights in hidden:
                with _v1.variable_scope(layer.name):
                    activation = _grow(layer, [values.variable(weight) for weight in weights], activation)
            with _v1.variable_scope("output"):
                with_ones = tf.concat([activation, tf.ones_like(activation[:, :1])], axis=1)
                tf.matmul(with_ones, values.variable(np.vstack([kernel, bias])), name="MatMul")
        with _cpu_session() as session:
            values.assign(session)
            _v1.train.Saver().save(session, str(prefix), write_state=False, strip_default_attrs=True)


def checkpoint_logits(prefix: Path, rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Restore the written checkpoint and run it: rows float32[n, 784] to logits float32[n, 10]."""
    with tf.Graph().as_default() as graph, _cpu_session() as session:
        _v1.train.import_meta_graph(f"{prefix}.meta").restore(session, str(prefix))
        output = graph.get_tensor_by_name("network/output/MatMul:0")
        return in_chunks(lambda chunk: session.run(output, {"network/X:0": chunk}), rows)


def _grow(layer: keras.Layer, variables: list[tf.Variable], activation: tf.Tensor) -> tf.Tensor:
    """Append what `layer` does at inference to the graph."""
    layers = keras.layers
    if isinstance(layer, layers.Dropout):
        return activation
    if isinstance(layer, layers.Reshape | layers.Flatten):
        return tf.reshape(activation, [-1, *layer.output.shape[1:]])
    if isinstance(layer, layers.MaxPooling2D):
        return tf.nn.max_pool2d(activation, layer.pool_size, layer.strides, layer.padding.upper())
    kernel, bias = variables
    if isinstance(layer, layers.Conv2D):
        product = tf.nn.conv2d(activation, kernel, layer.strides, layer.padding.upper())
    else:
        product = tf.matmul(activation, kernel)
    return tf.nn.relu(tf.nn.bias_add(product, bias))


class _Values:
    """The graph's variables and what they shall hold; fed in, as constants would swell the graph's file."""

    def __init__(self) -> None:
        self._fed: dict[tf.Operation, NDArray[np.float32]] = {}

    def variable(self, value: NDArray[np.float32]) -> tf.Variable:
        """Return a new variable named by its rank: `bias` for vectors, `kernel` for the rest."""
        name = "bias" if value.ndim == 1 else "kernel"
        variable = _v1.get_variable(name, shape=value.shape, initializer=_v1.zeros_initializer())
        self._fed[variable.initializer] = value
        return variable

    def assign(self, session: tf.compat.v1.Session) -> None:
        """Give every variable its value."""
        session.run(list(self._fed), {assign.inputs[1]: value for assign, value in self._fed.items()})


def _cpu_session() -> tf.compat.v1.Session:
    """A session that leaves the GPUs alone: their memory would stay taken after it."""
    return _v1.Session(config=_v1.ConfigProto(device_count={"GPU": 0}))


TOLERANCE = 1e-3
"""Largest difference of two logits that still counts as the same model."""


class Difference(NamedTuple):
    """How far an export is apart from the SavedModel on the same rows.

    Attributes:
        largest: Largest absolute difference of two logits.
        classes_differ: Rows to which it gives another class.
    """

    largest: float
    classes_differ: int


class Agreement(NamedTuple):
    """The SavedModel's logits, float32[n, 10], and how far the ONNX model and the checkpoint are apart from it."""

    logits: Rows
    onnx: Difference
    checkpoint: Difference


def measure(saved_model: Path, onnx_model: Path, checkpoint: Path, rows: Rows) -> Agreement:
    """Run the three written models on `rows` float32[n, 784] and compare their logits."""
    reference = saved_model_logits(saved_model, rows)

    def compare(logits: Rows) -> Difference:
        differ = np.count_nonzero(reference.argmax(axis=1) != logits.argmax(axis=1))
        return Difference(float(np.abs(reference - logits).max()), int(differ))

    return Agreement(
        reference, compare(onnx_logits(onnx_model, rows)), compare(checkpoint_logits(checkpoint, rows))
    )


def require(agreement: Agreement, tolerance: float = TOLERANCE) -> None:
    """Refuse a run whose exports disagree."""
    for name, difference in (
        ("ONNX model", agreement.onnx.largest),
        ("TensorFlow 1 checkpoint", agreement.checkpoint.largest),
    ):
        # Not `difference > tolerance`: a difference that is not a number is a disagreement too.
        if not difference <= tolerance:
            raise OperatorError(
                f"the {name} disagrees with the SavedModel: the largest difference of two logits on the test "
                f"images is {difference:.3g}, at most {tolerance:g} is accepted; no run folder was written"
            )
