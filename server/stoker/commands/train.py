"""`stoker train`: train a model and write a run folder that can be registered and served."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stoker.errors import OperatorError
from stoker.system.extras import how_to_install, onnx_extra

if TYPE_CHECKING:
    import argparse

__all__ = ["SUMMARY", "add_arguments", "run"]

SUMMARY = "train a digit classifier and write its run folder"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `stoker train`."""
    parser.add_argument("dataset", choices=["mnist"], help="what to train on: mnist, handwritten digits")
    parser.add_argument(
        "--network",
        choices=["softmax", "mlp", "cnn"],
        default="mlp",
        help="softmax: 784-10; mlp: 784-300-100-10; cnn: two convolutions, two dense layers (default: mlp)",
    )
    parser.add_argument(
        "--epochs",
        type=int,
        metavar="N",
        help="most epochs to train, early stopping may end sooner (default: the network's own number)",
    )
    parser.add_argument(
        "--seed", type=int, default=1, metavar="N", help="the same seed gives the same weights (default: 1)"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("outputs"),
        metavar="DIR",
        help="run folder to write; one of an earlier training is replaced (default: outputs)",
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FOLDER",
        help="folder with the four IDX files of MNIST, gzip or raw (default: downloaded by Keras; "
        "where that fails, scikit-learn's small bundled digits)",
    )


def run(args: argparse.Namespace) -> int:
    """Train and write the run folder.

    Raises:
        OperatorError: The arguments, the data or the output folder are wrong, or the exports disagree.
    """
    try:
        from stoker_training import TrainingSpec, train

        train(
            TrainingSpec(
                network=args.network, epochs=args.epochs, seed=args.seed, output=args.output, data=args.data
            )
        )
    except ModuleNotFoundError as error:
        how = how_to_install("training", onnx_extra())
        raise OperatorError(
            f"training needs packages that are not installed ({error.name}); {how}"
        ) from error
    return 0
