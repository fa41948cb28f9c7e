"""Pictures of a sweep by matplotlib: the best value so far, and the parameters that mattered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from stoker.errors import InvalidSettings
from stoker_runs.records.exports import import_pyplot, save_figure
from stoker_runs.records.states import Status
from stoker_runs.tuning.children import Trial
from stoker_runs.tuning.definition import SweepDefinition
from stoker_runs.tuning.policies import Goal
from stoker_runs.tuning.proposals import study_of

_SIZE_INCHES: Final = (12.0, 4.0)
_FEWEST_FOR_IMPORTANCE: Final = 8


def draw_sweep(terms: SweepDefinition, trials: Sequence[Trial], path: Path) -> None:
    """Draw a sweep.

    Args:
        trials: Its runs.
        path: The output file; its suffix determines the format.

    Raises:
        InvalidSettings: No run has a value of the metric yet, or the file cannot be of this format.
        OperatorError: matplotlib is not installed.
    """
    valued = sorted((trial for trial in trials if trial.best is not None), key=lambda trial: trial.number)
    if not valued:
        raise InvalidSettings(f"no run of the sweep has logged {terms.metric}, so there is nothing to draw")
    figure, (history, importance) = import_pyplot().subplots(1, 2, figsize=_SIZE_INCHES, layout="constrained")
    _draw_history(history, terms, valued)
    _draw_importance(importance, terms, valued)
    save_figure(figure, path)


def best_so_far(terms: SweepDefinition, values: Sequence[float]) -> list[float]:
    """Return the best of the values up to each place."""
    return list(accumulate(values, max if terms.goal is Goal.MAXIMIZE else min))


def _draw_history(axis: Any, terms: SweepDefinition, trials: Sequence[Trial]) -> None:
    numbers = [trial.number for trial in trials]
    values = [float(trial.best or 0.0) for trial in trials]
    axis.scatter(numbers, values, s=18, alpha=0.6, label="run")
    axis.step(numbers, best_so_far(terms, values), where="post", color="tab:red", label="best so far")
    axis.set_title("Best so far")
    axis.set_xlabel("run")
    axis.set_ylabel(terms.metric)
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.grid(visible=True, alpha=0.3)
    axis.legend(fontsize="small")


def importances(terms: SweepDefinition, trials: Sequence[Trial]) -> dict[str, float]:
    """Return the share of each parameter in the variance of the best values, by Optuna's fANOVA, the largest first.

    Runs that were ended early count with what they had. Empty where Optuna or scikit-learn is not installed, or fewer
    than eight runs have a value.
    Source: Hutter et al., "An Efficient Approach for Assessing Hyperparameter Importance", 2014.
    """
    valued = [replace(trial, status=Status.COMPLETED) for trial in trials if trial.best is not None]
    if len(valued) < _FEWEST_FOR_IMPORTANCE or not (find_spec("optuna") and find_spec("sklearn")):
        return {}
    study = study_of(terms, valued)
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    found = get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=0))
    return {name: float(share) for name, share in found.items()}


def _draw_importance(axis: Any, terms: SweepDefinition, trials: Sequence[Trial]) -> None:
    axis.set_title("Importance of parameters")
    found = importances(terms, trials)
    if not found:
        need = f"needs Optuna, scikit-learn and {_FEWEST_FOR_IMPORTANCE} runs"
        axis.text(0.5, 0.5, need, ha="center", va="center", transform=axis.transAxes)
        axis.set_axis_off()
        return
    names = list(reversed(found))
    axis.barh([name.lstrip("-") for name in names], [found[name] for name in names])
    axis.set_xlabel("share")
    axis.set_xlim(0, 1)
    axis.grid(visible=True, axis="x", alpha=0.3)
