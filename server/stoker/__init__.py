"""Stoker: a GPU model-serving inference server.

Entry scripts use `stoker.batched`; the `stoker` command does everything else. Programs that train use `stoker_runs`.
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

__all__ = ["__version__", "batched"]

__version__ = "0.1.0"

# ONNX Runtime reports to its maker, unless this is set before its library is loaded. A server calls nobody unasked.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


# Names of `stoker_runs`, which programs that train may import from here too.
_TRAINING = frozenset(
    [
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
)


def __getattr__(name: str) -> "Any":
    # Imported when it is used: servers need neither, and the command has milliseconds less in which Ctrl-C is shown
    # as a traceback; see `stoker.cli`.
    home = "stoker.batch_mark" if name == "batched" else "stoker_runs" if name in _TRAINING else ""
    if not home:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(home), name)
