"""`stoker stop`: stop servers that run on this machine."""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import sys
from typing import TYPE_CHECKING

from stoker.commands.running_server import add_choice_of_servers, chosen_server, chosen_servers
from stoker.errors import InvalidSettings, OperatorError

if TYPE_CHECKING:
    from stoker.supervisor.server_record import ServerRecord


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = (
        "The server gets SIGTERM: it answers the requests that it has, and ends. The command returns when it has "
        "ended; Ctrl-C ends the waiting alone."
    )
    add_choice_of_servers(parser)
    parser.add_argument("--all", action="store_true", help="stop all servers of the workspace that run here")


def run(args: argparse.Namespace) -> int:
    """Stop the servers, and return when they have ended."""
    if args.all and args.server is not None:
        raise InvalidSettings(f"--all and {args.server} both say what is stopped; leave one out")
    records = chosen_servers(args) if args.all else [chosen_server(args)]
    with contextlib.ExitStack() as cleanup:
        processes = [(record, _signal(record, cleanup)) for record in records]
        for record, process in processes:
            if process is not None:
                select.select([process], [], [])
            sys.stdout.write(f"{record.uri} (process {record.pid}) has stopped\n")
    return 0


def _signal(record: ServerRecord, cleanup: contextlib.ExitStack) -> int | None:
    """Send SIGTERM; returns a descriptor that is readable when the process has ended, None if it has already."""
    try:
        process = os.pidfd_open(record.pid)
        cleanup.callback(os.close, process)
        # The descriptor stands for the process that has the id now: another one is left alone.
        if not record.is_running:
            return None
        signal.pidfd_send_signal(process, signal.SIGTERM)
    except ProcessLookupError:
        return None
    except PermissionError as error:
        raise OperatorError(f"the server {record.pid} belongs to another user, who may stop it") from error
    return process
