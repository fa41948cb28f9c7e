"""`azureml.tensorboard`: TensorBoard on the metrics of runs and the event files that their scripts have written."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from stoker_azure.exceptions import UserErrorException
from stoker_azure.sdk.run import Run
from stoker_runs.records.exports import write_logdir

__all__ = ["Tensorboard", "export_to_tensorboard"]

_FOLDER: Final = "stoker-runs"
"""The folder that is replaced; all else in the user's own stays."""


def export_to_tensorboard(run_data: Any, logdir: str, logger: Any = None, recursive: bool = True) -> None:
    """Write the metrics of a run, of several or of an experiment as event files.

    Args:
        run_data: A run, a list of runs, or an experiment.
        logdir: A folder, in which those that are written before are replaced.
        recursive: With the runs below them.
    """
    del logger
    runs = run_data if isinstance(run_data, list) else [run_data]
    if hasattr(run_data, "get_runs"):
        runs = [*run_data.get_runs()]
    if recursive:
        runs = [one for run in runs for one in (run, *run.get_children(recursive=True))]
    write_logdir([run.folder for run in runs], Path(logdir) / _FOLDER)


class Tensorboard:
    """Shows runs by TensorBoard, where it is installed.

    Args:
        runs: The runs; those that go on too.
        local_root: The folder for the event files; a temporary one by default.
        port: The port of TensorBoard.
    """

    def __init__(self, runs: Sequence[Run], local_root: str | None = None, port: int = 6006) -> None:
        self._runs = list(runs)
        self._port = port
        self._local_root = local_root
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, start_browser: bool = False) -> str:
        """Write the event files, start TensorBoard, and return its address.

        Args:
            start_browser: Not used: open the address.

        Raises:
            UserErrorException: TensorBoard is not installed, or it runs already.
        """
        del start_browser
        if self._process is not None:
            raise UserErrorException("TensorBoard runs already; call stop() first")
        folder = Path(self._local_root or tempfile.mkdtemp(prefix="tensorboard-"))
        write_logdir([run.folder for run in self._runs], folder / _FOLDER)
        if find_spec("tensorboard") is None:
            raise UserErrorException(
                f"TensorBoard is not installed: pip install tensorboard; the event files are in {folder}"
            )
        command = [
            sys.executable,
            "-m",
            "tensorboard.main",
            "--logdir",
            str(folder),
            "--port",
            str(self._port),
        ]
        self._process = subprocess.Popen(command)
        address = f"http://localhost:{self._port}/"
        print(address)
        return address

    def stop(self) -> None:
        """End TensorBoard; a second call does nothing."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None
