"""Names of Azure's SDK that Stoker does not offer: each raises an error that says what to do instead.

Methods raise `NotOffered` when they are called, values when they are read, so that code finds every name that it may
have been written for. `unoffered.yaml` has the names: those of classes, which take theirs by `with_unoffered_names`,
and those of modules: classes that raise when they are used (`NotAClass`).
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Final, NoReturn, TypeVar

import yaml

from stoker_azure.exceptions import NotOffered
from stoker_azure.sdk.base import Printable


def _raising(name: str, instead: str) -> Callable[..., NoReturn]:
    def raising(*_arguments: Any, **_keywords: Any) -> NoReturn:
        raise NotOffered(f"{name} is not offered: {instead}")

    return raising


def explain_missing_names(module: ModuleType) -> None:
    """Give a module that is imported under Azure's names the classes of the table, which raise when they are used."""
    table = CLASSES.get(module.__name__.rpartition(".")[2])
    if table is None or hasattr(module, "OFFERS_THE_REST"):
        return
    own: Callable[[str], Any] | None = vars(module).get("__getattr__")

    def find(name: str) -> Any:
        instead = table.get(name)
        if instead is not None:
            found = NotAClass(name, (), {"INSTEAD": instead, "__module__": module.__name__})
            setattr(module, name, found)
            return found
        if own is not None:
            return own(name)
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

    vars(module).update(__getattr__=find, OFFERS_THE_REST=True)


class UnofferedMethod:
    """A method that raises `NotOffered`, of objects or of the class.

    Args:
        instead: Why the method is missing and what to do, the end of a sentence.
    """

    def __init__(self, instead: str, name: str) -> None:
        self._instead = instead
        self._name = name

    def __get__(self, instance: object, owner: type) -> Callable[..., NoReturn]:
        return _raising(f"{owner.__name__}.{self._name}", self._instead)


class UnofferedValue(UnofferedMethod):
    """A value that raises `NotOffered` when it is read. It may be set."""

    def __get__(self, instance: object, owner: type) -> Any:
        found = super().__get__(instance, owner)
        return self if instance is None else found()


class NotAClass(type):
    """The type of a class without objects: making one and calling its methods raise `NotOffered`.

    The class says in `INSTEAD` what to do.
    """

    INSTEAD: str

    def __call__(cls, *arguments: Any, **keywords: Any) -> Any:
        """Raise `NotOffered`."""
        return _raising(cls.__name__, cls.INSTEAD)(*arguments, **keywords)

    def __getattr__(cls, name: str) -> Any:
        """Return a method that raises `NotOffered`."""
        if name.startswith("_"):
            raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}")
        return _raising(f"{cls.__name__}.{name}", cls.INSTEAD)


class KnownAttributes(Printable):
    """Refuses to set attributes that Azure's class does not have, as Azure does: they are misspelt.

    A class has in `WITHOUT_EFFECT` the attributes of Azure's that may be set and change nothing here. Its constructor
    ends with `self._is_complete = True`.
    """

    WITHOUT_EFFECT: ClassVar[frozenset[str]] = frozenset()
    _is_complete = False

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute.

        Raises:
            AttributeError: There is none of this name; the message has the nearest one.
        """
        if self._is_complete and not name.startswith("_"):
            known = {one for one in dir(self) if not one.startswith("_")} | self.WITHOUT_EFFECT
            if name not in known:
                near = get_close_matches(name, known, 1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{hint}")
        super().__setattr__(name, value)


def _read_names() -> dict[str, dict[str, dict[str, str]]]:
    """Return what to do instead, by name, below the name's class or module."""
    text = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    # Entry scripts wait for this; the loader in C takes a millisecond, the other one twenty.
    content = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe
    return {
        kind: {
            owner: {name: instead for names, instead in entries.items() for name in names.split()}
            for owner, entries in owners.items()
        }
        for kind, owners in content.items()
    }


_NAMES: Final = _read_names()
CLASSES: Final = _NAMES["classes"]
"""Classes and functions that raise when they are used, by module."""

_Class = TypeVar("_Class", bound=type)


def with_unoffered_names(owner: _Class) -> _Class:
    """Give a class the names of the table that Azure's class of this name has and this one does not."""
    for name, instead in _NAMES["members"][owner.__name__].items():
        kind = UnofferedMethod if name.endswith("()") else UnofferedValue
        setattr(owner, name.removesuffix("()"), kind(instead, name.removesuffix("()")))
    return owner
