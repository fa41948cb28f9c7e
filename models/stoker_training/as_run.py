"""A training as a run: submitted with the code that trains, and its outputs copied to where they are wanted."""

from __future__ import annotations

import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from stoker_runs.launch.submission import Request, submit
from stoker_runs.records.record import Definition
from stoker_runs.targets.definitions import LOCAL, find_target
from stoker_training.digits import check_mnist_files
from stoker_training.run_folder import check_target, check_writable, replacing
from stoker_training.script import arguments_of

if TYPE_CHECKING:
    from stoker.settings.workspace import Workspace
    from stoker_runs.records.folder import RunFolder
    from stoker_training.spec import TrainingSpec

_INPUT = "mnist"
_SCRIPT = '"""The script of `stoker train mnist`."""\n\nfrom stoker_training.script import main\n\nmain()\n'
_NEEDED = ("tensorflow", "tf2onnx", "onnx", "matplotlib", "onnxruntime")


def submit_training(
    spec: TrainingSpec,
    workspace: Workspace,
    *,
    target: str = LOCAL,
    experiment: str = _INPUT,
    gpus: int | None = None,
    nodes: int = 1,
) -> RunFolder:
    """Start a training in the background.

    Args:
        spec: What to train; its output is not part of the run, see `collect`.
        target: Name of the compute target, whose Python needs what this one has for trainings.
        gpus: How many GPUs each node holds; None is all that the target has.
        nodes: On how many nodes it trains.

    Raises:
        OperatorError: The data or the output folder are wrong, or the target cannot be had.
        ModuleNotFoundError: A package that it needs is not installed here, where it is to run.
    """
    check_target(spec.output)
    check_writable(spec.output)
    if spec.data is not None:
        check_mnist_files(spec.data)
    capacity = find_target(workspace.targets_dir, target).capacity
    if target == LOCAL and (missing := next((name for name in _NEEDED if find_spec(name) is None), None)):
        raise ModuleNotFoundError(name=missing)
    if gpus is None and capacity is not None:
        # Where there are too few, the submission says so.
        gpus = len(capacity.gpus) // max(1, nodes) or None
    definition = Definition(
        "train.py",
        tuple(arguments_of(spec, f"$AZUREML_DATAREFERENCE_{_INPUT}")),
        target,
        gpus=gpus,
        nodes=nodes,
        communicator="tensorflow" if nodes > 1 else "none",
        inputs={} if spec.data is None else {_INPUT: str(spec.data.resolve())},
    )
    with tempfile.TemporaryDirectory(prefix="stoker-train-") as folder:
        # The code that trains goes along: two runs tell whether it has changed.
        source = Path(folder)
        shutil.copytree(
            Path(__file__).parent, source / "stoker_training", ignore=shutil.ignore_patterns("__pycache__")
        )
        (source / "train.py").write_text(_SCRIPT, encoding="utf-8")
        run, _ = submit(Request(definition, source, experiment), workspace)
    return run


def collect(run: RunFolder, output: Path) -> None:
    """Copy the outputs of a training run that is completed to a folder, complete or not at all.

    Raises:
        OperatorError: The folder is in use for something else, or cannot be written.
    """
    with replacing(output) as folder:
        shutil.copytree(run.outputs, folder, dirs_exist_ok=True)
