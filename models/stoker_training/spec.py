"""The specification of a training, and its result."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from msgspec import Struct

from stoker.errors import InvalidSettings

Network = Literal["softmax", "mlp", "cnn"]
NETWORKS: tuple[Network, ...] = get_args(Network)


class TrainingSpec(Struct, frozen=True):
    """One training, fully described: the same spec on the same machine gives the same weights.

    Attributes:
        network: `softmax` (784-10), `mlp` (784-300-100-10) or `cnn` (two convolutions and two dense layers).
        epochs: Most epochs to train; None takes the network's own number. Early stopping may end sooner.
        seed: Seed of the weights, the order of the rows, dropout and the validation split.
        data: Folder with the four IDX files of MNIST, gzip or raw; None has Keras download them.
    """

    network: Network = "mlp"
    epochs: int | None = None
    seed: int = 1
    output: Path = Path("outputs")
    data: Path | None = None

    def __post_init__(self) -> None:
        if self.network not in NETWORKS:
            raise InvalidSettings(f"network must be one of {', '.join(NETWORKS)}, got {self.network!r}")
        if self.epochs is not None and self.epochs < 1:
            raise InvalidSettings(f"epochs must be at least 1, got {self.epochs}")
        if not 0 <= self.seed < 2**32:
            raise InvalidSettings(f"seed must be between 0 and {2**32 - 1}, got {self.seed}")


class TrainingResult(Struct, frozen=True):
    """A trained model and its place.

    Attributes:
        folder: The run folder, complete.
        accuracy: Share of the test images that the written model classifies rightly, 0..1.
        loss: Its mean cross-entropy on the test images, in nats.
        largest_logits_difference: Largest absolute difference between the logits of the SavedModel and of
            the ONNX model on the test images.
    """

    folder: Path
    source: str
    epochs: int
    accuracy: float
    loss: float
    largest_logits_difference: float
    fit_s: float
