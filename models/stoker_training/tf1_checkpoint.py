"""The TensorFlow 1 checkpoint `mnist-tf.model`: placeholder `network/X:0`, logits `network/output/MatMul:0`.

It is what the Azure how-to "Deploy a deep learning model for inference with GPU" serves, so entry scripts
written for that keep working. Those read the result of the last matrix product, so the product must already
hold the bias: the last hidden activation gets a column of ones, the last kernel the bias as one more row.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from stoker_training.chunks import in_chunks
from stoker_training.frameworks import keras, tf
from stoker_training.networks import PIXELS

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["CHECKPOINT", "checkpoint_logits", "write_checkpoint"]

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
