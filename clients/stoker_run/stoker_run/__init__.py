"""What travels with every run of Stoker: the agent that starts the script, and the faces of its run.

In a script:

    import stoker_run

    run = stoker_run.current()
    run.log("loss", 0.3, step=1)
    model.fit(images, labels, callbacks=[stoker_run.KerasLogger()])

Outside of a run the same lines print what they would have logged. Python 3.6 or newer, without any other package.
"""

from stoker_run.context import current
from stoker_run.keras_logger import KerasLogger
from stoker_run.offline import OfflineRun
from stoker_run.run import Run

__version__ = "0.1.0"

__all__ = ["KerasLogger", "OfflineRun", "Run", "__version__", "current"]
