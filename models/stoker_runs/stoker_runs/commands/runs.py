"""`stoker runs`: list, show, follow, cancel, compare and draw training runs, and get their files."""

from __future__ import annotations

import argparse
from pathlib import Path

from stoker.commands.terminal import add_json_argument, number_option
from stoker_runs.commands import run_actions, run_views, sweep_output
from stoker_runs.commands.run_output import common_arguments, found_workspace

SUMMARY = "list, show, follow, cancel, compare and draw training runs, and get their files"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    common = common_arguments()
    one = argparse.ArgumentParser(add_help=False)
    one.add_argument(
        "reference", metavar="RUN", help="an id, the beginning of one, @latest, or @-2 for the one before it"
    )
    several = argparse.ArgumentParser(add_help=False)
    several.add_argument(
        "references", metavar="RUN", nargs="+", help="runs: ids, beginnings of ids, @latest or @-2"
    )
    actions = parser.add_subparsers(dest="runs_action", required=True, metavar="ACTION")

    listing = actions.add_parser("list", parents=[common], help="list runs, the newest first")
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
    listing.set_defaults(runs_run=run_views.list_runs)

    show = actions.add_parser("show", parents=[common, one], help="show a run")
    add_json_argument(show)
    show.set_defaults(runs_run=run_views.show_run)

    children = actions.add_parser(
        "children", parents=[common, one], help="list the runs of a sweep, the best first"
    )
    add_json_argument(children)
    children.set_defaults(runs_run=sweep_output.list_children)

    logs = actions.add_parser("logs", parents=[common, one], help="print the output of a run")
    logs.add_argument("-f", "--follow", action="store_true", help="follow the output until the run ends")
    logs.add_argument(
        "--process", type=int, default=0, metavar="N", help="the process whose output is printed (default: 0)"
    )
    logs.set_defaults(runs_run=run_actions.print_logs)

    wait = actions.add_parser("wait", parents=[common, several], help="wait until runs have ended")
    wait.set_defaults(runs_run=run_actions.wait_for_runs)

    cancel = actions.add_parser(
        "cancel", parents=[common], help="cancel a run, or all runs that have not ended"
    )
    cancel.add_argument("reference", nargs="?", metavar="RUN", help="the run")
    cancel.add_argument("--all", action="store_true", help="cancel all runs that have not ended")
    cancel.add_argument(
        "--grace", metavar="TIME", help="time until the script is killed (default: as submitted)"
    )
    cancel.set_defaults(runs_run=run_actions.cancel_runs)

    resume = actions.add_parser(
        "resume", parents=[common, one], help="start another attempt of a failed or cancelled run"
    )
    resume.add_argument("--detach", action="store_true", help="do not follow the run")
    resume.set_defaults(runs_run=run_actions.resume_run)

    rerun = actions.add_parser(
        "rerun", parents=[common, one], help="submit the same files and arguments again"
    )
    rerun.add_argument("--detach", action="store_true", help="do not follow the run")
    rerun.set_defaults(runs_run=run_actions.rerun)

    compare = actions.add_parser(
        "compare", parents=[common, several], help="compare runs, or the best runs of a sweep"
    )
    add_json_argument(compare)
    compare.set_defaults(runs_run=run_views.compare)

    plot = actions.add_parser("plot", parents=[common, several], help="plot metrics of runs")
    plot.add_argument(
        "--metric", action="append", default=[], metavar="NAME", help="plot only this metric; can be repeated"
    )
    plot.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("plot.png"),
        metavar="FILE",
        help="output file, .png, .svg or .pdf (default: plot.png)",
    )
    plot.set_defaults(runs_run=run_views.plot)

    files = actions.add_parser("files", parents=[common, one], help="list the files of a run")
    files.set_defaults(runs_run=run_views.list_files)

    download = actions.add_parser("download", parents=[common, one], help="copy files of a run")
    download.add_argument(
        "prefix", nargs="?", default="", metavar="PREFIX", help="only files whose names begin with this"
    )
    download.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="DIR",
        help="target folder (default: a folder named like the run)",
    )
    download.set_defaults(runs_run=run_actions.download)

    snapshot = actions.add_parser("snapshot", parents=[common, one], help="copy the source files of a run")
    snapshot.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="a new folder")
    snapshot.set_defaults(runs_run=run_actions.restore_snapshot)

    tag = actions.add_parser("tag", parents=[common, one], help="set tags of a run; KEY= removes one")
    tag.add_argument("tags", nargs="+", metavar="KEY=VALUE", help="a label")
    tag.set_defaults(runs_run=run_actions.tag)

    mirror = actions.add_parser("mirror", parents=[common], help="copy runs into a tracking store of MLflow")
    mirror.add_argument(
        "references",
        metavar="RUN",
        nargs="*",
        help="runs: ids, beginnings of ids, @latest or @-2 (default: all)",
    )
    mirror.add_argument(
        "--to", required=True, metavar="URI", help="such as sqlite:///runs.db or http://127.0.0.1:5000"
    )
    mirror.add_argument("--experiment", metavar="NAME", help="only runs of this experiment")
    mirror.set_defaults(runs_run=run_actions.mirror)

    board = actions.add_parser(
        "tensorboard", parents=[common, several], help="write event files of runs, and start TensorBoard"
    )
    board.add_argument(
        "--port", type=int, default=6006, metavar="N", help="TensorBoard's port (default: 6006)"
    )
    board.add_argument("--write-only", action="store_true", help="do not start TensorBoard")
    board.set_defaults(runs_run=run_actions.tensorboard)

    delete = actions.add_parser("delete", parents=[common, several], help="delete runs that have ended")
    delete.set_defaults(runs_run=run_actions.delete)

    adopt = actions.add_parser(
        "adopt", parents=[common], help="start a new runner for runs that have lost theirs"
    )
    adopt.set_defaults(runs_run=run_actions.adopt)

    reindex = actions.add_parser(
        "reindex", parents=[common], help="rebuild the index from the folders of the runs"
    )
    reindex.set_defaults(runs_run=run_actions.reindex)


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
    # 'adopt' itself says which; 'reindex' may be wanted because the index is damaged.
    if args.runs_action not in ("adopt", "reindex"):
        adopt_all(workspace, args.index)
    exit_code: int = args.runs_run(args)
    return exit_code
