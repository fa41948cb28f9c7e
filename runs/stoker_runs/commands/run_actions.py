"""Actions of `stoker runs`: follow, wait, cancel, resume, copy, label, delete, export."""

from __future__ import annotations

import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from stoker.commands.terminal import note
from stoker.errors import InvalidSettings
from stoker.system.logs import escaped
from stoker.system.wording import format_count
from stoker_runs.commands.run_output import exit_code_of, found_store, found_workspace, stream, write_bytes
from stoker_runs.errors import SubmissionRefused, UnknownRun

if TYPE_CHECKING:
    import argparse

    from stoker_runs.records.folder import RunFolder
    from stoker_runs.records.store import RunStore


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def print_logs(args: argparse.Namespace) -> int:
    """Print a log as far as it is, or until the run ends."""
    from stoker_runs.launch.following import LogTail

    folder = found_store(args).find(args.reference)
    if args.follow:
        return stream(folder, found_workspace(args), args.process)
    state = folder.state()
    if not LogTail(folder, args.process).read(state.attempt, write_bytes):
        reason = f": {state.reason}" if state.reason else ""
        note(f"{folder.id} is {state.status.value} and has printed nothing{reason}")
        if state.error is not None:
            note(f"{state.error.code}: {state.error.message}")
    return 0


def wait_for_runs(args: argparse.Namespace) -> int:
    """Wait; the exit status is that of the worst run."""
    from stoker_runs.launch.following import wait

    store, workspace = found_store(args), found_workspace(args)
    worst = 0
    for folder in [store.find(reference) for reference in args.references]:
        state = wait(folder, workspace)
        sys.stdout.write(f"{folder.id}  {state.status.value}\n")
        sys.stdout.flush()
        worst = max(worst, exit_code_of(state))
    return worst


def cancel_runs(args: argparse.Namespace) -> int:
    """Leave word for the runners of one run or of all."""
    from stoker_runs.records.index import RunIndex

    store = found_store(args)
    if (args.reference is None) != args.all:
        raise InvalidSettings("name the run to cancel, or give --all")
    if args.all:
        going_on = [store.get(run_id) for run_id in RunIndex(store).unfinished_runs()]
    else:
        going_on = [store.find(args.reference)]
    for folder in going_on:
        state = folder.state()
        if state.is_terminal:
            note(f"{folder.id} is {state.status.value} already")
            continue
        folder.request_cancel("by its user", _now_ms(), args.grace)
        sys.stdout.write(f"{folder.id} is told to end\n")
    return 0


def resume_run(args: argparse.Namespace) -> int:
    """Begin another attempt, and follow it."""
    from stoker_runs.launch.submission import resume

    workspace, folder = found_workspace(args), found_store(args).find(args.reference)
    state = resume(folder, workspace)
    note(f"{folder.id}: attempt {state.attempt}")
    return 0 if args.detach else stream(folder, workspace, attempt=state.attempt)


def rerun(args: argparse.Namespace) -> int:
    """Submit the same snapshot, with the same environment file, as a new run."""
    from stoker_runs.launch.submission import Request, submit

    workspace, folder = found_workspace(args), found_store(args).find(args.reference)
    record = folder.record()
    tree = workspace.snapshots_dir / record.snapshot
    if not record.snapshot or not tree.is_dir():
        raise SubmissionRefused(f"{folder.id} has no snapshot any more; submit its script again")
    requested = record.definition.environment
    request = Request(
        record.definition,
        tree,
        record.experiment,
        "relaxed" if requested.get("kind") == "relaxed" else "",
        folder.environment / requested["file"] if requested.get("file") else None,
        str(requested.get("python", "")),
        str(requested.get("as_of", "")),
        {**record.tags, "rerun_of": record.id},
        dockerfile=folder.environment / file
        if (file := record.definition.container.get("dockerfile"))
        else None,
        sweep=record.sweep,
    )
    again, _ = submit(replace(request, limit_bytes=sys.maxsize), workspace)
    sys.stdout.write(f"{again.id}\n")
    sys.stdout.flush()
    return 0 if args.detach else stream(again, workspace)


def download(args: argparse.Namespace) -> int:
    """Copy files to a folder."""
    from stoker_runs.records.folder import copy_files

    folder = found_store(args).find(args.reference)
    place = args.output or Path(folder.id)
    copied = copy_files(folder, args.prefix, place)
    if not copied:
        raise SubmissionRefused(
            f"{folder.id} has no file that begins with {args.prefix!r}; see: stoker runs files"
        )
    sys.stdout.write(f"{format_count(len(copied), 'file')} copied to {place}\n")
    return 0


def restore_snapshot(args: argparse.Namespace) -> int:
    """Copy the source files of a run to a new folder."""
    from stoker_runs.records.snapshots import SnapshotStore

    folder = found_store(args).find(args.reference)
    if args.output.exists():
        raise SubmissionRefused(f"{args.output} exists already; name a new folder")
    SnapshotStore(found_workspace(args).snapshots_dir).restore(folder.record().snapshot, args.output)
    sys.stdout.write(f"{args.output}\n")
    return 0


def tag(args: argparse.Namespace) -> int:
    """Change labels."""
    folder = found_store(args).find(args.reference)
    changes: dict[str, str | None] = {}
    for text in args.tags:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise InvalidSettings(f"{text!r}: expected KEY=VALUE, or KEY= to remove it")
        changes[key] = value or None
    folder.change_tags(changes, _now_ms())
    sys.stdout.write(
        "".join(f"{escaped(f'{key}={value}')}\n" for key, value in sorted(folder.tags().items()))
    )
    return 0


def delete(args: argparse.Namespace) -> int:
    """Remove runs that have ended, and with a sweep its children."""
    store = found_store(args)
    named = [store.find(reference) for reference in args.references]
    families = [run for folder in named for run in (*_children(folder, store), folder)]
    folders = list({run.path: run for run in families}.values())
    for folder in folders:
        _refuse_going_on(folder)
    for folder in folders:
        store.delete(folder)
        sys.stdout.write(f"{folder.id} is deleted\n")
    return 0


def _children(folder: RunFolder, store: RunStore) -> list[RunFolder]:
    from stoker_runs.records.record import SWEEP
    from stoker_runs.tuning.children import child_folders, definition_of

    record = folder.record()
    if record.kind != SWEEP:
        return []
    return list(child_folders(record, definition_of(record).total, store).values())


def _refuse_going_on(folder: RunFolder) -> None:
    from stoker_runs.records.children import ChildFolder

    if isinstance(folder, ChildFolder):
        folder.refuse()
    status = folder.state().status
    if not folder.state().is_terminal:
        raise SubmissionRefused(
            f"{folder.id} is {status.value}; cancel it first: stoker runs cancel {folder.id}"
        )


def mirror(args: argparse.Namespace) -> int:
    """Copy runs into a tracking store of MLflow: each once, and later what is new of it."""
    from stoker_runs.records.exports import Mirror

    store = found_store(args)
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
    sys.stdout.write(f"{new} of {format_count(len(folders), 'run')} had something new for {args.to}\n")
    return 0


def tensorboard(args: argparse.Namespace) -> int:
    """Write event files, and show them where TensorBoard is installed."""
    import subprocess

    from stoker_runs.records.exports import write_logdir
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
