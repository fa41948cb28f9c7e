"""`stoker targets`: where runs can go, what is there, and whether it can be used."""

from __future__ import annotations

import argparse
import sys

from stoker.commands.printing import sentence, table
from stoker_runs.commands import target_actions
from stoker_runs.commands.run_output import common_arguments, found_workspace

__all__ = ["SUMMARY", "add_arguments", "run"]

SUMMARY = "create, attach, list, show, check, prepare, prune and detach compute targets"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    common = common_arguments()
    one = argparse.ArgumentParser(add_help=False)
    one.add_argument("target", metavar="NAME", help="the compute target")
    actions = parser.add_subparsers(dest="targets_action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", parents=[common], help="list all compute targets")
    listing.set_defaults(targets_run=_list)
    show = actions.add_parser("show", parents=[common, one], help="show one, and which runs hold what of it")
    show.set_defaults(targets_run=_show)
    text = "look whether it can be used"
    check = actions.add_parser("check", aliases=["test"], parents=[common, one], help=text)
    check.set_defaults(targets_run=_check)
    text = "write the file of a new compute target, once it can be used"
    target_actions.add_create(actions.add_parser("create", help=text, description=sentence(text)), common)
    text = "have runs go to a machine besides this one"
    target_actions.add_attach(actions.add_parser("attach", help=text, description=sentence(text)), common)
    text = "build an environment there, so that the first run does not wait for it"
    prepare = actions.add_parser("prepare", parents=[common, one], help=text, description=sentence(text))
    target_actions.add_prepare(prepare)
    text = "remove environments there that no run was given for long"
    target_actions.add_prune(
        actions.add_parser("prune", parents=[common, one], help=text, description=sentence(text))
    )
    detach = actions.add_parser("detach", parents=[common, one], help="forget one")
    detach.set_defaults(targets_run=target_actions.detach)


def run(args: argparse.Namespace) -> int:
    """Run the chosen subcommand.

    Raises:
        OperatorError: There is no such target, or it cannot be used; the message says what to do.
    """
    exit_code: int = args.targets_run(args)
    return exit_code


def _list(args: argparse.Namespace) -> int:
    from stoker_runs.targets.definitions import find_target, list_targets

    targets_dir = found_workspace(args).targets_dir
    targets = [find_target(targets_dir, name) for name in list_targets(targets_dir)]
    rows = [
        (
            target.name,
            target.type,
            *(("-", "-") if (has := target.capacity) is None else (str(has.cores), str(len(has.gpus)))),
        )
        for target in targets
    ]
    sys.stdout.write(table([("TARGET", "TYPE", "CORES", "GPUS"), *rows]))
    return 0


def _show(args: argparse.Namespace) -> int:
    from stoker_runs.launch.pools import slots_of
    from stoker_runs.targets.definitions import find_target

    workspace = found_workspace(args)
    target = find_target(workspace.targets_dir, args.target)
    facts = [("target", target.name), ("type", target.type)]
    if "max_nodes" in target.settings:
        facts.append(("nodes", f"{target.settings.get('min_nodes', 0)} to {target.settings['max_nodes']}"))
    capacity = target.capacity
    if capacity is not None:
        facts += [("cores", str(capacity.cores)), ("GPUs", ", ".join(capacity.gpus) or "none")]
    slots = slots_of(target, workspace)
    if slots is not None:
        holders, waiting = slots.overview()
        facts += [
            ("held", f"{one.run}: {one.cores} cores, GPUs {', '.join(one.gpus) or 'none'}") for one in holders
        ]
        facts += [("waits", f"{one.run}: {one.cores} cores, {len(one.gpus)} GPUs") for one in waiting]
    sys.stdout.write(table(facts))
    return 0


def _check(args: argparse.Namespace) -> int:
    from stoker_runs.targets.definitions import find_target
    from stoker_runs.targets.registry import engine_of

    workspace = found_workspace(args)
    lines = engine_of(find_target(workspace.targets_dir, args.target), workspace).check()
    sys.stdout.write("".join(f"{line}\n" for line in lines) + f"{args.target} can be used\n")
    return 0
