"""The `stoker` command: parses arguments, runs the chosen subcommand, and reports errors."""

from __future__ import annotations

import argparse
import errno
import os
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from shutil import get_terminal_size
from typing import Any, Final, NoReturn

from stoker import __version__
from stoker.commands.names import ACTION_ALIASES, ALIASES, EXTRAS, GROUPS, SUMMARIES
from stoker.commands.terminal import HelpAll, sentence
from stoker.errors import StokerError
from stoker.system.extensions import command_names, find_command
from stoker.system.extras import how_to_install
from stoker.system.processes import flushed_output, open_standard_streams
from stoker.system.resources import limit_library_threads

_PROGRAM: Final = "stoker"
_FAILED: Final = 1
_NO_SUCH_USE: Final = 2
_NO_ROOM: Final = "make room where its output and its files go"
_TOO_MANY_FILES: Final = "raise the limit (ulimit -n)"
_SHORTAGES: Final = {
    errno.ENOSPC: _NO_ROOM,
    errno.EDQUOT: _NO_ROOM,
    errno.EFBIG: "raise the limit of a file's size (ulimit -f)",
    errno.EMFILE: _TOO_MANY_FILES,
    errno.ENFILE: "close what keeps so many open on this machine",
}
"""Advice on shortages of the machine, by errno."""


def run(arguments: Sequence[str] | None, on_start: Callable[[], None], begun_s: float) -> int:
    """Run the command line; returns the exit code.

    Args:
        arguments: The arguments after `stoker`; None for those of the process.
        begun_s: When the process began, by `time.monotonic`; commands get it as `args.begun_s`.
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
            args.begun_s = begun_s
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
    parser = _parser_for(arguments)
    if arguments and arguments[0].startswith("-") and not parser.has_option(arguments[0]):
        # Otherwise argparse would complain about a missing command for any mistyped word.
        parser.error(f"unrecognized arguments: {arguments[0]}{_nearest(parser, arguments[:1])}")
    args, foreign = parser.parse_known_args(arguments)
    if foreign:
        # The command's own parser, so that the usage is that of the command.
        args.parser.error(f"unrecognized arguments: {' '.join(foreign)}{_nearest(args.parser, foreign)}")
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


class _Commands(argparse._SubParsersAction):  # type: ignore[type-arg]  # noqa: SLF001  # a hook of argparse
    """The commands of a parser, or the actions of a command: each has a description, and some have aliases."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._names: dict[str, str] = {}

    def add_parser(self, name: str, **options: Any) -> Any:
        """Add one; without a description of its own, its help is its description."""
        if options.get("help"):
            options.setdefault("description", sentence(options["help"]))
        if name in ACTION_ALIASES:
            options["aliases"] = (*options.get("aliases", ()), ACTION_ALIASES[name])
        self._names.update(dict.fromkeys(options.get("aliases", ()), name))
        parser = super().add_parser(name, **options)
        parser.set_defaults(parser=parser)
        return parser

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *rest: Any
    ) -> None:
        """Parse the words of the chosen one; an alias becomes the name that it stands for."""
        super().__call__(parser, namespace, [self._names.get(values[0], values[0]), *values[1:]], *rest)


class _Parser(argparse.ArgumentParser):
    """A parser, like those of its subcommands, that suggests the command that was probably meant."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.register("action", "parsers", _Commands)

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
        return [action for action in self._actions if isinstance(action, _Commands)]

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        names = [] if action.choices is None else [str(choice) for choice in action.choices]
        if action in self._commands() and value not in names:
            near = self._near(str(value), names)
            meant = f"; did you mean '{self.prog} {near}'?" if near else ""
            self.error(f"there is no command '{value}'{meant} ('{self.prog} --help' lists them)")
        super()._check_value(action, value)

    def _near(self, word: str, names: Sequence[str]) -> str | None:
        """The command that is spelled most like a word; of a path the command that serves it."""
        if self.prog == _PROGRAM and {".", "/"} & set(word) and os.path.exists(word):  # noqa: PTH110  # no name is too long for it
            return f"serve {word}"
        return next(iter(get_close_matches(word, names, 1)), None)


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


def full_parser() -> argparse.ArgumentParser:
    """Return the parser of all installed commands with all their options: for completion and the documentation."""
    parser, commands = _program()
    commands.help = "what to do"
    installed = command_names()
    for name in (*(name for name in SUMMARIES if name in installed), *sorted(installed - SUMMARIES.keys())):
        _add_command(commands, name, find_command(name))
    for command in commands.choices.values():
        for action in command._actions:  # noqa: SLF001  # argparse has no other way to them
            if isinstance(action, HelpAll):
                action.show()
    return parser


def _parser_for(arguments: Sequence[str]) -> _Parser:
    """The parser for these arguments, with the options of the command that they name alone.

    Importing the modules of all commands would take longer than many commands do.
    """
    parser, commands = _program()
    first = arguments[0] if arguments else ""
    name = ALIASES.get(first, first)
    module = find_command(name) if name and not name.startswith("-") else None
    if module is not None:
        _add_command(commands, name, module)
        return parser
    extra = next((extra for extra, names in EXTRAS.items() if name in names), None)
    if extra is not None:
        parser.error(f"the command '{first}' is not installed; {how_to_install(extra)}")
    installed = command_names()
    for known in installed:
        commands.add_parser(known, aliases=_aliases(known))
    parser.epilog = "\n".join(_list_commands(installed))
    return parser


def _program() -> tuple[_Parser, Any]:
    """The parser of `stoker` itself, and where its commands are added."""
    parser = _Parser(
        prog=_PROGRAM,
        usage="%(prog)s COMMAND [OPTION ...]",
        description="Train models by scripts, and serve TensorFlow, ONNX and score.py models, batched, behind keys.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"stoker {__version__}")
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", help=argparse.SUPPRESS, prog=_PROGRAM
    )
    return parser, commands


def _list_commands(installed: Collection[str]) -> Iterator[str]:
    """Yield the lines that list the installed commands, in groups."""
    width = get_terminal_size().columns - 2
    others = {name: find_command(name).SUMMARY for name in sorted(set(installed) - SUMMARIES.keys())}
    for title, summaries in {**GROUPS, "Other": others}.items():
        there = {name: text for name, text in summaries.items() if name in installed}
        if there:
            yield f"{title}:"
        for name, text in there.items():
            also = "".join(f" (also: {alias})" for alias in _aliases(name))
            yield textwrap.fill(
                f"{text}{also}", width, initial_indent=f"  {name:<13}", subsequent_indent=" " * 15
            )
        if there:
            yield ""
    if missing := SUMMARIES.keys() - installed:
        yield f"Not installed: {', '.join(sorted(missing))}. Each says what brings it.\n"
    yield "stoker COMMAND --help shows the options of a command."


def _aliases(name: str) -> list[str]:
    return [alias for alias, meant in ALIASES.items() if meant == name]


def _add_command(commands: Any, name: str, module: Any) -> None:
    command = commands.add_parser(name, aliases=_aliases(name), help=SUMMARIES.get(name) or module.SUMMARY)
    command.set_defaults(run=module.run)
    module.add_arguments(command)


def _nearest(parser: argparse.ArgumentParser, words: Sequence[str]) -> str:
    """A suggestion: the option nearest to one of the words, among those of a parser and of the commands below it."""
    known, parsers = set[str](), [parser]
    while parsers:
        for action in parsers.pop()._actions:  # noqa: SLF001  # argparse has no other way to them
            known.update(action.option_strings)
            if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
                parsers.extend(action.choices.values())
    options = (word.partition("=")[0] for word in words if word.startswith("--"))
    near = next((found[0] for option in options if (found := get_close_matches(option, known, 1))), None)
    return "" if near is None else f"; did you mean {near}?"
