"""The `stoker` command: parses arguments, runs the chosen subcommand, and reports errors."""

from __future__ import annotations

import argparse
import errno
import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from shutil import get_terminal_size
from typing import Any, Final, NoReturn

from stoker import __version__
from stoker.errors import StokerError
from stoker.system.extensions import command_names, find_command
from stoker.system.extras import how_to_install
from stoker.system.processes import flushed_output, open_standard_streams
from stoker.system.resources import limit_library_threads

_GROUPS: Final[Mapping[str, Sequence[str]]] = {
    "Serve": ("quickstart", "serve", "reload"),
    "Models": ("models", "score", "offline"),
    "Keys": ("keys", "token"),
    "Look": ("doctor", "devices", "data", "profile", "bench", "simulate"),
    "Training": ("train", "submit", "tune", "runs", "experiments", "targets"),
    "Cluster": ("kubernetes", "router", "autoscale", "store", "ray"),
    "Azure": ("az", "compute"),
}
"""The commands, as the help lists them."""
_EXTRAS: Final[Mapping[str, Sequence[str]]] = {
    "training": ("quickstart", "train"),
    "runs": _GROUPS["Training"][1:],
    "cluster": _GROUPS["Cluster"],
    "azure": _GROUPS["Azure"],
    "bench": ("bench", "simulate"),
}
"""The extra that installs each command of another distribution."""
_FAILED: Final = 1
_NO_SUCH_USE: Final = 2
_NO_ROOM: Final = "make room where its output and its files go"
_TOO_MANY_FILES: Final = "raise the limit (ulimit -n)"
_SHORTAGES: Final = {
    errno.ENOSPC: _NO_ROOM,
    errno.EDQUOT: _NO_ROOM,
    errno.EMFILE: _TOO_MANY_FILES,
    errno.ENFILE: "close what keeps so many open on this machine",
}
"""Advice on shortages of the machine, by errno."""


def run(arguments: Sequence[str] | None, on_start: Callable[[], None]) -> int:
    """Run the command line; returns the exit code.

    Args:
        arguments: The arguments after `stoker`; None for those of the process.
    """
    open_standard_streams()
    # Before any command imports NumPy.
    limit_library_threads(os.environ)
    arguments = _join_sort_option(sys.argv[1:] if arguments is None else arguments)
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    name, workspace, code = "stoker", None, 0
    try:
        with flushed_output():
            args = _parse(arguments)
            name, workspace = f"stoker {args.command}", getattr(args, "workspace", None)
            on_start()
            code = int(args.run(args))
    except StokerError as error:
        _print_error(f"{name}: {error}")
        return int(getattr(error, "exit_code", 1))
    except BrokenPipeError:
        # The reader of a pipe, such as `head`, has closed it; the exit code of the command stays.
        return code
    except OSError as error:
        return _report_os_error(error, name, workspace)
    return code


def _print_error(text: str) -> None:
    """Print an error with control characters escaped, because it may quote the content of foreign files."""
    from stoker.system.logs import escaped_lines

    sys.stderr.write(f"{escaped_lines(text)}\n")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments; ends the process for help and for usage errors."""
    parser = _parser(arguments)
    if arguments and arguments[0].startswith("-") and not parser.has_option(arguments[0]):
        # Otherwise argparse would complain about a missing command, whatever was mistyped.
        parser.error(f"unrecognized arguments: {arguments[0]}{_nearest(parser, arguments[:1], arguments)}")
    args, foreign = parser.parse_known_args(arguments)
    if foreign:
        parser.error(f"unrecognized arguments: {' '.join(foreign)}{_nearest(parser, foreign, arguments)}")
    return args


def _report_os_error(error: OSError, name: str, workspace: Path | None) -> int:
    """Report an error of the system that the operator can fix; returns the exit code.

    Raises:
        OSError: The same error, if the operator cannot fix it.
    """
    if error.errno in _SHORTAGES and (error.filename is None or error.errno in (errno.EMFILE, errno.ENFILE)):
        sys.stderr.write(f"{name}: {error.strerror}: {_SHORTAGES[error.errno]}\n")
        return _FAILED
    if error.filename is not None:
        # The operator has named a file or folder that cannot be used.
        advice = _advice(workspace, str(error.filename))
        _print_error(f"{name}: {error.strerror}: {error.filename}{advice}")
        return _NO_SUCH_USE
    if not _has_current_folder():
        sys.stderr.write(f"{name}: the current folder has been removed; change to another one\n")
        return _NO_SUCH_USE
    raise error


class _Parser(argparse.ArgumentParser):
    """A parser, like those of its subcommands, that suggests the command that was probably meant."""

    def has_option(self, word: str) -> bool:
        """Whether the word is an option, or a prefix of one."""
        return any(option.startswith(word.partition("=")[0]) for option in self._option_string_actions)

    def error(self, message: str) -> NoReturn:
        """End with a usage error; if a command is missing, list the commands."""
        if any(message.endswith(f"required: {commands.metavar}") for commands in self._commands()):
            self.print_help(sys.stderr)
            self.exit(_NO_SUCH_USE)
        super().error(message)

    def _commands(self) -> list[argparse.Action]:
        return [action for action in self._actions if isinstance(action, argparse._SubParsersAction)]  # noqa: SLF001

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        names = [] if action.choices is None else [str(choice) for choice in action.choices]
        if action in self._commands() and value not in names:
            near = get_close_matches(str(value), names, 1)
            meant = f"; did you mean '{self.prog} {near[0]}'?" if near else ""
            self.error(f"there is no command '{value}'{meant} ('{self.prog} --help' lists them)")
        super()._check_value(action, value)


def _join_sort_option(arguments: Sequence[str]) -> list[str]:
    """Join `--sort -NAME` into one word, because argparse takes values with a leading dash for options."""
    joined: list[str] = []
    for word in arguments:
        if joined and joined[-1] == "--sort" and joined[0] == "runs":
            joined[-1] = f"--sort={word}"
        else:
            joined.append(word)
    return joined


def _advice(workspace: Path | None, filename: str) -> str:
    """Return advice if the unusable file is in the workspace."""
    from stoker.settings.workspace import Workspace

    try:
        root = Workspace.find(workspace).root
    except (StokerError, OSError):
        return ""
    return "; choose another workspace with --workspace" if Path(filename).is_relative_to(root) else ""


def _has_current_folder() -> bool:
    try:
        os.getcwd()  # noqa: PTH109  # the same
    except FileNotFoundError:
        return False
    return True


def _parser(arguments: Sequence[str]) -> _Parser:
    parser = _Parser(
        prog="stoker",
        description="Train models by scripts, and serve TensorFlow, ONNX and score.py models, batched, behind keys.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"stoker {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    first = arguments[0] if arguments else ""
    # Only the module of the given command is imported: importing all takes longer than many commands.
    module = find_command(first) if first and not first.startswith("-") else None
    if module is not None:
        _add_command(commands, first, module)
        return parser
    extra = next((extra for extra, names in _EXTRAS.items() if first in names), None)
    if extra is not None:
        parser.error(f"the command '{first}' needs packages that are not installed; {how_to_install(extra)}")
    parser.epilog = "\n".join(_add_all_commands(commands))
    return parser


def _add_all_commands(commands: Any) -> Iterator[str]:
    """Add all installed commands; yields the lines that list them, in groups."""
    installed = command_names()
    others = sorted(installed.difference(*_GROUPS.values()))
    width = get_terminal_size().columns - 2
    for title, names in {**_GROUPS, "Other": others}.items():
        modules = {name: find_command(name) for name in names if name in installed}
        if modules:
            yield f"\n{title}:" if title != next(iter(_GROUPS)) else f"{title}:"
        for name, module in modules.items():
            _add_command(commands, name, module)
            yield textwrap.fill(
                module.SUMMARY, width, initial_indent=f"  {name:<13}", subsequent_indent=" " * 15
            )
    missing = sorted({name for names in _EXTRAS.values() for name in names} - installed)
    if missing:
        yield f"\nNot installed: {', '.join(missing)}. Each says what brings it."


def _add_command(commands: Any, name: str, module: Any) -> None:
    from stoker.commands.terminal import sentence

    command = commands.add_parser(name, description=sentence(module.SUMMARY))
    command.set_defaults(run=module.run)
    module.add_arguments(command)


def _nearest(parser: argparse.ArgumentParser, words: Sequence[str], arguments: Sequence[str]) -> str:
    """A suggestion: the option nearest to one of the words, among those of the given commands."""
    known, parsers = set[str](), [parser]
    while parsers:
        for action in parsers.pop()._actions:  # noqa: SLF001  # argparse has no other way to them
            known.update(action.option_strings)
            if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
                meant = [action.choices[name] for name in arguments if name in action.choices]
                parsers.extend(meant or action.choices.values())
    options = (word.partition("=")[0] for word in words if word.startswith("--"))
    near = next((found[0] for option in options if (found := get_close_matches(option, known, 1))), None)
    return "" if near is None else f"; did you mean {near}?"
