"""`stoker quickstart`: from nothing to a served model in one command."""

from __future__ import annotations

import argparse
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stoker.commands.terminal import add_workspace_argument
from stoker.errors import OperatorError
from stoker.settings.image_input import ImageInput
from stoker.settings.loading import add_server_options, load_settings
from stoker.settings.server import ServerSettings

if TYPE_CHECKING:
    from stoker.settings.workspace import Workspace
    from stoker_runs.records.folder import RunFolder

_NAME: Final = "mnist"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_workspace_argument(parser)
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="folder with the four MNIST files (IDX)")
    add_server_options(parser, ("host", "port", "device"))
    parser.epilog = (
        "Other settings of stoker serve are read from the environment, such as STOKER_GRPC_PORT=8001."
    )


def run(args: argparse.Namespace) -> int:
    """Train, register and serve."""
    from stoker.models.repository import Repository
    from stoker.settings.workspace import Workspace
    from stoker.supervisor.predecessor import taking_over
    from stoker.supervisor.serving import serve
    from stoker_runs.launch.registration import origin_of

    with taking_over(os.environ) as predecessor:
        settings = load_settings(vars(args), os.environ, None, ())
        workspace = Workspace.find(args.workspace)
        repository = Repository(workspace.models_dir)
        if not repository.names():
            _check_server(settings)
            workspace.create()
            folder = _train(workspace, args.data)
            registered = repository.register(
                _NAME,
                folder.outputs,
                now=datetime.now(UTC),
                description="Handwritten digits, trained by stoker quickstart",
                # The digits of the training are light on dark; people send ink on paper.
                properties=origin_of(folder),
                image=ImageInput(28, 28, channels=1, scale=255, invert=True).to_json(),
            )
            sys.stdout.write(f"Registered {registered.reference}.\n")
        return serve(settings, workspace, time.monotonic(), predecessor)


def _check_server(settings: ServerSettings) -> None:
    """Find out before the training what would end the server after it."""
    from stoker.gpu.child_probes import probe_in_child
    from stoker.gpu.selection import choose_device
    from stoker.supervisor.ports import bind

    for sock in bind(settings.host, settings.port, 1):
        sock.close()
    for device in settings.device:
        choose_device(device, {"script"}, probe_in_child)


def _train(workspace: Workspace, data: Path | None) -> RunFolder:
    """Train in a run, whose process is another one: the server does not carry TensorFlow's memory."""
    from stoker_runs.commands.run_output import write_bytes
    from stoker_runs.launch.following import follow
    from stoker_runs.records.states import Status
    from stoker_training.commands import train

    parser = argparse.ArgumentParser()
    train.add_arguments(parser)
    # Nothing is copied: the model is registered from the run itself.
    output = workspace.root / "outputs" / _NAME
    words = ["mnist", "--output", str(output), *([] if data is None else ["--data", str(data)])]
    folder = train.submit_training(parser.parse_args(words), workspace)
    try:
        state = follow(folder, workspace, write_bytes)
    except KeyboardInterrupt:
        folder.request_cancel("by its user", time.time_ns() // 1_000_000)
        raise
    if state.status is not Status.COMPLETED:
        message = state.reason if state.error is None else state.error.message
        raise OperatorError(f"the training {folder.id} is {state.status.value}: {message}")
    return folder
