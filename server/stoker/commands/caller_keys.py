"""The actions of `stoker keys` for named keys: add, list, set and remove callers."""

from __future__ import annotations

import argparse
import math
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from stoker.commands.terminal import (
    add_json_argument,
    add_workspace_argument,
    duration_s,
    number_option,
    print_json,
)
from stoker.errors import InvalidSettings
from stoker.settings.choices import TIERS

if TYPE_CHECKING:
    from stoker.keys.callers import CallerBook, CallerTerms

_ALWAYS_SHOWN: Final = ("models", "expires")
_UNLIMITED: Final = 0.0
_MOST_A_SECOND: Final = number_option(float, 0.001, 1e12)
_LIMITS: Final = {
    "rows_per_s": "rows it may send",
    "device_ms_per_s": "milliseconds of devices its rows may take",
}
"""Limits per second of a caller, by the names of `CallerTerms`."""


def add_caller_actions(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the actions."""
    common = argparse.ArgumentParser(add_help=False)
    add_workspace_argument(common)
    terms = argparse.ArgumentParser(add_help=False)
    _add_terms(terms)

    add = actions.add_parser("add", parents=[terms, common], help="make a named key, and print it")
    add.add_argument("caller", metavar="NAME", help="name of the caller")
    add.add_argument(
        "--key",
        metavar="VALUE",
        help="the key, 16 to 512 characters; '-' reads it from standard input. Without it there are 256 random bits.",
    )
    add.set_defaults(keys_run=_add)

    listed = actions.add_parser("list", parents=[common], help="list the named keys, and what each may")
    add_json_argument(listed)
    listed.set_defaults(keys_run=_list)

    change = actions.add_parser(
        "set", parents=[terms, common], help="change what a named key may, at once in running servers too"
    )
    change.add_argument("caller", metavar="NAME", help="name of the caller")
    change.set_defaults(keys_run=_set)

    remove = actions.add_parser(
        "remove", parents=[common], help="refuse a named key, at once in running servers too"
    )
    remove.add_argument("caller", metavar="NAME", help="name of the caller")
    remove.set_defaults(keys_run=_remove)


def _add_terms(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--models",
        metavar="NAMES",
        help="the only models that it opens, separated by commas, with * for any letters; all opens all",
    )
    parser.add_argument(
        "--expires",
        metavar="WHEN",
        help="until when it is valid: a time from now on, a number with s, m, h or d, or a date of UTC such as "
        "2030-01-31 or 2030-01-31T12:00; never takes that back",
    )
    parser.add_argument(
        "--weight",
        metavar="NUMBER",
        type=number_option(float, 0.001, 1000),
        help="how much of the device's time it gets beside others who wait (default 1)",
    )
    parser.add_argument(
        "--max-tier", choices=TIERS, help="the highest tier that it may ask for (default normal)"
    )
    for name, limit in _LIMITS.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            metavar="NUMBER",
            type=_rate,
            help=f"how many {limit} in a second, on average; none is without a limit (default)",
        )
    parser.add_argument(
        "--burst-s",
        metavar="NUMBER",
        type=number_option(float, 0.001, 3600),
        help="how many seconds of either it may have at once (default 2)",
    )


def _add(args: argparse.Namespace) -> int:
    key = sys.stdin.readline().strip() if args.key == "-" else args.key
    terms = _terms(args)
    if (terms.get("expires_s") or math.inf) <= time.time():
        raise InvalidSettings(f"--expires {args.expires} is past; the key would never be valid")
    made = _book(args).add(args.caller, key, terms)
    sys.stdout.write(f"{made}\n")
    sys.stderr.write(
        f"The key of {args.caller} is valid, in running servers too. Only its hash is kept: it is not shown again.\n"
    )
    return 0


def _list(args: argparse.Namespace) -> int:
    callers = _book(args).callers()
    if args.json:
        print_json([_shown(terms) for terms in callers])
        return 0
    if not callers:
        sys.stderr.write("there are no named keys; stoker keys add NAME makes one\n")
    for terms in callers:
        shown = _shown(terms)
        parts = [
            f"{name} {_text(value, none='never' if name == 'expires' else 'any')}"
            for name, value in shown.items()
            if name != "name" and (value is not None or name in _ALWAYS_SHOWN)
        ]
        sys.stdout.write(f"{terms.name}  {', '.join(parts)}\n")
    return 0


def _set(args: argparse.Namespace) -> int:
    changes = _terms(args)
    if not changes:
        raise InvalidSettings(
            "nothing is to be changed; give --models, --expires, --weight, --max-tier, --rows-per-s, "
            "--device-ms-per-s or --burst-s"
        )
    terms = _book(args).change(args.caller, changes)
    sys.stderr.write(f"The key of {terms.name} is changed, in running servers too.\n")
    return 0


def _remove(args: argparse.Namespace) -> int:
    _book(args).remove(args.caller)
    sys.stderr.write(f"The key of {args.caller} is refused from now on, in running servers too.\n")
    return 0


def _book(args: argparse.Namespace) -> CallerBook:
    from stoker.keys.callers import CallerBook
    from stoker.settings.workspace import Workspace

    return CallerBook(Workspace.find(args.workspace).keys_dir)


def _terms(args: argparse.Namespace) -> dict[str, Any]:
    """Return the given terms of a caller, by the names of `CallerTerms`."""
    given: dict[str, Any] = {}
    if args.models is not None:
        given["models"] = _models(args.models)
    if args.expires is not None:
        given["expires_s"] = _moment_s(args.expires, time.time())
    for name in ("weight", "max_tier", "burst_s", *_LIMITS):
        value = getattr(args, name)
        if value is not None:
            given[name] = None if value == _UNLIMITED else value
    return given


def _models(text: str) -> frozenset[str] | None:
    from stoker.settings.names import checked_pattern

    if text == "all":
        return None
    return frozenset(checked_pattern(name.strip()) for name in text.split(","))


def _rate(text: str) -> float:
    """Read a limit per second."""
    return _UNLIMITED if text in ("none", "0") else _MOST_A_SECOND(text)


def _moment_s(text: str, now_s: float) -> float | None:
    """A moment in seconds of the epoch; None for never."""
    if text == "never":
        return None
    after_s = duration_s(text)
    if after_s is not None:
        return now_s + after_s
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidSettings(
            f"--expires has to be a time such as 30d, a date such as 2030-01-31, or never, not {text!r}"
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _shown(terms: CallerTerms) -> dict[str, Any]:
    expires = None if terms.expires_s is None else datetime.fromtimestamp(terms.expires_s, UTC)
    return {
        "name": terms.name,
        "models": None if terms.models is None else sorted(terms.models),
        "expires": None if expires is None else expires.isoformat(timespec="seconds"),
        "weight": terms.weight,
        "max tier": terms.max_tier,
        "rows per s": terms.rows_per_s,
        "device ms per s": terms.device_ms_per_s,
        "burst s": terms.burst_s if terms.limited else None,
    }


def _text(value: Any, none: str) -> str:
    if value is None:
        return none
    return " ".join(value) if isinstance(value, list) else str(value)
