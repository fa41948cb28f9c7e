"""What `stoker runs` gives to other programs: copies of runs for MLflow, event files for TensorBoard."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from stoker.errors import UnknownRun
from stoker_runs.commands.run_output import found_workspace, note

if TYPE_CHECKING:
    import argparse

__all__ = ["mirror", "tensorboard"]


def mirror(args: argparse.Namespace) -> int:
    """Copy runs into a tracking store of MLflow: each once, and later what is new of it."""
    from stoker_runs.records.mirror import Mirror
    from stoker_runs.records.store import RunStore

    store = RunStore(found_workspace(args).runs_dir)
    if args.references:
        folders = [store.find(reference) for reference in args.references]
    else:
        folders = [store.get(run.id) for run in reversed(args.index.runs(args.experiment))]
    copies, new = Mirror(args.to), 0
    for folder in folders:
        try:
            new += copies.put(folder)
        except UnknownRun as error:
            note(str(error))
    sys.stdout.write(f"{new} of {len(folders)} runs had something new for {args.to}\n")
    return 0


def tensorboard(args: argparse.Namespace) -> int:
    """Write event files, and show them where TensorBoard is installed."""
    import subprocess

    from stoker_runs.records.event_files import write_logdir
    from stoker_runs.records.store import RunStore

    workspace = found_workspace(args)
    store = RunStore(workspace.runs_dir)
    folders = [store.find(reference) for reference in args.references]
    place = write_logdir(folders, workspace.root / "tensorboard")
    sys.stdout.write(f"{place}\n")
    sys.stdout.flush()
    if args.write_only:
        return 0
    if find_spec("tensorboard") is None:
        note(f"TensorBoard is not installed: pip install tensorboard, then: tensorboard --logdir {place}")
        return 0
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(place), "--port", str(args.port)]
    return subprocess.run(command, check=False).returncode
