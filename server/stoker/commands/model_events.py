"""`stoker models events`: the events of versions in a running server."""

from __future__ import annotations

import argparse
import json
import sys
from urllib.parse import quote

from stoker.commands.running_server import add_server_arguments, ask_admin
from stoker.commands.terminal import (
    print_json,
)
from stoker.system.logs import escaped


def add_events_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the model and the server."""
    parser.add_argument("name", metavar="NAME", nargs="?", help="the model (default: all)")
    add_server_arguments(parser)


def print_events(args: argparse.Namespace) -> int:
    """Print the events that the server has kept, the oldest first."""
    path = (
        "/v2/repository/events" if args.name is None else f"/v2/repository/models/{quote(args.name)}/events"
    )
    events = json.loads(ask_admin(args, path, method="GET"))
    if args.json:
        print_json(events)
        return 0
    for event in events:
        version = f":{event['version']}" if "version" in event else ""
        text = f"  {event['text']}" if "text" in event else ""
        line = f"{event['time']}  {event['model']}{version}  {event['event']}{text}"
        sys.stdout.write(escaped(line) + "\n")
    if not events:
        sys.stderr.write(f"nothing has happened to {args.name or 'any version'}\n")
    return 0
