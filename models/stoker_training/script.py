"""The script of a training run: what `stoker train mnist` sends to a compute target, and what runs there."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import stoker_run
from stoker.errors import OperatorError
from stoker_training.spec import NETWORKS, TrainingSpec
from stoker_training.training import train

if TYPE_CHECKING:
    from collections.abc import Sequence


def arguments_of(spec: TrainingSpec, data: str) -> list[str]:
    """Return the command line of a spec: all but its output, which is `outputs/` of the run.

    Args:
        data: How the folder of its data is named there, if it has one.
    """
    arguments = ["--network", spec.network, "--seed", str(spec.seed)]
    if spec.epochs is not None:
        arguments += ["--epochs", str(spec.epochs)]
    if spec.data is not None:
        arguments += ["--data", data]
    return arguments


def main(arguments: Sequence[str] | None = None) -> None:
    """Train into `outputs/`, and log what is measured to the run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--network", choices=NETWORKS, default="mlp")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--data", type=Path)
    args = parser.parse_args(arguments)
    run = stoker_run.current()

    def log(name: str, value: float, epoch: int | None) -> None:
        run.log(name, value, step=epoch)

    try:
        spec = TrainingSpec(args.network, args.epochs, args.seed, Path("outputs"), args.data)
        train(spec, log=log, run_id=run.id)
    except OperatorError as error:
        sys.exit(f"stoker train: {error}")
