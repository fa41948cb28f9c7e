"""Sweeps from Python: `stoker_runs.tune`, the expressions of its parameters, and the sweep that it returns.

space = {"--lr": stoker_runs.loguniform(1e-4, 1e-1)}
study = stoker_runs.tune("train.py", space, metric="acc", goal="maximize", runs=20)
study.wait()
study.best.metrics["acc"], study.best_parameters
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from stoker.settings.workspace import Workspace
from stoker_runs.launch.configuration import read_duration_s
from stoker_runs.records.folder import RunFolder
from stoker_runs.records.store import RunStore
from stoker_runs.tracking import Run, SubmitOptions, request_of
from stoker_runs.tuning.children import Trial, submit_sweep, trials_of
from stoker_runs.tuning.definition import (
    RANDOM,
    Expression,
    Value,
    between,
    define_sweep,
    expression,
    new_seed,
    sampler,
)
from stoker_runs.tuning.policies import Policy


def choice(*values: Any) -> Expression:
    """One of the values, or of a list or range of them."""
    return expression("choice", *values)


def randint(upper: int) -> Expression:
    """A whole number from 0 up, below `upper`."""
    return expression("randint", upper)


def uniform(low: float, high: float) -> Expression:
    """A number between the two."""
    return expression("uniform", low, high)


def quniform(low: float, high: float, q: float) -> Expression:
    """The same, rounded to a multiple of `q`."""
    return expression("quniform", low, high, q)


def loguniform(low: float, high: float) -> Expression:
    """A number between the two, on a logarithmic scale; Azure's function of the name takes exponents instead."""
    return between("loguniform", low, high)


def qloguniform(low: float, high: float, q: float) -> Expression:
    """The same, rounded to a multiple of `q`."""
    return between("qloguniform", low, high, q)


def normal(mu: float, sigma: float) -> Expression:
    """A number of a normal distribution."""
    return expression("normal", mu, sigma)


def qnormal(mu: float, sigma: float, q: float) -> Expression:
    """The same, rounded to a multiple of `q`."""
    return expression("qnormal", mu, sigma, q)


def lognormal(mu: float, sigma: float) -> Expression:
    """The exponential of a number of a normal distribution."""
    return expression("lognormal", mu, sigma)


def qlognormal(mu: float, sigma: float, q: float) -> Expression:
    """The same, rounded to a multiple of `q`."""
    return expression("qlognormal", mu, sigma, q)


class Sweep(Run):
    """A run whose children run one script with other parameters each.

    Args:
        folder: Its folder.
        workspace: Where that is.
    """

    def __init__(self, folder: RunFolder, workspace: Workspace) -> None:
        super().__init__(folder, workspace)
        self._store = RunStore(workspace.runs_dir)

    @property
    def trials(self) -> list[Trial]:
        """Its runs with their parameters, statuses and best values, the best first; those without a value last."""
        return trials_of(self._folder, self._store)

    @property
    def best(self) -> Run | None:
        """The run with the best value of the metric; None where none has logged any."""
        found = self._best()
        return None if found is None else Run(self._store.get(found.id), self._workspace)

    @property
    def best_parameters(self) -> dict[str, Value] | None:
        """The parameters of that run."""
        found = self._best()
        return None if found is None else found.parameters

    def _best(self) -> Trial | None:
        trials = self.trials
        return trials[0] if trials and trials[0].best is not None else None


def tune(
    script: str,
    parameters: Mapping[str, Expression],
    *,
    metric: str,
    goal: str,
    runs: int,
    at_once: int | None = None,
    policy: Policy | None = None,
    sampling: str = RANDOM,
    seed: int | None = None,
    max_total_duration: float | str | None = None,
    args: Sequence[Any] = (),
    workspace: str | os.PathLike[str] | None = None,
    **options: Unpack[SubmitOptions],
) -> Sweep:
    """Run a script with many parameters, and find the best.

    Args:
        script: The script, relative to `source`.
        parameters: What each of its options may be, such as `{"--lr": stoker_runs.loguniform(1e-4, 1e-1)}`.
        metric: The metric that it logs, by which its runs are compared.
        goal: `maximize` or `minimize`.
        runs: How many runs.
        at_once: How many at the same time; all, as far as there is room.
        policy: Ends poor runs early: `Bandit`, `MedianStopping`, `TruncationSelection` or `Hyperband`.
        sampling: `random`, `grid` or `bayesian`.
        seed: Makes a random sweep the same again.
        max_total_duration: Seconds, or a text such as `2h`, after which what runs is ended.
        args: What stands before the parameters on its command line.
        workspace: The workspace directory.
        options: What is sent, and where and how each run runs; see `SubmitOptions`.

    Returns:
        The sweep, which goes on whatever becomes of this process.

    Raises:
        OperatorError: It is refused.
    """
    found = Workspace.find(None if workspace is None else Path(workspace))
    limit_s = None if max_total_duration is None else read_duration_s(max_total_duration)
    chosen = sampler(sampling, parameters, new_seed() if seed is None else seed)
    definition = define_sweep(chosen, metric, goal, runs, at_once, policy, max_duration_s=limit_s)
    request = request_of(script, args, found, options)
    folder, _ = submit_sweep(request, definition, found)
    return Sweep(folder, found)
