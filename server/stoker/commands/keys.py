"""`stoker keys`: show and replace the bearer keys of a service, and those of named callers."""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import TYPE_CHECKING

from stoker.commands.caller_keys import add_caller_actions
from stoker.commands.terminal import add_json_argument, add_workspace_argument, print_json
from stoker.errors import InvalidSettings

if TYPE_CHECKING:
    from stoker.keys.keyring import AdminKey, Keyring
    from stoker.settings.workspace import Workspace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--name", metavar="SERVICE", help="the service; can be left out where only one service has keys"
    )
    add_workspace_argument(common)
    actions = parser.add_subparsers(dest="keys_action", required=True, metavar="ACTION")

    show = actions.add_parser("show", parents=[common], help="print both keys, or the named one alone")
    show.add_argument(
        "slot",
        nargs="?",
        choices=["primary", "secondary", "admin"],
        help="print this key and nothing else; 'admin' is the one for loading and unloading models",
    )
    add_json_argument(show)
    show.set_defaults(keys_run=_show)

    regenerate = actions.add_parser(
        "regenerate",
        parents=[common],
        help="replace one key, or the secret that signs tokens, at once in running servers too",
    )
    regenerate.add_argument(
        "slot",
        choices=["primary", "secondary", "signing", "admin"],
        help="the key to replace; 'signing' is the secret of tokens, and makes all of them invalid; 'admin' is the "
        "key for loading and unloading models",
    )
    regenerate.add_argument(
        "--key",
        metavar="VALUE",
        help="the new key, 16 to 512 characters; '-' reads it from standard input, out of the sight of other "
        "users' process lists. Without it the key is 256 random bits.",
    )
    regenerate.set_defaults(keys_run=_regenerate)
    add_caller_actions(actions)


def run(args: argparse.Namespace) -> int:
    """Run the chosen subcommand."""
    exit_code: int = args.keys_run(args)
    return exit_code


def _show(args: argparse.Namespace) -> int:
    if args.slot == "admin":
        sys.stdout.write(f"{_admin_key(args).show().primary}\n")
        return 0
    keyring = chosen_keyring(args)
    keys = keyring.show()
    if args.slot is not None:
        sys.stdout.write(f"{keys.primary if args.slot == 'primary' else keys.secondary}\n")
    elif args.json:
        shown = {"service": keyring.service, "primary": keys.primary, "secondary": keys.secondary}
        print_json(shown)
    else:
        sys.stdout.write(
            f"service    {keyring.service}\nprimary    {keys.primary}\nsecondary  {keys.secondary}\n"
        )
    return 0


def _regenerate(args: argparse.Namespace) -> int:
    if args.slot == "signing":
        return _regenerate_signing(args)
    value = sys.stdin.readline().strip() if args.key == "-" else args.key
    if args.slot == "admin":
        sys.stdout.write(f"{_admin_key(args).replace(value)}\n")
        sys.stderr.write("The admin key is replaced, in running servers too.\n")
        return 0
    keyring = chosen_keyring(args)
    keys = keyring.regenerate(args.slot, value)
    other = "secondary" if args.slot == "primary" else "primary"
    sys.stdout.write(f"{keys.primary if args.slot == 'primary' else keys.secondary}\n")
    sys.stderr.write(
        f"The {args.slot} key of service {keyring.service} is replaced, in running servers too; "
        f"the {other} key is unchanged.\n"
    )
    return 0


def _admin_key(args: argparse.Namespace) -> AdminKey:
    from stoker.keys.keyring import AdminKey
    from stoker.settings.workspace import Workspace

    keyring = AdminKey(Workspace.find(args.workspace).keys_dir)
    if not keyring.path.exists():
        raise InvalidSettings(
            f"there is no admin key in {keyring.keys_dir}; it is created when a server is first started "
            "(stoker serve)"
        )
    return keyring


def _regenerate_signing(args: argparse.Namespace) -> int:
    if args.key is not None:
        raise InvalidSettings(
            "the signing secret is always 256 random bits; --key is for primary and secondary"
        )
    keyring = chosen_keyring(args, signing=True)
    keyring.regenerate_signing_secret()
    sys.stderr.write(
        f"The signing secret of service {keyring.service} is replaced, in running servers too: "
        "all its tokens are invalid; 'stoker token' signs new ones.\n"
    )
    return 0


def chosen_keyring(args: argparse.Namespace, *, signing: bool = False) -> Keyring:
    """The keyring that `--name` and `--workspace` mean, or the only one.

    Args:
        signing: Whether it has to be of a service that signs tokens.
    """
    from stoker.keys.keyring import Keyring, services_that_sign, services_with_keys
    from stoker.settings.workspace import Workspace

    workspace = Workspace.find(args.workspace)
    services = (services_that_sign if signing else services_with_keys)(workspace.keys_dir)
    have, kind = ("sign tokens", "signing secrets") if signing else ("have keys", "keys")
    if args.name is not None:
        keyring = Keyring(workspace.keys_dir, args.name)
        if args.name not in services:
            where = _where(workspace, services, signing)
            raise InvalidSettings(f"service {args.name} has no {kind}{' in' if services else ':'} {where}")
        return keyring
    if len(services) != 1:
        choice = f"; choose one, for instance by --name {shlex.quote(services[0])}" if services else ""
        problem = f"several services {have}{choice}" if services else f"there are no {kind}"
        raise InvalidSettings(f"{problem}: {_where(workspace, services, signing)}")
    return Keyring(workspace.keys_dir, services[0])


def _where(workspace: Workspace, services: list[str], signing: bool) -> str:
    kind, start = ("signing secrets", "stoker serve --token-auth") if signing else ("keys", "stoker serve")
    if services:
        return f"{workspace.keys_dir}, which has {kind} of: {', '.join(services)}"
    empty = "has none" if signing else "is empty"
    return f"{workspace.keys_dir} {empty}; {kind} are created when a service is first started ({start})"
