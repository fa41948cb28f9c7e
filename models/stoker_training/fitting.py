"""Fitting a network: validation split, early stopping, progress, one or several devices."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
from tqdm import tqdm

from stoker_training.frameworks import keras, tf
from stoker_training.networks import build, plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from stoker_training.digits import Digits
    from stoker_training.spec import Network, TrainingSpec

__all__ = ["PROGRESS_VARIABLE", "Fit", "fit"]

PROGRESS_VARIABLE = "STOKER_PROGRESS"
"""The variable that asks for a progress bar where standard error is no terminal."""

_MOST_ROWS_PER_DEVICE = 256
_LEAST_STEPS_PER_EPOCH = 50
_VALIDATION_SHARE = 1 / 12
_VALIDATION_BATCH_ROWS = 1000
_PATIENCE_EPOCHS = 8


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted network.

    Attributes:
        model: The Keras model with the best weights, on the default device.
        history: For each of `loss`, `accuracy`, `val_loss`, `val_accuracy`: one value an epoch.
        best_epoch: The epoch, from 1, whose weights were kept: the one of the lowest validation loss.
        batch_rows: Rows in one training step, over all devices.
        train_rows: Rows that were trained on.
        validation_rows: Rows that were held back to choose the epoch.
        fit_s: Seconds that it took.
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
) -> Fit:
    """Fit `spec.network` on the training rows of `digits`; deterministic with `spec.seed`.

    Args:
        spec: What to train.
        digits: The rows; their test part is not touched.
        strategy: A `tf.distribute` strategy; the rows of one step grow with its replicas.
        say: Gets one line an epoch.
        log: Gets the name, value and epoch, from 1, of each metric of an epoch.
    """
    keras.utils.set_random_seed(spec.seed)
    tf.config.experimental.enable_op_determinism()
    validation_rows = max(1, round(len(digits.train_rows) * _VALIDATION_SHARE))
    order = np.random.default_rng(spec.seed).permutation(len(digits.train_rows))
    validation, training = order[:validation_rows], order[validation_rows:]
    devices = strategy.num_replicas_in_sync
    # A small set in large batches would make too few steps to learn anything.
    rows_per_device = max(1, min(_MOST_ROWS_PER_DEVICE, len(training) // _LEAST_STEPS_PER_EPOCH))
    batch_rows = rows_per_device * devices
    if devices > 1:
        say(f"Training on {devices} devices at once: {rows_per_device} rows each, {batch_rows} in one step.")
    epochs = spec.epochs or plan(spec.network).epochs
    steps = math.ceil(len(training) / batch_rows)
    with strategy.scope():
        model = build(spec.network)
        model.compile(
            optimizer=keras.optimizers.Adam(
                keras.optimizers.schedules.CosineDecay(plan(spec.network).learning_rate, epochs * steps)
            ),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    started = time.perf_counter()
    with _Progress(epochs, steps, say, log) as progress:
        stopping = keras.callbacks.EarlyStopping(
            monitor="val_loss", patience=_PATIENCE_EPOCHS, restore_best_weights=True
        )
        fitted = model.fit(
            digits.train_rows[training],
            digits.train_classes[training],
            validation_data=(digits.train_rows[validation], digits.train_classes[validation]),
            batch_size=batch_rows,
            validation_batch_size=_VALIDATION_BATCH_ROWS,
            epochs=epochs,
            verbose=0,
            callbacks=[progress, stopping],
        )
    history = {name: [float(value) for value in values] for name, values in fitted.history.items()}
    return Fit(
        model=_on_default_device(spec.network, model),
        history=history,
        best_epoch=int(np.argmin(history["val_loss"])) + 1,
        batch_rows=batch_rows,
        train_rows=len(training),
        validation_rows=validation_rows,
        fit_s=time.perf_counter() - started,
    )


def _on_default_device(network: Network, model: keras.Model) -> keras.Model:
    """A copy without the strategy's mirrored variables, which the exports could not save as plain ones."""
    plain = build(network)
    plain.set_weights(model.get_weights())
    return plain


class _Progress(keras.callbacks.Callback):  # type: ignore[misc]  # keras has no types
    """A progress bar over all steps where standard error is a terminal, and one line an epoch."""

    def __init__(
        self, epochs: int, steps: int, say: Callable[[str], None], log: Callable[[str, float, int], None]
    ) -> None:
        super().__init__()
        self._epochs = epochs
        self._say = say
        self._log = log
        # In a run standard error is a file, which somebody may follow on a terminal.
        shown = {"disable": False, "ncols": 80} if os.environ.get(PROGRESS_VARIABLE) else {"disable": None}
        self._bar = tqdm(
            total=epochs * steps, desc="training", unit="step", mininterval=0.5, leave=False, **shown
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def on_train_batch_end(self, *_: object, **__: object) -> None:
        self._bar.update()

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        assert logs is not None
        line = (
            f"epoch {epoch + 1:2d}/{self._epochs}: loss {logs['loss']:.4f}, accuracy {logs['accuracy']:.4f}; "
            f"validation: loss {logs['val_loss']:.4f}, accuracy {logs['val_accuracy']:.4f}"
        )
        for name, value in logs.items():
            self._log(name, float(value), epoch + 1)
        with tqdm.external_write_mode():
            self._say(line)
