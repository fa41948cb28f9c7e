"""`stoker quickstart`: from nothing to a served model in one command."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from stoker.errors import OperatorError
from stoker.settings.image_input import ImageInput
from stoker.settings.loading import add_server_options, load_settings
from stoker.settings.server import ServerSettings

__all__ = ["SUMMARY", "add_arguments", "run"]

SUMMARY: Final = "train an MNIST model if nothing is registered yet, register it and serve it"
_NAME: Final = "mnist"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--workspace", type=Path, metavar="DIR", help="workspace directory (default: .stoker)"
    )
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="folder with the four MNIST files (IDX)")
    add_server_options(parser)


def run(args: argparse.Namespace) -> int:
    """Train, register and serve.

    Raises:
        OperatorError: Training failed, or the server cannot start.
    """
    from stoker.models.repository import Repository
    from stoker.supervisor.handover import taking_over
    from stoker.supervisor.serving import serve
    from stoker.workspace import Workspace

    with taking_over(os.environ) as predecessor:
        settings = load_settings(vars(args), os.environ, None, ())
        workspace = Workspace.find(args.workspace)
        repository = Repository(workspace.models_dir)
        if not repository.names():
            _check_server(settings)
            workspace.create()
            folder = workspace.root / "outputs" / _NAME
            _train(folder, args.data)
            registered = repository.register(
                _NAME,
                folder,
                now=datetime.now(UTC),
                description="Handwritten digits, trained by stoker quickstart",
                # The digits of the training are light on dark; people send ink on paper.
                image=ImageInput(28, 28, channels=1, scale=255, invert=True).to_json(),
            )
            sys.stdout.write(f"Registered {registered.reference}.\n")
        return serve(settings, workspace, predecessor)


def _check_server(settings: ServerSettings) -> None:
    """Find out before the training what would end the server after it.

    Raises:
        OperatorError: The port or a device cannot be used.
    """
    from stoker.gpu.device_survey import probe_in_child
    from stoker.gpu.devices import choose_device
    from stoker.supervisor.binding import bind

    for sock in bind(settings.host, settings.port, 1):
        sock.close()
    for device in settings.device:
        choose_device(device, {"script"}, probe_in_child)


def _train(folder: Path, data: Path | None) -> None:
    """Train in a process of its own, so that the server does not carry TensorFlow's memory."""
    command = [
        sys.executable,
        "-m",
        "stoker.cli",
        "train",
        "mnist",
        "--network",
        "mlp",
        "--output",
        str(folder),
    ]
    if data is not None:
        command += ["--data", str(data)]
    code = subprocess.run(command, check=False).returncode
    if code in (-signal.SIGINT, 130):
        raise KeyboardInterrupt
    if code:
        raise OperatorError(f"training ended with exit code {code}; what went wrong is said above")
