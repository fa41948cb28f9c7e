"""Training runs of Stoker: experiments, runs, sweeps and compute targets.

Programs that train use `stoker_runs.submit`, `stoker_runs.tune`, `stoker_runs.start_run` and the names beside them.
"""

TYPE_CHECKING = False  # the name in `typing` takes milliseconds
if TYPE_CHECKING:
    from typing import Any

    from stoker_runs.sweeps import (
        choice,
        lognormal,
        loguniform,
        normal,
        qlognormal,
        qloguniform,
        qnormal,
        quniform,
        randint,
        tune,
        uniform,
    )
    from stoker_runs.tracking import get_run, list_runs, start_run, submit
    from stoker_runs.tuning.policies import Bandit, Hyperband, MedianStopping, TruncationSelection

__all__ = [  # by __getattr__
    "Bandit",
    "Hyperband",
    "MedianStopping",
    "TruncationSelection",
    "choice",
    "get_run",
    "list_runs",
    "lognormal",
    "loguniform",
    "normal",
    "qlognormal",
    "qloguniform",
    "qnormal",
    "quniform",
    "randint",
    "start_run",
    "submit",
    "tune",
    "uniform",
]


def __getattr__(name: str) -> "Any":
    # Imported when it is used: each command of runs imports this package, and few need sweeps.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    home = "sweeps"
    if name in ("get_run", "list_runs", "start_run", "submit"):
        home = "tracking"
    elif name in ("Bandit", "Hyperband", "MedianStopping", "TruncationSelection"):
        home = "tuning.policies"
    return getattr(import_module(f"stoker_runs.{home}"), name)
