"""`stoker token`: sign a short-lived token for a caller who is not to hold a key."""

from __future__ import annotations

import argparse
import re
import sys
import time

from stoker.commands.terminal import add_workspace_argument, duration_s, print_json
from stoker.errors import InvalidSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = (
        "The token is printed alone, for 'Authorization: Bearer TOKEN'. Servers take it if they were started with "
        "--token-auth. 'stoker keys regenerate signing' makes all tokens of a service invalid."
    )
    parser.add_argument(
        "--name", metavar="SERVICE", help="the service; can be left out where only one signs tokens"
    )
    parser.add_argument(
        "--valid",
        metavar="TIME",
        default="12h",
        help="how long it is valid: a number with s, m, h or d (default 12h, at most 30d)",
    )
    parser.add_argument(
        "--caller",
        metavar="NAME",
        help="whose it is: a caller with a named key (stoker keys add), whose scope and expiry hold for it too",
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON, with the times of refresh and expiry"
    )
    add_workspace_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Sign a token and print it.

    Raises:
        InvalidSettings: The service is unknown or signs no tokens, the caller is unknown, or the time is malformed or
            out of range.
    """
    from stoker.commands.keys import chosen_keyring
    from stoker.keys.callers import CallerBook
    from stoker.keys.keyring import read_signing_secret
    from stoker.keys.tokens import issue_token

    valid_s = _duration_s(args.valid)
    keyring = chosen_keyring(args, signing=True)
    secret = read_signing_secret(keyring.keys_dir, keyring.service)
    caller = None if args.caller is None else CallerBook(keyring.keys_dir).find(args.caller).identity
    token = issue_token(secret, keyring.service, now_s=time.time(), valid_s=valid_s, caller=caller)
    if args.json:
        # The server's answer has Azure's keys.
        print_json({re.sub("(?=[A-Z])", "_", name).lower(): value for name, value in token.to_json().items()})
    else:
        sys.stdout.write(f"{token.text}\n")
    return 0


def _duration_s(text: str) -> int:
    seconds = duration_s(text)
    if seconds is None:
        raise InvalidSettings(f"--valid has to be a number with s, m, h or d, such as 12h, not {text!r}")
    return seconds
