"""Plots simulation results: goodput, latency and device use by load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stoker.errors import InvalidSettings

__all__ = ["draw"]


def draw(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Plot a table of loads.

    Args:
        path: The file; its suffix determines the format.
        rows: The table.

    Raises:
        InvalidSettings: The table has no loads, the file cannot be written, or a package is missing.
    """
    if not rows or "load" not in rows[0]:
        raise InvalidSettings("only loads can be drawn: leave --plot out with --suite and --replay")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InvalidSettings(
            "--plot needs matplotlib, which comes with the extra training; install that, or leave --plot out"
        ) from None
    loads = [row["load"] for row in rows]
    figure = Figure(figsize=(12, 3.5), layout="constrained")
    goodput, latency, use = figure.subplots(1, 3)
    goodput.plot(loads, [row["load"] * row["in time"] for row in rows], marker="o")
    goodput.plot(loads, [min(1.0, load) for load in loads], linestyle=":", color="grey")
    goodput.set_title("in time, of what the device does in full batches")
    for name in ("p50 ms", "p99 ms"):
        latency.plot(loads, [row[name] for row in rows], marker="o", label=name)
    latency.legend()
    latency.set_title("time to answers")
    use.plot(loads, [row["busy"] for row in rows], marker="o")
    use.set_title("part of the time in which it computes")
    for axes in (goodput, latency, use):
        axes.set_xlabel("load")
        axes.set_ylim(bottom=0)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise InvalidSettings(f"{path} cannot be written: {error}") from error
