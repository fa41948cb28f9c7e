"""The `stoker` command."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final

from stoker import __version__
from stoker.errors import StokerError
from stoker.system.cgroup import tell_libraries

__all__ = ["main"]

_COMMANDS: Final = (
    "quickstart",
    "serve",
    "reload",
    "train",
    "submit",
    "runs",
    "experiments",
    "targets",
    "models",
    "keys",
    "token",
    "kubernetes",
    "router",
    "compute",
    "autoscale",
    "store",
    "ray",
    "score",
    "offline",
    "data",
    "doctor",
    "devices",
    "bench",
    "simulate",
    "az",
)
_INTERRUPTED: Final = 130
_NO_SUCH_USE: Final = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code.

    Errors that the operator can mend are printed without a traceback.
    """
    _prepare_standard_streams()
    # Before any command imports NumPy.
    tell_libraries(os.environ)
    arguments = _joined(sys.argv[1:] if arguments is None else arguments)
    command = ""
    try:
        parser = _parser(arguments)
        args, foreign = parser.parse_known_args(arguments)
        if foreign:
            parser.error(f"unrecognized arguments: {' '.join(foreign)}{_nearest(parser, foreign)}")
        command = args.command
        return int(args.run(args))
    except StokerError as error:
        sys.stderr.write(f"stoker {command}: {error}\n")
        return int(getattr(error, "exit_code", 1))
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe, such as `head`, has seen enough.
        sys.stderr.close()
        return 0
    except OSError as error:
        # A file or folder that the operator has named, and that the system does not let be used.
        if error.filename is None:
            if not _has_current_folder():
                sys.stderr.write(
                    f"stoker {command}: the current folder has been removed; change to another one\n"
                )
                return _NO_SUCH_USE
            raise
        sys.stderr.write(f"stoker {command}: {error.strerror}: {error.filename}\n")
        return _NO_SUCH_USE


def _joined(arguments: Sequence[str]) -> list[str]:
    """Write `--sort -NAME` as one word: argparse takes a value that begins with a dash for an option."""
    joined: list[str] = []
    for word in arguments:
        if joined and joined[-1] == "--sort" and joined[0] == "runs":
            joined[-1] = f"--sort={word}"
        else:
            joined.append(word)
    return joined


def _prepare_standard_streams() -> None:
    """Make standard input, output and error usable, however little of them the caller has given."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            # Else the next file or socket would get the number, and what is printed.
            os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, True)
    # Python has none for those that were closed.
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115  # for good
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115  # for good
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A path or a description may have letters that the locale has not.
            stream.reconfigure(errors="backslashreplace")


def _has_current_folder() -> bool:
    try:
        os.getcwd()  # noqa: PTH109  # the same
    except FileNotFoundError:
        return False
    return True


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stoker",
        description="Train models by scripts, and serve TensorFlow, ONNX and score.py models, batched, behind keys.",
    )
    parser.add_argument("--version", action="version", version=f"stoker {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    chosen = next((word for word in arguments if word in _COMMANDS), None)
    # A command that comes first is the one; to import the others' modules would take longer than many a command.
    for name in arguments[:1] if chosen is not None and arguments[0] == chosen else _COMMANDS:
        module = importlib.import_module(f"stoker.commands.{name}")
        command = commands.add_parser(name, help=module.SUMMARY, description=_sentence(module.SUMMARY))
        command.set_defaults(run=module.run)
        if chosen in (name, None):
            module.add_arguments(command)
    return parser


def _nearest(parser: argparse.ArgumentParser, words: Sequence[str]) -> str:
    """The option that one of the words is nearest to, among those of all commands that were declared."""
    known, parsers = set[str](), [parser]
    while parsers:
        for action in parsers.pop()._actions:  # noqa: SLF001  # argparse has no other way to them
            known.update(action.option_strings)
            if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
                parsers.extend(action.choices.values())
    options = (word.partition("=")[0] for word in words if word.startswith("--"))
    near = next((found[0] for option in options if (found := get_close_matches(option, known, 1))), None)
    return "" if near is None else f"; did you mean {near}?"


def _sentence(summary: str) -> str:
    return summary[0].upper() + summary[1:] + "."


if __name__ == "__main__":
    raise SystemExit(main())
