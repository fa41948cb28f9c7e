"""Commands and extensions of other distributions, found by their entry points (decision 46).

A distribution names a module for each thing that it adds:

- in the group `stoker.commands`, a subcommand of `stoker`: `add_arguments(parser)` and `run(args)`, and `SUMMARY` if
  `stoker.commands.names` has none;
- in the group `stoker.extensions`, a module that the server imports by name: `azure` (code and files made for Azure
  Machine Learning), `runs` (training runs, where models come from) and `bench` (load on a server, for
  `stoker profile`).

`importlib.metadata` takes tens of milliseconds to import, so only code that needs another distribution imports it.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any, Final

from stoker.errors import OperatorError
from stoker.system.extras import how_to_install

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

_OWN: Final = frozenset(
    (
        *("serve", "status", "reload", "stop", "models", "score", "offline"),
        *("keys", "token", "doctor", "profile", "completion"),
    )
)
"""The subcommands of this distribution, which need no entry points."""
_COMMANDS: Final = "stoker.commands"
_EXTENSIONS: Final = "stoker.extensions"


def command_names() -> frozenset[str]:
    """The subcommands that there are, of this distribution and of others that are installed."""
    return _OWN | _entries(_COMMANDS).names


def find_command(name: str) -> Any:
    """Import the module of a subcommand; None if there is none, or its distribution is not installed."""
    return importlib.import_module(f"stoker.commands.{name}") if name in _OWN else _load(_COMMANDS, name)


@functools.cache
def find_extension(name: str) -> Any:
    """Import the module that extends the server under a name; None if no installed distribution does."""
    return _load(_EXTENSIONS, name)


def require_extension(name: str, purpose: str = "this") -> Any:
    """Import the module that extends the server under a name.

    Args:
        purpose: What needs it, as the beginning of the message.

    Raises:
        OperatorError: It cannot be imported; the message says what to install.
    """
    try:
        found = find_extension(name)
    except ModuleNotFoundError as error:
        raise OperatorError(
            f"{purpose} needs {error.name}, which is not installed; {how_to_install(name)}"
        ) from None
    if found is None:
        raise OperatorError(f"{purpose} needs a package that is not installed; {how_to_install(name)}")
    return found


def _load(group: str, name: str) -> Any:
    return next((entry.load() for entry in _entries(group).select(name=name)), None)


# Each search reads the metadata of all installed distributions.
@functools.cache
def _entries(group: str) -> EntryPoints:
    from importlib.metadata import entry_points

    return entry_points(group=group)
