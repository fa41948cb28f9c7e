"""A TensorFlow 1 graph from its checkpoint: JSON to classes by `json.loads`, a session and `np.argmax`.

Source: the names of the graph's ends and its place in the model folder are those of Azure's how-to for GPU
inference, https://learn.microsoft.com/azure/machine-learning/how-to-deploy-inferencing-gpus
"""

import json
import os
from typing import Any

import numpy as np
import tensorflow as tf

images: Any
logits: Any
session: Any


def init() -> None:
    """Restore the graph and its variables."""
    global images, logits, session  # noqa: PLW0603 - the contract of an entry script
    tf.reset_default_graph()
    prefix = os.path.join(os.environ["AZUREML_MODEL_DIR"], "model", "mnist-tf.model")  # noqa: PTH118
    saver = tf.train.import_meta_graph(prefix + ".meta")
    images = tf.get_default_graph().get_tensor_by_name("network/X:0")
    logits = tf.get_default_graph().get_tensor_by_name("network/output/MatMul:0")
    session = tf.Session()
    saver.restore(session, prefix)


def run(raw_data: str) -> list[int]:
    """Answer [class, …] to {"data": [[784 floats], …]}."""
    rows = np.array(json.loads(raw_data)["data"])
    found = logits.eval(session=session, feed_dict={images: rows})
    classes: list[int] = np.argmax(found, axis=1).tolist()
    return classes
