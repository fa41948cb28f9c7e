"""The `stoker` command."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Final

from stoker import __version__
from stoker.errors import StokerError

__all__ = ["main"]

_COMMANDS: Final = (
    "quickstart",
    "serve",
    "train",
    "models",
    "keys",
    "token",
    "score",
    "data",
    "doctor",
    "devices",
    "bench",
)
_INTERRUPTED: Final = 130
_NO_SUCH_USE: Final = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code.

    Errors that the operator can mend are printed without a traceback.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    command = ""
    try:
        args = _parser(arguments).parse_args(arguments)
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
            raise
        sys.stderr.write(f"stoker {command}: {error.strerror}: {error.filename}\n")
        return _NO_SUCH_USE


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stoker",
        description="Serve TensorFlow, ONNX and score.py models from GPUs, batched, behind bearer keys.",
    )
    parser.add_argument("--version", action="version", version=f"stoker {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    chosen = next((word for word in arguments if word in _COMMANDS), None)
    for name in _COMMANDS:
        module = importlib.import_module(f"stoker.commands.{name}")
        command = commands.add_parser(name, help=module.SUMMARY, description=_sentence(module.SUMMARY))
        command.set_defaults(run=module.run)
        if chosen in (name, None):
            module.add_arguments(command)
    return parser


def _sentence(summary: str) -> str:
    return summary[0].upper() + summary[1:] + "."


if __name__ == "__main__":
    raise SystemExit(main())
