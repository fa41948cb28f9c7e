"""`stoker data`: look at the requests and answers that were collected."""

from __future__ import annotations

import argparse
import json
import sys

from stoker.commands.terminal import add_workspace_argument
from stoker.errors import InvalidSettings, OperatorError
from stoker.system.extras import how_to_install


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommand."""
    actions = parser.add_subparsers(dest="data_action", required=True, metavar="ACTION")
    tail = actions.add_parser("tail", help="print the last records of a model, one JSON object a line")
    tail.add_argument("name", metavar="NAME", help="the service's name")
    tail.add_argument("--lines", type=_count, default=10, metavar="N", help="how many records (default 10)")
    add_workspace_argument(tail)


def run(args: argparse.Namespace) -> int:
    """Print the last records."""
    from stoker.collecting.record_files import last_records
    from stoker.settings.workspace import Workspace

    data_dir = Workspace.find(args.workspace).data_dir
    collected = sorted(folder.name for folder in data_dir.iterdir()) if data_dir.is_dir() else []
    if args.name not in collected:
        raise InvalidSettings(
            f"nothing was collected of {args.name!r} in {data_dir}; collected: {', '.join(collected) or 'nothing'} "
            "(stoker serve --collect collects)"
        )
    try:
        records = last_records(data_dir / args.name, args.lines)
    except ImportError as error:
        raise OperatorError(
            f"these are Parquet files, read by pyarrow, which is not installed; {how_to_install('parquet')}"
        ) from error
    except (OSError, ValueError) as error:
        raise OperatorError(f"the collected records cannot be read: {error}") from error
    for record in records:
        sys.stdout.write(json.dumps(record) + "\n")
    return 0


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)
