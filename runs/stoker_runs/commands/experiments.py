"""`stoker experiments`: list experiments, and hide some from lists."""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from stoker.commands.terminal import note, print_json, table
from stoker_runs.commands.run_output import add_actions, found_store, run_action, time_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    add = add_actions(parser)
    one = argparse.ArgumentParser(add_help=False)
    one.add_argument("experiment", metavar="EXPERIMENT", help="the experiment")
    listing = add("list", _list, "list all experiments", json=True)
    listing.add_argument("--all", action="store_true", help="also list archived experiments")
    add("archive", _archive, "hide an experiment and its runs from lists, without removing them", one)
    add("restore", _archive, "show an archived experiment in lists again", one)


run = run_action


def _list(args: argparse.Namespace) -> int:
    from stoker_runs.records.index import RunIndex

    store = found_store(args)
    runs = RunIndex(store).runs() if store.experiments() else []
    if not runs and not args.json:
        note("there is no experiment; stoker submit SCRIPT begins one")
        return 0
    counts = Counter(one.experiment for one in runs)
    newest: dict[str, int] = {}
    for one in runs:
        newest.setdefault(one.experiment, one.created_ms)
    archived = store.archived()
    names = [name for name in sorted(counts) if args.all or name not in archived]
    if args.json:
        listed = [
            {"name": name, "runs": counts[name], "newest": newest[name], "archived": name in archived}
            for name in names
        ]
        print_json(listed)
        return 0
    rows = [
        (name, str(counts[name]), time_text(newest[name]), "archived" if name in archived else "")
        for name in names
    ]
    sys.stdout.write(table([("EXPERIMENT", "RUNS", "NEWEST", ""), *rows]))
    if archived and not args.all:
        note(f"{len(archived)} archived: --all shows them")
    return 0


def _archive(args: argparse.Namespace) -> int:
    restore = args.action == "restore"
    found_store(args).archive(args.experiment, restore=restore)
    sys.stdout.write(f"{args.experiment} is {'back in' if restore else 'out of'} the lists\n")
    return 0
