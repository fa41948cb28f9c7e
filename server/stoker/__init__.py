"""Stoker: a GPU model-serving inference server, and training runs.

Entry scripts use `stoker.batched`, programs that train `stoker.submit`, `stoker.tune`, `stoker.start_run` and what is
beside them; everything else is reached through the `stoker` command.
"""

import os
import sys

if sys.version_info < (3, 11):  # noqa: UP036  # PYTHONPATH or an environment may lead another one here
    # Before the first module that an older Python cannot read.
    raise ImportError(f"Stoker needs Python 3.11 or newer, and {sys.executable} is {sys.version.split()[0]}")

TYPE_CHECKING = False  # that of `typing` takes milliseconds
if TYPE_CHECKING:
    from typing import Any

    from stoker.batch_mark import batched

# Imported when they are used: servers need none of it, what they need begins sooner without, and the command has
# milliseconds less in which Ctrl-C is shown as a traceback; see `stoker.cli`.
_HOMES = {
    "batched": "stoker.batch_mark",
    **dict.fromkeys(("get_run", "list_runs", "start_run", "submit"), "stoker_runs.tracking"),
    **dict.fromkeys(
        (
            *(
                "Bandit",
                "Hyperband",
                "MedianStopping",
                "TruncationSelection",
                "choice",
                "lognormal",
                "loguniform",
                "normal",
            ),
            *("qlognormal", "qloguniform", "qnormal", "quniform", "randint", "tune", "uniform"),
        ),
        "stoker_runs.sweeps",
    ),
}

__all__ = [  # by __getattr__
    "Bandit",
    "Hyperband",
    "MedianStopping",
    "TruncationSelection",
    "__version__",
    "batched",
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

__version__ = "0.1.0"

# ONNX Runtime reports to its maker, unless this is set before its library is loaded. A server calls nobody unasked.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def __getattr__(name: str) -> "Any":
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(home), name)
