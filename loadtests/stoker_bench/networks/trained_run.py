"""The run folder whose models the benches of entry scripts serve; trained here where there is none."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np

from stoker_bench.errors import BenchedServerError
from stoker_bench.networks.served_model import given_model
from stoker_bench.progress import say

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["classes_of", "trained_run"]

EPOCHS = 2
"""Enough that classes are far apart; how well the model reads digits does not matter here."""
ONNX_FILE = "model.onnx"
NEEDED = ("model/mnist-tf.model.meta", ONNX_FILE, "sample_input.json")


def trained_run(folder: Path) -> Path:
    """Return the run folder of `stoker train mnist`, after a short training if there is none.

    Raises:
        BenchedServerError: The folder is something else, or the training failed.
    """
    if not folder.exists():
        say("training the model")
        command = [sys.executable, "-m", "stoker.cli", "train", "mnist", "--network", "mlp"]
        command += ["--epochs", str(EPOCHS), "--output", str(folder)]
        trained = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if trained.returncode:
            raise BenchedServerError(f"stoker train failed: {trained.stdout.strip()}")
    if missing := [name for name in NEEDED if not (folder / name).exists()]:
        raise BenchedServerError(
            f"{folder} has no {missing[0]}: it is not the run folder of `stoker train mnist`; "
            "name one, or a folder that does not exist yet"
        )
    return folder


def classes_of(run: Path) -> Callable[[NDArray[np.float32]], NDArray[np.float32]]:
    """Return what an entry script must answer: rows [n, 784] to classes [n, 1], by the run's ONNX model."""
    model = given_model(run / ONNX_FILE)

    def classes(rows: NDArray[np.float32]) -> NDArray[np.float32]:
        found: NDArray[np.int64] = model.outputs(rows).argmax(axis=1)
        return found[:, None].astype(np.float32)

    return classes
