"""The three networks, from 784 grey values to 10 logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stoker_training.frameworks import keras

if TYPE_CHECKING:
    from stoker_training.spec import Network

__all__ = ["PIXELS", "Plan", "build", "plan"]

PIXELS = 784


@dataclass(frozen=True, slots=True)
class Plan:
    """How a network is trained where the spec leaves it open.

    Attributes:
        epochs: Most epochs.
        learning_rate: Adam's, at the start; it falls to 0 along a half cosine.
    """

    epochs: int
    learning_rate: float


_PLANS: dict[Network, Plan] = {
    "softmax": Plan(epochs=20, learning_rate=2e-3),
    "mlp": Plan(epochs=14, learning_rate=2e-3),
    "cnn": Plan(epochs=12, learning_rate=2e-3),
}


def plan(network: Network) -> Plan:
    """Return how `network` is trained by default."""
    return _PLANS[network]


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
