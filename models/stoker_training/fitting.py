"""The three networks, from 784 grey values to 10 logits, and how they are fitted on one or several devices."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from stoker_training.frameworks import keras, tf

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from stoker_training.digits import Digits
    from stoker_training.spec import Network, TrainingSpec
    from stoker_training.workers import Workers

PIXELS = 784


_EPOCHS: dict[Network, int] = {"softmax": 20, "mlp": 14, "cnn": 12}
_LEARNING_RATE = 2e-3
"""Adam's, at the start; it falls to 0 along a half cosine."""


def build(network: Network) -> keras.Model:
    """Return a new Keras model: float32[n, 784] in 0..1 to logits float32[n, 10].

    The checkpoint of TensorFlow 1 is grown layer by layer: a new kind of layer needs its counterpart in
    `tf1_checkpoint`.
    """
    return keras.Sequential([keras.layers.Input((PIXELS,), name="x"), *_layers(network)], name=network)


def _layers(network: Network) -> list[keras.Layer]:
    dropout = keras.layers.Dropout
    if network == "softmax":
        return [_dense("output", 10)]
    if network == "mlp":
        return [
            _dense("hidden1", 300),
            dropout(0.3),
            _dense("hidden2", 100),
            dropout(0.2),
            _dense("output", 10),
        ]
    return [
        keras.layers.Reshape((28, 28, 1)),
        keras.layers.Conv2D(24, 3, activation="relu", name="convolution1"),
        keras.layers.MaxPooling2D(),
        keras.layers.Conv2D(48, 3, activation="relu", name="convolution2"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        dropout(0.25),
        _dense("hidden1", 128),
        dropout(0.5),
        _dense("output", 10),
    ]


def _dense(name: str, units: int) -> keras.Layer:
    """A layer with weights has a name of its own: Keras's counters would number the models of one process."""
    return keras.layers.Dense(units, activation=None if name == "output" else "relu", name=name)


_MOST_ROWS_PER_DEVICE = 256
_LEAST_STEPS_PER_EPOCH = 50
_VALIDATION_SHARE = 1 / 12
_VALIDATION_BATCH_ROWS = 1000
_PATIENCE_EPOCHS = 8


class Fit(Struct, frozen=True):
    """A fitted network.

    Attributes:
        model: The Keras model with the best weights, on the default device.
        history: For each of `loss`, `accuracy`, `val_loss`, `val_accuracy`: one value an epoch.
        best_epoch: The epoch, from 1, whose weights were kept: the one of the lowest validation loss.
        batch_rows: Rows in one training step, over all devices.
        validation_rows: Rows that were held back to choose the epoch.
    """

    model: keras.Model
    history: dict[str, list[float]]
    best_epoch: int
    batch_rows: int
    train_rows: int
    validation_rows: int
    fit_s: float


def fit(
    spec: TrainingSpec,
    digits: Digits,
    strategy: tf.distribute.Strategy,
    say: Callable[[str], None],
    log: Callable[[str, float, int], None] = lambda *_: None,
    workers: Workers | None = None,
) -> Fit:
    """Fit `spec.network` on the training rows of `digits`; deterministic with `spec.seed`.

    Args:
        digits: The rows; their test part is not touched.
        strategy: A `tf.distribute` strategy; the rows of one step grow with its replicas, unless there are workers.
        log: Gets the name, value and epoch, from 1, of each metric of an epoch.
        workers: All workers where this process is one of several; the strategy is theirs.
    """
    keras.utils.set_random_seed(spec.seed)
    tf.config.experimental.enable_op_determinism()
    validation_rows = max(1, round(len(digits.train_rows) * _VALIDATION_SHARE))
    order = np.random.default_rng(spec.seed).permutation(len(digits.train_rows))
    validation, training = order[:validation_rows], order[validation_rows:]
    devices = strategy.num_replicas_in_sync
    # A small set in large batches would make too few steps to learn anything.
    rows_per_device = max(1, min(_MOST_ROWS_PER_DEVICE, len(training) // _LEAST_STEPS_PER_EPOCH))
    if workers is not None:
        # As many steps as with one process, and so its accuracy.
        rows_per_device = max(1, rows_per_device // devices)
    batch_rows = rows_per_device * devices
    if devices > 1:
        say(f"Training on {devices} devices at once: {rows_per_device} rows each, {batch_rows} in one step.")
    epochs = spec.epochs or _EPOCHS[spec.network]
    steps = math.ceil(len(training) / batch_rows)
    with strategy.scope():
        model = build(spec.network)
        optimizer = keras.optimizers.Adam(
            keras.optimizers.schedules.CosineDecay(_LEARNING_RATE, epochs * steps)
        )
        if workers is not None:
            optimizer.build(model.trainable_variables)
    started = time.perf_counter()
    rows = _Rows(digits, training, validation, batch_rows)
    report = _EpochReport(epochs, say, log)
    if workers is None:
        with strategy.scope():
            _compile(model, optimizer)
        history = _fit_alone(model, rows, epochs, report)
        model = _on_default_device(spec.network, model)
    else:
        model, history = _fit_with_others(spec, workers, model, optimizer, rows, epochs, report)
    return Fit(
        model=model,
        history=history,
        best_epoch=int(np.argmin(history["val_loss"])) + 1,
        batch_rows=batch_rows,
        train_rows=len(training),
        validation_rows=validation_rows,
        fit_s=time.perf_counter() - started,
    )


class _Rows(Struct, frozen=True):
    """The split of digits into training and validation rows, and the batch size."""

    digits: Digits
    training: NDArray[np.int64]
    validation: NDArray[np.int64]
    batch_rows: int

    def of(self, chosen: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        return self.digits.train_rows[chosen], self.digits.train_classes[chosen]


def _compile(model: keras.Model, optimizer: keras.Optimizer | None = None) -> None:
    model.compile(
        optimizer=optimizer or "sgd",
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )


def _fit_alone(model: keras.Model, rows: _Rows, epochs: int, report: _EpochReport) -> dict[str, list[float]]:
    stopping = keras.callbacks.EarlyStopping(
        monitor="val_loss", patience=_PATIENCE_EPOCHS, restore_best_weights=True
    )
    fitted = model.fit(
        *rows.of(rows.training),
        validation_data=rows.of(rows.validation),
        batch_size=rows.batch_rows,
        validation_batch_size=_VALIDATION_BATCH_ROWS,
        epochs=epochs,
        verbose=0,
        callbacks=[report, stopping],
    )
    return {name: [float(value) for value in values] for name, values in fitted.history.items()}


def _fit_with_others(
    spec: TrainingSpec,
    workers: Workers,
    model: keras.Model,
    optimizer: keras.Optimizer,
    rows: _Rows,
    epochs: int,
    report: _EpochReport,
) -> tuple[keras.Model, dict[str, list[float]]]:
    """Train with the other workers; return a plain model with the best weights, the same on all, and the history."""
    from stoker_training.workers import fit_together

    history: dict[str, list[float]] = {"loss": [], "accuracy": [], "val_loss": [], "val_accuracy": []}
    plain, best = build(spec.network), model.get_weights()
    _compile(plain)
    trained = fit_together(
        workers,
        model,
        optimizer,
        rows.digits,
        rows.training,
        batch_rows=rows.batch_rows,
        seed=spec.seed,
    )
    for epoch, values in zip(range(epochs), trained, strict=False):
        plain.set_weights(model.get_weights())
        found = plain.evaluate(*rows.of(rows.validation), batch_size=_VALIDATION_BATCH_ROWS, verbose=0)
        # The mean of all, so that none of them stops alone where machines round differently.
        values["val_loss"], values["val_accuracy"] = (float(np.mean(workers.gather(one))) for one in found)
        for name, value in values.items():
            history[name].append(value)
        report.on_epoch_end(epoch, values)
        age = epoch - int(np.argmin(history["val_loss"]))
        if age == 0:
            best = plain.get_weights()
        if age >= _PATIENCE_EPOCHS:
            break
    plain.set_weights(best)
    return plain, history


def _on_default_device(network: Network, model: keras.Model) -> keras.Model:
    """A copy without the strategy's mirrored variables, which the exports could not save as plain ones."""
    plain = build(network)
    plain.set_weights(model.get_weights())
    return plain


class _EpochReport(keras.callbacks.Callback):  # type: ignore[misc]  # keras has no types
    """Says one line an epoch, and logs its metrics."""

    def __init__(
        self, epochs: int, say: Callable[[str], None], log: Callable[[str, float, int], None]
    ) -> None:
        super().__init__()
        self._epochs = epochs
        self._say = say
        self._log = log

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        assert logs is not None
        for name, value in logs.items():
            self._log(name, float(value), epoch + 1)
        self._say(
            f"epoch {epoch + 1:2d}/{self._epochs}: loss {logs['loss']:.4f}, accuracy {logs['accuracy']:.4f}; "
            f"validation: loss {logs['val_loss']:.4f}, accuracy {logs['val_accuracy']:.4f}"
        )
