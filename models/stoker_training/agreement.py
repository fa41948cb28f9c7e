"""Do the exported models say the same? Measured on the written files, row for row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stoker.errors import OperatorError
from stoker_training.onnx_model import onnx_logits
from stoker_training.saved_model import saved_model_logits
from stoker_training.tf1_checkpoint import checkpoint_logits

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["TOLERANCE", "Agreement", "measure", "require"]

TOLERANCE = 1e-3
"""Largest difference of two logits that still counts as the same model."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far the exports are apart from the SavedModel on the same rows.

    Attributes:
        logits: The SavedModel's, float32[n, 10].
        onnx_difference: Largest absolute difference of the ONNX model's logits.
        onnx_classes_differ: Rows to which the ONNX model gives another class.
        checkpoint_difference: Largest absolute difference of the TensorFlow 1 checkpoint's logits.
        checkpoint_classes_differ: Rows to which the checkpoint gives another class.
    """

    logits: NDArray[np.float32]
    onnx_difference: float
    onnx_classes_differ: int
    checkpoint_difference: float
    checkpoint_classes_differ: int


def measure(saved_model: Path, onnx_model: Path, checkpoint: Path, rows: NDArray[np.float32]) -> Agreement:
    """Run the three written models on `rows` float32[n, 784] and compare their logits.

    Args:
        saved_model: Folder of the SavedModel.
        onnx_model: File of the ONNX model.
        checkpoint: Prefix of the TensorFlow 1 checkpoint.
        rows: The rows, all of them compared.
    """
    reference = saved_model_logits(saved_model, rows)
    onnx = onnx_logits(onnx_model, rows)
    restored = checkpoint_logits(checkpoint, rows)
    return Agreement(
        logits=reference,
        onnx_difference=_largest_difference(reference, onnx),
        onnx_classes_differ=_classes_differ(reference, onnx),
        checkpoint_difference=_largest_difference(reference, restored),
        checkpoint_classes_differ=_classes_differ(reference, restored),
    )


def require(agreement: Agreement, tolerance: float = TOLERANCE) -> None:
    """Refuse a run whose exports disagree.

    Raises:
        OperatorError: A difference is above `tolerance`, or is not a number.
    """
    for name, difference in (
        ("ONNX model", agreement.onnx_difference),
        ("TensorFlow 1 checkpoint", agreement.checkpoint_difference),
    ):
        # Not `difference > tolerance`: a difference that is not a number is a disagreement too.
        if not difference <= tolerance:
            raise OperatorError(
                f"the {name} disagrees with the SavedModel: the largest difference of two logits on the test "
                f"images is {difference:.3g}, at most {tolerance:g} is accepted; no run folder was written"
            )


def _largest_difference(left: NDArray[np.float32], right: NDArray[np.float32]) -> float:
    return float(np.abs(left - right).max())


def _classes_differ(left: NDArray[np.float32], right: NDArray[np.float32]) -> int:
    return int(np.count_nonzero(left.argmax(axis=1) != right.argmax(axis=1)))
