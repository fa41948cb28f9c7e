"""The agent that travels with every run: it starts the script, and provides `azureml.core` and MLflow's store.

In a script:

    import stoker_run

    run = stoker_run.current()
    run.log("loss", 0.3, step=1)
    model.fit(images, labels, callbacks=[stoker_run.KerasLogger()])

Outside of a run the same lines print what they would have logged. Python 3.6 or newer, without any other package.
"""

import sys
from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = ["KerasLogger", "OfflineRun", "Run", "__version__", "current"]

_MODULES = {
    "KerasLogger": "keras_logger",
    "OfflineRun": "offline_run",
    "Run": "run",
    "current": "current_run",
}

# Python 3.6 asks no module for what it has not.
if TYPE_CHECKING or sys.version_info < (3, 7):
    from stoker_run.current_run import current
    from stoker_run.keras_logger import KerasLogger
    from stoker_run.offline_run import OfflineRun
    from stoker_run.run import Run


def __getattr__(name: str) -> object:
    """Import what is asked for: the agent needs none of it, and starts in half the time without."""
    if name not in _MODULES:
        raise AttributeError(f"module 'stoker_run' has no attribute {name!r}")
    from importlib import import_module

    found = getattr(import_module(f"stoker_run.{_MODULES[name]}"), name)
    globals()[name] = found
    return found
