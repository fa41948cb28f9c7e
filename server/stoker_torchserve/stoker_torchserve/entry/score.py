"""The entry script of TorchServe's archives."""

from __future__ import annotations

import os
from pathlib import Path

from stoker_torchserve.handlers import HandlerRun

run = HandlerRun()


def init() -> None:
    """Load the handler of the archive that the server has unpacked."""
    run.load(Path(os.environ["AZUREML_MODEL_DIR"]), device=os.environ["STOKER_DEVICE"])
