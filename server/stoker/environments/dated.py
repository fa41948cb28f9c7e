"""Environments as of a date: pins that do not fit what there is today are tried again with what there was then."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import TypeAlias, TypeVar

from packaging.specifiers import SpecifierSet

from stoker.environments.asked import AskedEnvironment
from stoker.environments.build import Say
from stoker.environments.dating import date_of_pins, python_of_date
from stoker.environments.kept import digest_of
from stoker.environments.specification import Specification
from stoker.errors import EnvironmentUnusable
from stoker.system.durable import private_folder, replace_file

__all__ = ["RememberedDate", "Tries", "Wanted", "first_built", "tries"]

_BECAUSE = ", since the pins do not fit what is there today"
_Built = TypeVar("_Built")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be built.

    Attributes:
        specification: The packages, and the Python.
        as_of: The date after which nothing may have been uploaded; empty for none.
        because: Why there is a date that nobody asked for; empty where there is none.
    """

    specification: Specification
    as_of: str = ""
    because: str = ""

    @property
    def differences(self) -> list[str]:
        """What is to be said of it."""
        words = f"packages as of {self.as_of}: later uploads were left out{self.because}"
        return [words] if self.as_of else []


Tries: TypeAlias = Generator[Wanted, EnvironmentUnusable | None, None]


def tries(
    specification: Specification,
    asked: AskedEnvironment,
    remembered: str,
    say: Say,
    *,
    can_date: Callable[[], bool],
    chooses_python: bool = True,
) -> Tries:
    """Yield what is to be built; the error of what cannot be is sent in, and raised where nothing else can be tried.

    Args:
        specification: What is asked for.
        asked: How exactly, and as of which date.
        remembered: The date as of which the same was built before; empty for none.
        say: Is told in a line what is tried.
        can_date: Says whether there is an installer that knows dates, once one try has failed.
        chooses_python: Whether the Python may be one of the date where none is asked for.

    Raises:
        EnvironmentUnusable: None of it can be built.
    """
    as_asked = asked.kind == "relaxed" or asked.as_of
    if remembered and not as_asked:
        error = yield _dated(specification, remembered, chooses_python=chooses_python)
    else:
        error = yield Wanted(specification, asked.as_of)
    if error is None:
        return
    if as_asked or remembered or not can_date() or (day := date_of_pins(specification)) is None:
        raise error
    as_of = day.isoformat()
    say(f"{str(error).splitlines()[0].rstrip(':')}; trying once more as of {as_of}")
    again = yield _dated(specification, as_of, chooses_python=chooses_python)
    if again is not None:
        raise EnvironmentUnusable(f"{error}\nand with packages as of {as_of}: {again}") from again


def first_built(wanted: Tries, build: Callable[[Wanted], _Built]) -> tuple[_Built, Wanted]:
    """Build what is wanted, one after the other, until one is built; returns also which one that is.

    Raises:
        EnvironmentUnusable: None of it can be built.
    """
    one = next(wanted)
    while True:
        try:
            return build(one), one
        except EnvironmentUnusable as error:
            one = wanted.send(error)


class RememberedDate:
    """The date as of which pins fit together that do not fit today, kept for the next run of the same file.

    Args:
        environments_dir: Where environments are kept.
        specification: What is asked for, whatever Python it gets.
        place: What else decides whether it fits, such as the image.
    """

    def __init__(self, environments_dir: Path, specification: Specification, *place: str) -> None:
        content = [specification.lines, specification.options, str(specification.python)]
        content += [[digest_of(path) for path in specification.files], *place]
        key = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:20]
        self._file = environments_dir / f".{key}.as-of"

    def read(self) -> str:
        """The date; empty for none."""
        return self._file.read_text(encoding="ascii") if self._file.is_file() else ""

    def keep(self, wanted: Wanted) -> None:
        """Remember the date of what was built, if it is one that nobody asked for."""
        if wanted.because:
            private_folder(self._file.parent)
            replace_file(self._file, wanted.as_of.encode())


def _dated(specification: Specification, as_of: str, *, chooses_python: bool) -> Wanted:
    if specification.python or not chooses_python:
        return Wanted(specification, as_of, _BECAUSE)
    minor = python_of_date(date.fromisoformat(as_of))
    because = f"{_BECAUSE}; Python 3.{minor} was the one of that time, and none is asked for"
    return Wanted(replace(specification, python=SpecifierSet(f"==3.{minor}.*")), as_of, because)
