"""The one place that imports TensorFlow and Keras: quietly, as Keras's backend, in full float32."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["keras", "tf"]


@contextmanager
def _native_noise_held_back() -> Iterator[None]:
    """Hold back what native code writes to standard error, and let it out if the import fails.

    TensorFlow logs about missing CUDA libraries before its log level takes effect.
    """
    sys.stderr.flush()
    with tempfile.TemporaryFile() as held:
        kept = os.dup(2)
        os.dup2(held.fileno(), 2)
        try:
            yield
        except Exception:
            held.seek(0)
            os.write(kept, held.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)


os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["KERAS_BACKEND"] = "tensorflow"
# NVML counts devices in this order; with CUDA's own, the free memory of one GPU would be told of another.
os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")

with _native_noise_held_back():
    import keras
    import tensorflow as tf

tf.get_logger().setLevel("ERROR")
keras.config.disable_interactive_logging()
# A personal keras.json may say otherwise.
keras.config.set_floatx("float32")
keras.config.set_image_data_format("channels_last")
# TensorFloat-32 keeps 10 bits of each factor: the SavedModel would miss the ONNX model's logits.
tf.config.experimental.enable_tensor_float_32_execution(False)
# A program that has used its GPUs before it trains has settled how their memory grows.
with suppress(RuntimeError):
    for _gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(_gpu, True)
