"""`stoker completion`: completes commands, actions and options in a shell."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

_SHELLS: Final = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the shell."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        "For bash:  source <(stoker completion bash)          in ~/.bashrc\n"
        'For zsh:   eval "$(stoker completion zsh)"           in ~/.zshrc, after compinit\n'
        "For fish:  stoker completion fish | source           in ~/.config/fish/config.fish"
    )
    parser.add_argument("shell", choices=_SHELLS, help="the shell")


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    import shtab

    from stoker.commands.command_line import full_parser

    parser = full_parser()
    _complete_paths(parser, shtab.FILE)
    sys.stdout.write(shtab.complete(parser, args.shell) + "\n")
    return 0


def _complete_paths(parser: argparse.ArgumentParser, files: object) -> None:
    """Have the arguments that are paths completed by names of files."""
    for action in parser._actions:  # noqa: SLF001  # argparse has no other way to them
        if action.type is Path:
            action.complete = files  # type: ignore[attr-defined]  # which shtab reads
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001  # the same
            for command in dict.fromkeys(action.choices.values()):
                _complete_paths(command, files)
