"""`stoker doctor`: check this machine, and the packages that models ask for."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from stoker.commands import serve
from stoker.commands.terminal import add_json_argument, note, print_json, shorten_help
from stoker.system.logs import escaped
from stoker.system.wording import format_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stoker.commands.diagnosis import Check


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `stoker serve`, whose start this command checks."""
    description = parser.description
    serve.add_arguments(parser)
    shorten_help(parser, ("path", "model", "config", "workspace"))
    parser.description = description
    parser.epilog = (
        "Takes all options of stoker serve, and says whether the server would\n"
        "find what it needs; no model is loaded.\n"
        "Exit code 0 if all is well, 1 if something is wrong."
    )
    parser.add_argument(
        "--build",
        action="store_true",
        help="build the virtual environments of system-managed models that are not there",
    )
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Run all checks and print their results."""
    from stoker.commands.diagnosis import diagnose
    from stoker.settings.workspace import Workspace

    checks = diagnose(serve.serve_settings(args), Workspace.find(args.workspace), build=args.build, say=note)
    well = all(check.outcome != "wrong" for check in checks)
    if args.json:
        content = {"ok": well, "checks": list(map(asdict, checks))}
        print_json(content)
    else:
        sys.stdout.write("".join(f"{escaped(line)}\n" for line in _lines(checks)))
    return 0 if well else 1


def _lines(checks: Sequence[Check]) -> list[str]:
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        first, *others = (*check.text.splitlines(), *check.items)
        lines.append(f"{check.outcome:<5}  {check.name:<{width}}  {first}")
        lines += [f"{'':<5}  {'':<{width}}  {line}" for line in others]
    wrong = sum(check.outcome == "wrong" for check in checks)
    return [
        *lines,
        f"{wrong} of {format_count(len(checks), 'check')} found something wrong" if wrong else "all is well",
    ]
