"""The options of argparse's parsers, read from their private attributes."""

import argparse
from collections.abc import Iterator


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    """All option strings that a parser takes."""
    return {option for action in parser._actions for option in action.option_strings}


def commands_of(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str | None, argparse.ArgumentParser]]:
    """The name of each command of a parser, its help in their list, and its own parser."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {listed.dest: listed.help for listed in action._choices_actions}
            for name, command in action.choices.items():
                yield name, helps.get(name), command
