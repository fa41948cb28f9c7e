"""`stoker tune`: run a script with many parameters at once, end poor runs early, and find the best."""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stoker.commands.terminal import add_workspace_argument
from stoker.system.wording import format_count
from stoker_runs.commands import submit
from stoker_runs.commands.run_output import found_workspace
from stoker_runs.commands.sweep_output import follow_sweep

if TYPE_CHECKING:
    from stoker.settings.workspace import Workspace
    from stoker_runs.launch.submission import Request
    from stoker_runs.tuning.definition import SweepDefinition


_SHOWN: Final = 5
_EXAMPLES: Final = """a file, such as sweep.yaml:
  script: train.py
  arguments: [--epochs, 6]
  parameters:                                 each becomes an option of the script
    --batch-size: [32, 64, 128]               one of these
    --learning-rate: {loguniform: [0.0001, 0.1]}
    --dropout: {uniform: [0, 0.5]}
  metric: validation_acc                      what the script logs, once an epoch say
  goal: maximize                              or minimize
  runs: 20
  at_once: 4                                  as far as there are cores and GPUs
  policy: {bandit: {slack_factor: 0.1, evaluation_interval: 2}}

Expressions: choice, randint, uniform, quniform, loguniform, qloguniform, normal, qnormal, lognormal, qlognormal.
Policies: bandit, median_stopping, truncation_selection, hyperband. Also: sampling (random, grid, bayesian), seed,
max_total_duration, and every key of 'stoker submit --config': target, environment, inputs, gpus, cores, tags ...

  stoker tune sweep.yaml --dry-run            what would be run
  stoker tune sweep.yaml                      follow it; Ctrl-C leaves it to itself
  stoker runs children @latest                its runs, the best first
  stoker runs cancel @latest                  end it, with all its runs

Exit status: 0 Completed, 1 Failed or Canceled, 2 refused, 130 left to itself by Ctrl-C.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.formatter_class, parser.epilog = argparse.RawDescriptionHelpFormatter, _EXAMPLES
    add_workspace_argument(parser)
    parser.add_argument("config", type=Path, metavar="CONFIG.yaml", help="the script and its parameters")
    parser.add_argument("--target", metavar="NAME", help="compute target (default: that of the file)")
    parser.add_argument("--experiment", metavar="NAME", help="the experiment (default: the folder's name)")
    parser.add_argument(
        "--seed",
        type=int,
        metavar="N",
        help="seed of random and Bayesian sampling (default: that of the file, else a new one)",
    )
    parser.add_argument("--detach", action="store_true", help="do not follow the sweep")
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be submitted, and submit nothing"
    )


def run(args: argparse.Namespace) -> int:
    """Submit a sweep, and follow it.

    Returns:
        0 if it is Completed, 1 if it has Failed or was Canceled, 130 where it was left to itself by Ctrl-C.

    Raises:
        OperatorError: It is refused; nothing was written.
    """
    from stoker_runs.launch.configuration import settings_of
    from stoker_runs.tuning.definition import RANDOM
    from stoker_runs.tuning.sweep_files import read_sweep, split_sweep

    workspace = found_workspace(args)
    of_the_sweep, of_each = split_sweep(args.config)
    if args.seed is not None:
        of_the_sweep["seed"] = args.seed
    sweep = read_sweep(args.config, of_the_sweep)
    settings = settings_of(args.config, of_each)
    if args.target is not None:
        settings["target"] = args.target
    parser = argparse.ArgumentParser(prog="stoker tune")
    submit.add_arguments(parser)
    options = parser.parse_args([])
    options.config, options.target, options.experiment = args.config, args.target, args.experiment
    with ExitStack() as cleanup:
        request = submit.request_of(options, workspace, cleanup, settings)
        if args.dry_run:
            submit.print_plan(request, workspace)
            _print_terms(sweep)
            if sweep.sampler.kind == RANDOM and "seed" not in of_the_sweep:
                # The next call draws another seed.
                sys.stdout.write(
                    f"to run these values: stoker tune {args.config} --seed {sweep.sampler.seed}\n"
                )
            return 0
        return begin(request, sweep, workspace, detach=args.detach)


def begin(request: Request, sweep: SweepDefinition, workspace: Workspace, *, detach: bool) -> int:
    """Submit a sweep, and follow it.

    Args:
        request: The script, as each child runs it.

    Returns:
        The exit status of the command.
    """
    from stoker_runs.launch.runners import fork_runner
    from stoker_runs.tuning.children import submit_sweep

    folder, snapshot = submit_sweep(request, sweep, workspace, spawn=fork_runner)
    submit.announce(folder, snapshot)
    return 0 if detach else follow_sweep(folder, workspace)


def _print_terms(sweep: SweepDefinition) -> None:
    from stoker_runs.tuning.definition import BAYESIAN, GRID, arguments_of
    from stoker_runs.tuning.policies import policy_text

    seed = "" if sweep.sampler.kind == GRID else f", seed {sweep.sampler.seed}"
    sys.stdout.write(
        f"sweep        {format_count(sweep.total, 'run')}, at most {sweep.at_once} at once, "
        f"{sweep.sampler.kind} sampling{seed}\n"
    )
    sys.stdout.write(f"             {sweep.goal.value} {sweep.metric}; {policy_text(sweep.policy)}\n")
    for name, one in sweep.sampler.space.items():
        sys.stdout.write(f"parameter    {name}: {one}\n")
    if sweep.sampler.kind == BAYESIAN:
        sys.stdout.write(
            "             the values of each run follow from what the earlier ones have logged\n"
        )
        return
    for number in range(min(_SHOWN, sweep.total)):
        sys.stdout.write(f"run {number:<9}{' '.join(arguments_of(sweep.parameters(number)))}\n")
