"""Environments as of a date: pins that conflict with today's packages are retried with the packages of their time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace
from packaging.specifiers import SpecifierSet

from stoker.environments.build import Say
from stoker.environments.build_folders import digest_of
from stoker.environments.specification import Specification
from stoker.environments.upload_dates import date_of_pins
from stoker.errors import EnvironmentUnusable
from stoker.system.durable import private_folder, replace_file
from stoker_runs.environments.interpreters import NoPython, PythonChoice
from stoker_runs.environments.requested import RequestedEnvironment

# The first releases of Python 3.6, 3.7 and so on.
_RELEASES: Final = (
    date(2016, 12, 23),
    date(2018, 6, 27),
    date(2019, 10, 14),
    *(date(year, 10, 5) for year in range(2020, 2040)),
)
_OLDEST: Final = 6
_SETTLED: Final = timedelta(days=365)


def python_of_date(day: date) -> int:
    """N of the Python 3.N for packages of a day: the newest that was at least a year old then."""
    old = [number for number, released in enumerate(_RELEASES, _OLDEST) if released + _SETTLED <= day]
    return max(old, default=_OLDEST)


_BECAUSE = ", since the pins do not fit what is there today"
_Built = TypeVar("_Built")


class Candidate(Struct, frozen=True):
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


def build_first(
    specification: Specification,
    requested: RequestedEnvironment,
    remembered: str,
    say: Say,
    build: Callable[[Candidate], _Built],
    *,
    can_date: Callable[[], bool],
) -> tuple[_Built, Candidate]:
    """Build an environment with the packages that were asked for, or once more with those of the date of its pins.

    Args:
        remembered: The date with which the same environment was built before; empty for none.
        say: Called with a line about the second try.
        can_date: Returns whether an installer that supports dates is available; called after a failure.

    Returns:
        What was built, and of what.

    Raises:
        EnvironmentUnusable: No environment can be built.
    """
    is_fixed = requested.kind == "relaxed" or requested.as_of
    wanted = Candidate(specification, requested.as_of)
    if remembered and not is_fixed:
        wanted = _dated(specification, remembered)
    try:
        return build(wanted), wanted
    except EnvironmentUnusable as error:
        hopeless = is_fixed or remembered or isinstance(error, NoPython)
        if hopeless or not can_date() or (day := date_of_pins(specification)) is None:
            raise
        as_of, first = day.isoformat(), error
    say(f"{str(first).splitlines()[0].rstrip(':')}; trying once more as of {as_of}")
    wanted = _dated(specification, as_of)
    try:
        return build(wanted), wanted
    except EnvironmentUnusable as again:
        raise EnvironmentUnusable(f"{first}\nand with packages as of {as_of}: {again}") from again


class RememberedDate:
    """The date with which conflicting pins could be resolved, stored for further runs with the same file.

    Args:
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

    def keep(self, wanted: Candidate) -> None:
        """Store the date of a successful build, if it was not requested."""
        if wanted.because:
            private_folder(self._file.parent)
            replace_file(self._file, wanted.as_of.encode())


def _dated(specification: Specification, as_of: str) -> Candidate:
    choice = PythonChoice.of(specification)
    if (specification.python and choice.wanted) or specification.tensorflow_1 or specification.cntk:
        return Candidate(specification, as_of, _BECAUSE)
    minor = python_of_date(date.fromisoformat(as_of))
    wish = "none that runs can have" if specification.python else "none"
    because = f"{_BECAUSE}; Python 3.{minor} was the one of that time, and {wish} is asked for"
    return Candidate(replace(specification, python=SpecifierSet(f"==3.{minor}.*")), as_of, because)
