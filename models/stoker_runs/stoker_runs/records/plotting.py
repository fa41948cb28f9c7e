"""Plots metrics of runs; matplotlib is imported only for that."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from stoker.errors import InvalidSettings, OperatorError
from stoker_runs.records.folder import RunFolder
from stoker_runs.records.journal import numbers_of

__all__ = ["Curve", "curves_of", "draw", "thinned"]

Curve = tuple[list[float], list[float], bool]
"""X positions, values, and whether positions are steps given by the script."""

_MOST_POINTS: Final = 2000
_COLUMNS: Final = 2
_WIDTH_INCHES, _HEIGHT_INCHES = 6.0, 3.6
_SINGLE: Final = 2


def curves_of(lines: Iterable[Mapping[str, Any]]) -> dict[str, Curve]:
    """Return the curve of each numeric metric; lists, rows and tables are curves too, as `numbers_of` names them.

    The x position of a value is its step, else its index among the values of its name. Values that are not finite
    numbers are left out.
    """
    curves: dict[str, Curve] = {}
    counts: dict[str, int] = {}
    for line in lines:
        for name, numbers in numbers_of(line):
            # The values of a list have places of their own.
            step = line.get("s") if "y" not in line else None
            has_step = isinstance(step, int | float)
            for value in numbers:
                place = counts[name] = counts.get(name, -1) + 1
                places, values, all_steps = curves.get(name, ([], [], True))
                if math.isfinite(value):
                    places.append(float(step) if has_step and step is not None else float(place))
                    values.append(value)
                curves[name] = places, values, all_steps and has_step
    return curves


def thinned(curve: Curve) -> Curve:
    """Reduce the points of a long curve, keeping minimum and maximum of each section."""
    places, values, steps = curve
    if len(values) <= _MOST_POINTS:
        return curve
    stretch = -(-2 * len(values) // _MOST_POINTS)
    kept: list[int] = []
    for begin in range(0, len(values), stretch):
        part = range(begin, min(begin + stretch, len(values)))
        kept += sorted({min(part, key=values.__getitem__), max(part, key=values.__getitem__)})
    return [places[i] for i in kept], [values[i] for i in kept], steps


def draw(folders: Sequence[RunFolder], metrics: Sequence[str], path: Path) -> list[str]:
    """Plot metrics of runs, one panel per metric and one line per run.

    Args:
        folders: The runs.
        metrics: The metrics to plot; if empty, all that any of the runs has.
        path: The output file; its suffix determines the format.

    Returns:
        The names of the plotted metrics.

    Raises:
        InvalidSettings: There is nothing to plot, or no such metric; the message names the existing ones.
        OperatorError: matplotlib is not installed.
    """
    curves = [(folder.id, curves_of(folder.metric_lines())) for folder in folders]
    there = sorted({name for _, of_run in curves for name in of_run})
    if missing := [name for name in metrics if name not in there]:
        raise InvalidSettings(f"no run has measured {missing[0]!r}; there are: {', '.join(there) or 'none'}")
    names = list(metrics) or there
    if not names:
        raise InvalidSettings("these runs have measured no numbers, so there is nothing to draw")
    pyplot = _pyplot()
    columns = 1 if len(names) < _SINGLE else _COLUMNS
    rows = -(-len(names) // columns)
    figure, axes = pyplot.subplots(
        rows,
        columns,
        figsize=(_WIDTH_INCHES * columns, _HEIGHT_INCHES * rows),
        squeeze=False,
        layout="constrained",
    )
    for axis, name in zip(axes.flat, names, strict=False):
        _draw_panel(axis, name, [(run, of_run[name]) for run, of_run in curves if name in of_run])
    for axis in list(axes.flat)[len(names) :]:
        axis.set_visible(False)
    try:
        figure.savefig(path, dpi=110)
    except ValueError as error:
        raise InvalidSettings(f"{path} cannot be drawn: {error}") from error
    finally:
        pyplot.close(figure)
    return names


def _draw_panel(axis: Any, name: str, curves: Sequence[tuple[str, Curve]]) -> None:
    all_steps = all(curve[2] for _, curve in curves)
    for run, curve in curves:
        places, values, _ = thinned(curve)
        # A single value would be an invisible line.
        axis.plot(places, values, label=run, marker="o" if len(values) < _SINGLE else None, linewidth=1.4)
    axis.set_title(name)
    axis.set_ylabel(name)
    axis.set_xlabel("step" if all_steps else "value number")
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.grid(visible=True, alpha=0.3)
    axis.legend(fontsize="small")


def _pyplot() -> Any:
    try:
        import matplotlib as mpl
        from matplotlib import pyplot as plt
    except ModuleNotFoundError as error:
        raise OperatorError(
            f"plots need matplotlib, which is not installed ({error.name}): pip install matplotlib"
        ) from error
    # A backend without windows, whatever the user's configuration.
    mpl.use("agg", force=True)
    return plt
