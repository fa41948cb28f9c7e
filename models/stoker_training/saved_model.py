"""The TensorFlow SavedModel: signature `serving_default`, input `x`, output `logits`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker_training.chunks import in_chunks
from stoker_training.frameworks import keras, tf
from stoker_training.networks import PIXELS

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["saved_model_logits", "serving_function", "write_saved_model"]


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
