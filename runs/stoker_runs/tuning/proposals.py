"""Bayesian sampling: the parameters of the next child of a sweep, from what the other children have logged.

Optuna's tree-structured Parzen estimator chooses them (Bergstra et al., "Algorithms for Hyper-Parameter
Optimization", 2011). It is told all children each time and keeps nothing, so a sweep that was killed goes on from its
children's folders. Optuna takes a second to import, and is imported only where it is used.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from random import Random
from typing import Any, Final

from stoker_runs.records.states import TERMINAL, Status
from stoker_runs.tuning.children import Trial
from stoker_runs.tuning.definition import Expression, SweepDefinition, Value, round_to_step

_SEEDS: Final = 2**32
_BLAS_THREADS: Final = "OPENBLAS_NUM_THREADS"


def propose_parameters(terms: SweepDefinition, number: int, trials: Sequence[Trial]) -> dict[str, Value]:
    """Return the parameters of a child; the same arguments give the same parameters.

    Args:
        number: Which child, from 0 up.
        trials: The other children, and those of earlier sweeps that compare the same metric.
    """
    optuna = _import_optuna()
    seed = Random(f"{terms.sampler.seed}/{number}").randrange(_SEEDS)  # noqa: S311  # nothing here is secret
    # A running child counts as a poor one (`constant_liar`): children that begin at the same time differ.
    chooser = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
    study = study_of(terms, trials, chooser)
    space = terms.sampler.space
    chosen = study.ask({name: _distribution(optuna, one) for name, one in space.items()}).params
    return {name: _read_choice(one, chosen[name]) for name, one in space.items()}


def study_of(terms: SweepDefinition, trials: Sequence[Trial], chooser: Any = None) -> Any:
    """Return the children as an Optuna study in memory; a child of another space is left out.

    Args:
        chooser: Optuna's sampler.
    """
    optuna = _import_optuna()
    study = optuna.create_study(direction=terms.goal.value, sampler=chooser)
    space = terms.sampler.space
    distributions = {name: _distribution(optuna, one) for name, one in space.items()}
    states = optuna.trial.TrialState
    for trial in trials:
        if trial.parameters.keys() != space.keys():
            continue
        state, logged = states.RUNNING, {}
        if trial.status in TERMINAL:
            if trial.best is None:
                state = states.FAIL
            elif trial.status is Status.COMPLETED:
                state = states.COMPLETE
            else:
                state, logged = states.PRUNED, {trial.count: trial.best}
        try:
            finished = optuna.trial.create_trial(
                state=state,
                value=trial.best if state is states.COMPLETE else None,
                params={name: _written_choice(one, trial.parameters[name]) for name, one in space.items()},
                distributions=distributions,
                intermediate_values=logged,
            )
        except ValueError:
            # A value of another space.
            continue
        study.add_trial(finished)
    return study


def _import_optuna() -> Any:
    # A sweep forks the runners of its children, so numpy must start no threads in it. Scripts get the former value.
    before = os.environ.get(_BLAS_THREADS)
    os.environ[_BLAS_THREADS] = "1"
    try:
        import optuna
    finally:
        if before is None:
            del os.environ[_BLAS_THREADS]
        else:
            os.environ[_BLAS_THREADS] = before
    # It prints each study and trial.
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _distribution(optuna: Any, one: Expression) -> Any:
    kinds = optuna.distributions
    if one.kind == "choice":
        # By their places: 1, 1.0 and True are equal, and texts and numbers may be mixed.
        return kinds.CategoricalDistribution(range(len(one.arguments)))
    if one.kind == "randint":
        return kinds.IntDistribution(0, int(one.arguments[0]) - 1)
    low, high = (float(bound) for bound in one.arguments[:2])
    if one.kind.endswith("loguniform"):
        return kinds.FloatDistribution(math.exp(low), math.exp(high), log=True)
    return kinds.FloatDistribution(low, high)


def _read_choice(one: Expression, chosen: Any) -> Value:
    if one.kind == "choice":
        return one.arguments[int(chosen)]
    value: Value = chosen
    if one.kind.startswith("q"):
        return round_to_step(float(value), float(one.arguments[2]))
    return value


def _written_choice(one: Expression, value: Value) -> Any:
    """The inverse of `_read_choice`.

    Raises:
        ValueError: The value is none of this expression.
    """
    if one.kind == "choice":
        return [(type(known), known) for known in one.arguments].index((type(value), value))
    if isinstance(value, str):
        raise ValueError(f"{value!r} is no number")
    if one.kind == "randint":
        return value
    low, high = (float(bound) for bound in one.arguments[:2])
    if one.kind.endswith("loguniform"):
        low, high = math.exp(low), math.exp(high)
    if one.kind.startswith("q"):
        # The nearest step may lie beyond the bounds.
        return min(max(float(value), low), high)
    return float(value)
