"""`stoker train`: a training run whose outputs can be registered and served."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.commands.terminal import add_workspace_argument, note
from stoker.errors import OperatorError
from stoker.system.extras import how_to_install, onnx_extra
from stoker_runs.commands.run_output import DETACHED, stream

if TYPE_CHECKING:
    import argparse

    from stoker.settings.workspace import Workspace
    from stoker_runs.records.folder import RunFolder


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
        help="folder for the outputs; that of an earlier training is replaced (default: outputs)",
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FOLDER",
        help="folder with the four IDX files of MNIST, gzip or raw (default: downloaded by Keras; "
        "without a network, digits drawn by a program)",
    )
    parser.add_argument(
        "--target",
        default="local",
        metavar="NAME",
        help="the compute target; its Python needs stoker-training too (default: local, this machine)",
    )
    parser.add_argument(
        "--experiment", default="mnist", metavar="NAME", help="the experiment (default: mnist)"
    )
    parser.add_argument(
        "--nodes",
        type=int,
        default=1,
        metavar="N",
        help="machines that train together; a target that is one machine runs a process for each (default: 1)",
    )
    parser.add_argument("--gpus", type=int, metavar="N", help="GPUs that each node holds (default: all)")
    parser.add_argument(
        "--detach", action="store_true", help="do not follow the run, and leave its outputs where they are"
    )
    add_workspace_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Submit a training run, follow it, and copy its outputs.

    Returns:
        0 if the run is Completed, 1 if it has Failed or was Canceled, 130 where it was left to itself by Ctrl-C.

    Raises:
        OperatorError: The arguments, the data or the output folder are wrong; nothing was started.
    """
    from stoker.settings.workspace import Workspace

    workspace = Workspace.find(args.workspace)
    folder = submit_training(args, workspace)
    sys.stdout.write(f"{folder.id}\n")
    sys.stdout.flush()
    if args.detach:
        return 0
    code = stream(folder, workspace)
    if code == DETACHED:
        note(f"Its outputs, when it has ended: stoker runs download {folder.id} outputs")
    elif code == 0:
        _collect_outputs(folder, args.output)
        note(f"{args.output} has its outputs; stoker models register {args.dataset} {args.output}")
    return code


def submit_training(args: argparse.Namespace, workspace: Workspace) -> RunFolder:
    """Start the run that the arguments ask for."""
    try:
        from stoker_training.as_run import submit_training
        from stoker_training.spec import TrainingSpec

        spec = TrainingSpec(
            network=args.network, epochs=args.epochs, seed=args.seed, output=args.output, data=args.data
        )
        return submit_training(
            spec,
            workspace,
            target=args.target,
            experiment=args.experiment,
            gpus=args.gpus,
            nodes=args.nodes,
        )
    except ModuleNotFoundError as error:
        how = how_to_install("training", onnx_extra())
        raise OperatorError(
            f"training needs packages that are not installed ({error.name}); {how}"
        ) from error


def _collect_outputs(folder: RunFolder, output: Path) -> None:
    """Copy what a training run has written to a folder."""
    from stoker_training.as_run import collect

    collect(folder, output)
