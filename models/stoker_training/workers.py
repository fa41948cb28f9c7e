"""Training on several nodes: the workers of `TF_CONFIG` take each step together, and their weights stay equal.

Keras 3's `fit` fails under `MultiWorkerMirroredStrategy`, so the loop of epochs and steps is written out here.
"""

from __future__ import annotations

import json
import os
import zlib
from typing import TYPE_CHECKING

import numpy as np

from stoker.errors import OperatorError
from stoker_training.frameworks import keras, tf

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from stoker_training.digits import Digits


def are_several() -> bool:
    """Whether this process is one of several workers."""
    try:
        cluster = json.loads(os.environ.get("TF_CONFIG", "{}"))["cluster"]
    except (ValueError, LookupError, TypeError):
        return False
    return len(cluster.get("worker", ())) > 1


class Workers:
    """All workers of one training, as each of them sees them.

    They communicate by NCCL where they have GPUs, else by gRPC.

    Attributes:
        rank: Number of this worker; worker 0 writes the outputs.
        count: Number of all workers.
    """

    def __init__(self, *, have_gpus: bool) -> None:
        kinds = tf.distribute.experimental.CommunicationImplementation
        self.strategy = tf.distribute.MultiWorkerMirroredStrategy(
            communication_options=tf.distribute.experimental.CommunicationOptions(
                implementation=kinds.NCCL if have_gpus else kinds.RING
            )
        )
        cluster = self.strategy.cluster_resolver
        self.rank: int = cluster.task_id
        self.count: int = len(cluster.cluster_spec().as_dict()["worker"])

    def wait(self) -> None:
        """Wait until all workers are here."""
        self.gather(0)

    def gather(self, value: float) -> list[float]:
        """Return the value of each worker; all of them have to call this."""
        given = tf.constant([value], tf.float64)
        each = self.strategy.run(tf.identity, args=(given,))
        return [float(one) for one in self.strategy.gather(each, axis=0)]

    def require_same(self, subject: str, arrays: Sequence[NDArray[np.generic]]) -> int:
        """Compare arrays with those of the other workers, and return their checksum.

        Raises:
            OperatorError: They differ.
        """
        own = 0
        for array in arrays:
            own = zlib.crc32(np.ascontiguousarray(array).tobytes(), own)
        if set(self.gather(own)) != {own}:
            raise OperatorError(
                f"the workers have different {subject}: that of worker {self.rank} is {own:08x}"
            )
        return own


def fit_together(
    workers: Workers,
    model: keras.Model,
    optimizer: keras.Optimizer,
    digits: Digits,
    training: NDArray[np.int64],
    *,
    batch_rows: int,
    seed: int,
) -> Iterator[dict[str, float]]:
    """Train epoch after epoch, and yield the loss and accuracy of each.

    Args:
        model: Built, as the optimizer is, in the scope of the workers' strategy.
        training: The rows to train on, the same for all workers.
        batch_rows: Rows of one step; each device computes an equal part of them.
    """
    strategy, order = workers.strategy, np.random.default_rng(seed)

    def step_of_device(rows: tf.Tensor, classes: tf.Tensor, share: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            logits = model(rows, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(classes, logits)
            loss = tf.reduce_sum(losses) * share
        # The optimizer adds up the gradients of all devices.
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        right = tf.reduce_sum(tf.cast(tf.argmax(logits, 1) == classes, tf.float32))
        return loss, right

    @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]  # TensorFlow has no types
    def step(*given: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        loss, right = strategy.run(step_of_device, args=given)
        return strategy.reduce("SUM", loss, None), strategy.reduce("SUM", right, None)

    def distribute(parts: Sequence[NDArray[np.int64]], values: NDArray[np.generic]) -> tf.Tensor:
        return strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(values[parts[context.replica_id_in_sync_group]])
        )

    while True:
        shuffled = order.permutation(training)
        loss_sum = right_sum = 0.0
        for begin in range(0, len(shuffled), batch_rows):
            batch = shuffled[begin : begin + batch_rows]
            parts = np.array_split(batch, strategy.num_replicas_in_sync)
            loss, right = step(
                distribute(parts, digits.train_rows),
                distribute(parts, digits.train_classes),
                tf.constant(1 / len(batch), tf.float32),
            )
            loss_sum, right_sum = loss_sum + float(loss) * len(batch), right_sum + float(right)
        yield {"loss": loss_sum / len(training), "accuracy": right_sum / len(training)}
