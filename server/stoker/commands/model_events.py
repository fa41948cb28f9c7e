"""`stoker models events`: what has happened to versions in a running server."""

from __future__ import annotations

import argparse
import json
import sys
from urllib.parse import quote

from stoker.commands.running_server import add_server_arguments, ask_admin
from stoker.system.logs import escaped

__all__ = ["add_events_arguments", "print_events"]


def add_events_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare of which model, and where the server is."""
    parser.add_argument("name", metavar="NAME", nargs="?", help="the model (default: all)")
    add_server_arguments(parser)


def print_events(args: argparse.Namespace) -> int:
    """Print what the server has kept of what happened to versions, the oldest first."""
    path = (
        "/v2/repository/events" if args.name is None else f"/v2/repository/models/{quote(args.name)}/events"
    )
    events = json.loads(ask_admin(args, path, method="GET"))
    if args.json:
        sys.stdout.write(json.dumps(events, indent=2) + "\n")
        return 0
    for event in events:
        version = f":{event['version']}" if "version" in event else ""
        text = f"  {event['text']}" if "text" in event else ""
        line = f"{event['time']}  {event['model']}{version}  {event['event']}{text}"
        sys.stdout.write(escaped(line) + "\n")
    if not events:
        sys.stderr.write(f"nothing has happened to {args.name or 'any version'}\n")
    return 0
