"""Environments as of a date: pins that conflict with today's packages are retried with the packages of their time."""

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
from stoker.environments.run_interpreters import NoPython, PythonChoice
from stoker.environments.specification import Specification
from stoker.errors import EnvironmentUnusable
from stoker.system.durable import private_folder, replace_file

__all__ = ["RememberedDate", "Tries", "Wanted", "first_built", "tries"]

_BECAUSE = ", since the pins do not fit what is there today"
_Built = TypeVar("_Built")


@dataclass(frozen=True, slots=True)
class Wanted:
    """An environment to build.

    Attributes:
        specification: The packages and the Python.
        as_of: Packages uploaded after this date are ignored; empty for no limit.
        because: Why there is a date that was not requested; empty otherwise.
    """

    specification: Specification
    as_of: str = ""
    because: str = ""

    @property
    def differences(self) -> list[str]:
        """Its differences from the request, one sentence each."""
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
    """Yield environments to try; the error of a failed build is sent in, and raised if nothing else can be tried.

    Args:
        specification: The requirements.
        asked: The requested kind and date.
        remembered: The date with which the same environment was built before; empty for none.
        say: Called with a line about each further try.
        can_date: Returns whether an installer that supports dates is available; called after a failure.
        chooses_python: Whether the Python of the date may be used if none is requested.

    Raises:
        EnvironmentUnusable: No environment can be built.
    """
    as_asked = asked.kind == "relaxed" or asked.as_of
    if remembered and not as_asked:
        error = yield _dated(specification, remembered, chooses_python=chooses_python)
    else:
        error = yield Wanted(specification, asked.as_of)
    if error is None:
        return
    hopeless = as_asked or remembered or isinstance(error, NoPython)
    if hopeless or not can_date() or (day := date_of_pins(specification)) is None:
        raise error
    as_of = day.isoformat()
    say(f"{str(error).splitlines()[0].rstrip(':')}; trying once more as of {as_of}")
    again = yield _dated(specification, as_of, chooses_python=chooses_python)
    if again is not None:
        raise EnvironmentUnusable(f"{error}\nand with packages as of {as_of}: {again}") from again


def first_built(wanted: Tries, build: Callable[[Wanted], _Built]) -> tuple[_Built, Wanted]:
    """Build the first environment that can be built; returns it together with what was built.

    Raises:
        EnvironmentUnusable: No environment can be built.
    """
    one = next(wanted)
    while True:
        try:
            return build(one), one
        except EnvironmentUnusable as error:
            one = wanted.send(error)


class RememberedDate:
    """The date with which conflicting pins could be resolved, stored for further runs with the same file.

    Args:
        environments_dir: The folder of environments.
        specification: The requirements, for any Python.
        place: What else the resolution depends on, such as the image.
    """

    def __init__(self, environments_dir: Path, specification: Specification, *place: str) -> None:
        content = [specification.lines, specification.options, str(specification.python)]
        content += [[digest_of(path) for path in specification.files], *place]
        key = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:20]
        self._file = environments_dir / f".{key}.as-of"

    def read(self) -> str:
        """Return the date; empty for none."""
        return self._file.read_text(encoding="ascii") if self._file.is_file() else ""

    def keep(self, wanted: Wanted) -> None:
        """Store the date of a successful build, if it was not requested."""
        if wanted.because:
            private_folder(self._file.parent)
            replace_file(self._file, wanted.as_of.encode())


def _dated(specification: Specification, as_of: str, *, chooses_python: bool) -> Wanted:
    choice = PythonChoice.of(specification)
    settled = (specification.python and choice.wanted) or specification.tensorflow_1 or specification.cntk
    if settled or not chooses_python:
        return Wanted(specification, as_of, _BECAUSE)
    minor = python_of_date(date.fromisoformat(as_of))
    asked = "none that runs can have" if specification.python else "none"
    because = f"{_BECAUSE}; Python 3.{minor} was the one of that time, and {asked} is asked for"
    return Wanted(replace(specification, python=SpecifierSet(f"==3.{minor}.*")), as_of, because)
