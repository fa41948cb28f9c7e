"""Common options of commands, and sizes and tables as commands print them."""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from stoker.system.logs import escaped, escaped_lines

_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_TERMINATED: Final = 143
"""The exit code that shells show for a process that SIGTERM has ended."""


def add_workspace_argument(parser: argparse._ActionsContainer) -> None:
    """Declare `--workspace`."""
    parser.add_argument(
        "--workspace", type=Path, metavar="DIR", help="workspace directory (default: .stoker)"
    )


def add_json_argument(parser: argparse._ActionsContainer) -> None:
    """Declare `--json`."""
    parser.add_argument("--json", action="store_true", help="print JSON")


class HelpAll(argparse.Action):
    """`--help-all`: prints the help with the options that `shorten_help` has left out of it."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help="show all options")
        self._texts: dict[argparse.Action, str | None] = {}
        self._groups: dict[argparse._ArgumentGroup, str | None] = {}

    def hide(self, parser: argparse.ArgumentParser, shown: Collection[str]) -> None:
        """Leave all options but those with these destinations out of the help."""
        for action in parser._actions:  # noqa: SLF001  # argparse has no other way to them
            if action.dest not in (*shown, "help", self.dest) and action.help != argparse.SUPPRESS:
                self._texts[action], action.help = action.help, argparse.SUPPRESS
        for group in parser._action_groups:  # noqa: SLF001  # the same
            if self._texts.keys() >= set(group._group_actions):  # noqa: SLF001  # the same
                # Else it would stand alone.
                self._groups[group], group.description = group.description, None

    def show(self) -> None:
        """Have the help show all options from now on."""
        for action, text in self._texts.items():
            action.help = text
        for group, text in self._groups.items():
            group.description = text

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        """Print the whole help, and end."""
        self.show()
        parser.usage = None
        parser.print_help()
        parser.exit()


def shorten_help(parser: argparse.ArgumentParser, shown: Collection[str]) -> None:
    """Have `--help` show the options with these destinations alone, and `--help-all` all."""
    actions = parser._actions  # noqa: SLF001  # argparse has no other way to them
    found = next((action for action in actions if isinstance(action, HelpAll)), None)
    if found is None:
        found = HelpAll(["--help-all"], "help_all")
        parser._add_action(found)  # noqa: SLF001  # `add_argument` returns no HelpAll
    found.hide(parser, shown)


def option_of(read: Callable[[Any], Any]) -> Callable[[str], Any]:
    """Return a reader of settings as a `type` for argparse, which shows what is wrong with a value."""

    def convert(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def number_option(kind: Any, least: float, most: float) -> Callable[[str], Any]:
    """Return a `type` for argparse of numbers within bounds."""
    from stoker.settings.readers import number_of

    return option_of(number_of(kind, least, most))


def duration_s(text: str) -> int | None:
    """Return the seconds of a number with `s`, `m`, `h` or `d`; None if the text is no such number."""
    match = re.fullmatch(r"([0-9]{1,9})([smhd])", text.strip())
    return None if match is None else int(match[1]) * _UNITS_S[match[2]]


def exit_at_sigterm() -> None:
    """End this process at SIGTERM as at Ctrl-C: context managers clean up."""

    def leave(*_: object) -> NoReturn:
        sys.exit(_TERMINATED)

    signal.signal(signal.SIGTERM, leave)


def note(text: str) -> None:
    """Print a line beside the results, to standard error."""
    sys.stderr.write(f"{escaped_lines(text)}\n")
    sys.stderr.flush()


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def sentence(text: str) -> str:
    """Make a help text a sentence: only the first letter becomes a capital, so names stay as they are."""
    return f"{text[0].upper()}{text[1:]}."


def size_text(size_bytes: float) -> str:
    """Return a size in powers of 1000 for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < 1000:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.1f} TB"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Align rows in columns, a line each; line breaks become spaces, control characters are escaped."""
    clean = [[escaped(" ".join(cell.split())) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*clean, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in clean)
    return "".join(f"{line}\n" for line in lines)
