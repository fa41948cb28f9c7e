"""`stoker reload`: replace a running server by a new one, without losing a connection."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from stoker.commands.running_server import add_server_arguments, ask_admin


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = (
        "The new server is started by the same command, in the same folder, and takes the listening sockets over "
        "when it is ready; until then the old one serves. If it does not start, the old one goes on. Both hold their "
        "models for a while. SIGUSR2 to the server does the same."
    )
    add_server_arguments(parser)
    parser.add_argument(
        "--workspace", type=Path, metavar="DIR", help="workspace whose admin key is sent (default: .stoker)"
    )


def run(args: argparse.Namespace) -> int:
    """Return when the new server serves."""
    ask_admin(args, "/-/reload")
    sys.stdout.write("The new server serves.\n")
    return 0
