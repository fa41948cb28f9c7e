"""Pictures of a sweep by matplotlib: the best value so far, what mattered, and all runs as parallel coordinates."""

from __future__ import annotations

import math
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
from stoker_runs.tuning.definition import Expression, SweepDefinition, Value
from stoker_runs.tuning.policies import Goal
from stoker_runs.tuning.proposals import study_of

_SIZE_INCHES: Final = (12.0, 8.0)
_FEWEST_FOR_IMPORTANCE: Final = 8
_COLORS: Final = "viridis"


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
    pyplot = import_pyplot()
    figure = pyplot.figure(figsize=_SIZE_INCHES, layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=(1, 1.2))
    history, importance = above.subplots(1, 2)
    _draw_history(history, terms, valued)
    _draw_importance(importance, terms, valued)
    _draw_coordinates(below, terms, valued)
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


def _draw_coordinates(figure: Any, terms: SweepDefinition, trials: Sequence[Trial]) -> None:
    """One vertical axis a parameter, one line a run, from pale for the worst to dark for the best."""
    pyplot = import_pyplot()
    axis = figure.subplots()
    names = list(terms.sampler.space)
    values = [terms.goal.sign * float(trial.best or 0.0) for trial in trials]
    lowest, highest = min(values), max(values)
    colors = pyplot.get_cmap(_COLORS).reversed()
    # The best is drawn last, above the others.
    for value, trial in sorted(zip(values, trials, strict=True), key=lambda one: one[0]):
        part = (value - lowest) / (highest - lowest) if highest > lowest else 1.0
        try:
            heights = [_height(terms.sampler.space[name], trial.parameters[name]) for name in names]
        except (KeyError, ValueError):
            # A run that goes on from a sweep of another space.
            continue
        axis.plot(
            range(len(names)), heights, color=colors(part), alpha=0.4 + 0.6 * part, marker="o", markersize=3
        )
    axis.set_title(f"Runs by their parameters (dark: the best {terms.metric})")
    axis.set_xticks(range(len(names)), [name.lstrip("-") for name in names])
    axis.set_ylim(-0.08, 1.08)
    axis.set_yticks([])
    axis.margins(x=0.08)
    for place, name in enumerate(names):
        axis.axvline(place, color="0.7", linewidth=0.8, zorder=0)
        for height, text in _marks(terms.sampler.space[name]):
            axis.annotate(
                text, (place, height), xytext=(4, 2), textcoords="offset points", fontsize="x-small"
            )


def _bounds(one: Expression) -> tuple[float, float]:
    """The ends of an expression's axis, which is logarithmic where the expression is; of a normal one, ±3 sigma."""
    if one.kind == "randint":
        return 0.0, max(1.0, float(one.arguments[0]) - 1)
    low, high = (float(number) for number in one.arguments[:2])
    if "normal" in one.kind:
        spread = 3 * high or 1.0
        return low - spread, low + spread
    return low, high


def _is_logarithmic(one: Expression) -> bool:
    return one.kind.removeprefix("q").startswith("log")


def _height(one: Expression, value: Value) -> float:
    """Where a value lies on its axis, from 0 to 1."""
    if one.kind == "choice":
        place = [(type(known), known) for known in one.arguments].index((type(value), value))
        return place / (len(one.arguments) - 1) if len(one.arguments) > 1 else 0.5
    low, high = _bounds(one)
    number = float(value)
    if _is_logarithmic(one):
        number = math.log(number) if number > 0 else low
    return min(1.0, max(0.0, (number - low) / (high - low)))


def _marks(one: Expression) -> list[tuple[float, str]]:
    """The height and text of the marks of an axis."""
    if one.kind == "choice":
        return [(_height(one, value), str(value)) for value in one.arguments]
    ends = _bounds(one)
    texts = [f"{math.exp(end) if _is_logarithmic(one) else end:.3g}" for end in ends]
    return list(zip((0.0, 1.0), texts, strict=True))
