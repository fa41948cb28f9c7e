"""`stoker keys`: show and replace the bearer keys of a service."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.errors import InvalidSettings

if TYPE_CHECKING:
    from stoker.keyring import Keyring
    from stoker.workspace import Workspace

__all__ = ["SUMMARY", "add_arguments", "run"]

SUMMARY = "show and replace the bearer keys of a service"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--name", metavar="SERVICE", help="the service; can be left out where only one service has keys"
    )
    common.add_argument("--workspace", type=Path, metavar="DIR", help="the workspace directory")
    actions = parser.add_subparsers(dest="keys_action", required=True, metavar="ACTION")

    show = actions.add_parser("show", parents=[common], help="print both keys, or the named one alone")
    show.add_argument(
        "slot", nargs="?", choices=["primary", "secondary"], help="print this key and nothing else"
    )
    show.add_argument("--json", action="store_true", help="print JSON")
    show.set_defaults(keys_run=_show)

    regenerate = actions.add_parser(
        "regenerate",
        parents=[common],
        help="replace one key, at once in running servers too; the other one stays valid",
    )
    regenerate.add_argument("slot", choices=["primary", "secondary"], help="the key to replace")
    regenerate.add_argument(
        "--key",
        metavar="VALUE",
        help="the new key, 16 to 512 characters; '-' reads it from standard input, out of the sight of other "
        "users' process lists. Without it the key is 256 random bits.",
    )
    regenerate.set_defaults(keys_run=_regenerate)


def run(args: argparse.Namespace) -> int:
    """Run the chosen subcommand.

    Raises:
        InvalidSettings: There are no keys, or several services have keys and none was named.
    """
    exit_code: int = args.keys_run(args)
    return exit_code


def _show(args: argparse.Namespace) -> int:
    keyring = _chosen(args)
    keys = keyring.show()
    if args.slot is not None:
        sys.stdout.write(f"{keys.primary if args.slot == 'primary' else keys.secondary}\n")
    elif args.json:
        shown = {"service": keyring.service, "primary": keys.primary, "secondary": keys.secondary}
        sys.stdout.write(json.dumps(shown, indent=2) + "\n")
    else:
        sys.stdout.write(
            f"service    {keyring.service}\nprimary    {keys.primary}\nsecondary  {keys.secondary}\n"
        )
    return 0


def _regenerate(args: argparse.Namespace) -> int:
    keyring = _chosen(args)
    value = sys.stdin.readline().strip() if args.key == "-" else args.key
    keys = keyring.regenerate(args.slot, value)
    other = "secondary" if args.slot == "primary" else "primary"
    sys.stdout.write(f"{keys.primary if args.slot == 'primary' else keys.secondary}\n")
    sys.stderr.write(
        f"The {args.slot} key of service {keyring.service} is replaced, in running servers too; "
        f"the {other} key is unchanged.\n"
    )
    return 0


def _chosen(args: argparse.Namespace) -> Keyring:
    """The keyring that `--name` means, or the only one."""
    from stoker.keyring import Keyring, services_with_keys
    from stoker.workspace import Workspace

    workspace = Workspace.find(args.workspace)
    services = services_with_keys(workspace.keys_dir)
    if args.name is not None:
        keyring = Keyring(workspace.keys_dir, args.name)
        if args.name not in services:
            raise InvalidSettings(f"service {args.name} has no keys in {_where(workspace, services)}")
        return keyring
    if len(services) != 1:
        problem = "several services have keys; choose one by --name" if services else "there are no keys"
        raise InvalidSettings(f"{problem}: {_where(workspace, services)}")
    return Keyring(workspace.keys_dir, services[0])


def _where(workspace: Workspace, services: list[str]) -> str:
    if services:
        return f"{workspace.keys_dir}, which has keys of: {', '.join(services)}"
    return f"{workspace.keys_dir} is empty; keys are created when a service is first started (stoker serve)"
