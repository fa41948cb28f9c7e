"""How much an operator can set: settings, commands and their options."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from stoker.commands.command_line import full_parser
from stoker.settings.model import ModelSettings
from stoker.settings.readers import settings_of
from stoker.settings.server import ServerSettings


def count_settings() -> tuple[int, int]:
    """Return how many settings a server and a model have."""
    return len(settings_of(ServerSettings)), len(settings_of(ModelSettings))


def count_commands() -> tuple[int, int]:
    """Return how many commands `stoker` has, those of commands included, and how many options all of them have."""
    commands = list(_commands(full_parser()))
    return len(commands), sum(map(_count_options, commands))


def _commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    for action in parser._actions:  # argparse has no other way to them
        if isinstance(action, argparse._SubParsersAction):  # the same
            for command in dict.fromkeys(action.choices.values()):
                yield command
                yield from _commands(command)


def _count_options(parser: argparse.ArgumentParser) -> int:
    return sum(
        bool(action.option_strings) and not isinstance(action, argparse._HelpAction)  # the same
        for action in parser._actions  # the same
    )
