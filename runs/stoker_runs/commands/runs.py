"""`stoker runs`: list, show, follow, cancel, compare and draw training runs, and get their files."""

from __future__ import annotations

import argparse
from pathlib import Path

from stoker.commands.terminal import number_option
from stoker_runs.commands import run_actions, run_views
from stoker_runs.commands.run_output import add_actions, duration_option, found_workspace, run_action


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    add = add_actions(parser)
    one = argparse.ArgumentParser(add_help=False)
    one.add_argument(
        "reference", metavar="RUN", help="an id, the beginning of one, @latest, or @-2 for the one before it"
    )
    several = argparse.ArgumentParser(add_help=False)
    several.add_argument(
        "references", metavar="RUN", nargs="+", help="runs: ids, beginnings of ids, @latest or @-2"
    )
    followed = argparse.ArgumentParser(add_help=False)
    followed.add_argument("--detach", action="store_true", help="do not follow the run")

    listing = add("list", run_views.list_runs, "list runs, the newest first")
    listing.add_argument("experiment", nargs="?", metavar="EXPERIMENT", help="only runs of this experiment")
    listing.add_argument("--status", metavar="STATUS", help="only runs with this status, such as Running")
    listing.add_argument(
        "--where",
        metavar="CONDITION",
        help="only runs that match, such as 'accuracy > 0.9 and tags.lr = 0.1'",
    )
    listing.add_argument(
        "--sort", metavar="NAME", help="sort by a metric or fact; -NAME sorts the greatest first"
    )
    listing.add_argument(
        "--metric", action="append", default=[], metavar="NAME", help="also show this metric; can be repeated"
    )
    listing.add_argument(
        "--limit",
        type=number_option(int, 0, 1_000_000_000),
        default=50,
        metavar="N",
        help="largest number of runs (default: 50; 0: all)",
    )
    listing.add_argument("--all", action="store_true", help="also list runs of archived experiments")
    listing.add_argument("--json", action="store_true", help="print JSON, with all metrics")

    add("show", run_views.show_run, "show a run", one, json=True)
    text = "list the runs of a sweep, the best first, or the child runs of a script"
    add("children", run_views.list_children, text, one, json=True)
    logs = add("logs", run_actions.print_logs, "print the output of a run", one)
    logs.add_argument("-f", "--follow", action="store_true", help="follow the output until the run ends")
    logs.add_argument(
        "--process", type=int, default=0, metavar="N", help="the process whose output is printed (default: 0)"
    )
    add("wait", run_actions.wait_for_runs, "wait until runs have ended", several)
    cancel = add("cancel", run_actions.cancel_runs, "cancel a run, or all runs that have not ended")
    cancel.add_argument("reference", nargs="?", metavar="RUN", help="the run")
    cancel.add_argument("--all", action="store_true", help="cancel all runs that have not ended")
    cancel.add_argument(
        "--grace",
        type=duration_option,
        metavar="TIME",
        help="time until it is killed (default: as submitted)",
    )
    text = "start another attempt of a failed or cancelled run"
    add("resume", run_actions.resume_run, text, one, followed)
    add("rerun", run_actions.rerun, "submit the same files and arguments again", one, followed)

    text = "compare runs, or the best runs of a sweep"
    add("compare", run_views.compare, text, several, json=True)
    plot = add("plot", run_views.plot, "plot metrics of runs, or of the best runs of a sweep", several)
    plot.add_argument(
        "--metric",
        action="append",
        default=[],
        metavar="NAME",
        help="plot only this metric; can be repeated",
    )
    plot.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("plot.png"),
        metavar="FILE",
        help="output file, .png, .svg or .pdf (default: plot.png)",
    )
    add("files", run_views.list_files, "list the files of a run", one)
    download = add("download", run_actions.download, "copy files of a run", one)
    download.add_argument(
        "prefix", nargs="?", default="", metavar="PREFIX", help="only files whose names begin with this"
    )
    text = "target folder (default: a folder named like the run)"
    download.add_argument("-o", "--output", type=Path, metavar="DIR", help=text)
    snapshot = add("snapshot", run_actions.restore_snapshot, "copy the source files of a run", one)
    snapshot.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="a new folder")
    tag = add("tag", run_actions.tag, "set tags of a run; KEY= removes one", one)
    tag.add_argument("tags", nargs="+", metavar="KEY=VALUE", help="a label")

    mirror = add("mirror", run_actions.mirror, "copy runs into a tracking store of MLflow")
    text = "runs: ids, beginnings of ids, @latest or @-2 (default: all)"
    mirror.add_argument("references", metavar="RUN", nargs="*", help=text)
    mirror.add_argument(
        "--to", required=True, metavar="URI", help="such as sqlite:///runs.db or http://127.0.0.1:5000"
    )
    mirror.add_argument("--experiment", metavar="NAME", help="only runs of this experiment")
    text = "write event files of runs, and start TensorBoard"
    board = add("tensorboard", run_actions.tensorboard, text, several)
    board.add_argument(
        "--port", type=int, default=6006, metavar="N", help="TensorBoard's port (default: 6006)"
    )
    board.add_argument("--write-only", action="store_true", help="do not start TensorBoard")
    add("delete", run_actions.delete, "delete runs that have ended", several)


def run(args: argparse.Namespace) -> int:
    """Adopt what has lost its runner, then run the chosen subcommand.

    Raises:
        OperatorError: It was refused; the message says why.
    """
    from stoker_runs.launch.runners import adopt_all
    from stoker_runs.records.index import RunIndex
    from stoker_runs.records.store import RunStore

    workspace = found_workspace(args)
    args.index = RunIndex(RunStore(workspace.runs_dir), once=True)
    adopt_all(workspace, args.index)
    return run_action(args)
