"""The run folder of `stoker train mnist`: models of one small network for entry scripts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stoker_bench.errors import BenchedServerError
from stoker_bench.networks.onnx_graphs import WIDTHS
from stoker_bench.networks.served_model import given_model

ROW_SHAPE = (WIDTHS[0],)
EPOCHS = 2
"""Enough that classes are far apart; how well the model reads digits does not matter here."""
ONNX_FILE = "model.onnx"
NEEDED = ("model/mnist-tf.model.meta", ONNX_FILE, "sample_input.json")


def trained_run(folder: Path) -> Path:
    """Return the run folder of `stoker train mnist`, after a short training if there is none."""
    if not folder.exists():
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
    """Return a function from rows [n, 784] to an entry script's classes [n, 1], by the run's ONNX model."""
    model = given_model(run / ONNX_FILE)

    def classes(rows: NDArray[np.float32]) -> NDArray[np.float32]:
        found: NDArray[np.int64] = model.outputs(rows).argmax(axis=1)
        return found[:, None].astype(np.float32)

    return classes
