"""Environments as of a date: pins that conflict with today's packages are retried with the packages of their time."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import urllib.request
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

from stoker.environments.build import Say, digest_of
from stoker.environments.specification import Specification
from stoker.errors import EnvironmentUnusable
from stoker.system.durable import private_folder, replace_file
from stoker_runs.environments.interpreters import NoPython, PythonChoice
from stoker_runs.environments.requested import RequestedEnvironment

# Finds the time when pinned packages were uploaded, to resolve pins with the packages and Python of that time.
#
# `tensorflow==2.4.0` resolved today gets a version of protobuf that it cannot import. Resolved without later uploads,
# it gets a compatible one.


_AFTER_A_PIN: Final = timedelta(days=90)
"""An environment is assumed to date from this long after its newest pin: other packages may be that new."""
_INDEX_VARIABLES: Final = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")
_PYPI: Final = "https://pypi.org/simple"
_JSON: Final = "application/vnd.pypi.simple.v1+json"
_TIMEOUT_S: Final = 30.0
# The first releases of Python 3.6, 3.7 and so on.
_RELEASES: Final = (
    date(2016, 12, 23),
    date(2018, 6, 27),
    date(2019, 10, 14),
    *(date(year, 10, 5) for year in range(2020, 2040)),
)
_OLDEST: Final = 6
_SETTLED: Final = timedelta(days=365)


def date_of_pins(
    specification: Specification, uploaded: Callable[[str, SpecifierSet], date | None] | None = None
) -> date | None:
    """The date as of which an environment was probably built; None if no pin tells.

    Args:
        specification: The requirements; versions of Azure's own packages count too.
        uploaded: Returns the upload date of a pinned version of a package, of the newest for `==1.13.*`.
    """
    dates = [(uploaded or upload_date)(name, pin) for name, pin in _pins(specification)]
    known = [day for day in dates if day is not None]
    return max(known) + _AFTER_A_PIN if known else None


def _pins(specification: Specification) -> Iterator[tuple[str, SpecifierSet]]:
    for entry in specification.entries:
        for text in (entry.line, entry.text):
            try:
                asked = Requirement(text)
                (clause,) = asked.specifier
                # 2.* says too little: it would be dated today.
                if clause.operator == "==" and not re.fullmatch(r"[0-9]+\.\*", clause.version):
                    yield asked.name, asked.specifier
                    break
            except (InvalidRequirement, ValueError):
                continue


def python_of_date(day: date) -> int:
    """N of the Python 3.N for packages of a day: the newest that was at least a year old then."""
    old = [number for number, released in enumerate(_RELEASES, _OLDEST) if released + _SETTLED <= day]
    return max(old, default=_OLDEST)


def upload_date(name: str, pin: SpecifierSet) -> date | None:
    """The upload date of the first file of the newest pinned version; None if the index does not tell."""
    index = next((found for one in _INDEX_VARIABLES if (found := os.environ.get(one))), _PYPI)
    try:
        request = _request(f"{index.rstrip('/')}/{canonicalize_name(name)}/")
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310  # http alone
            files: list[dict[str, Any]] = json.load(answer)["files"]
        times = [
            (version, datetime.fromisoformat(file["upload-time"]))
            for file in files
            if "upload-time" in file and (version := _version_of(str(file["filename"]))) and version in pin
        ]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    newest = max((version for version, _ in times), default=None)
    return min(time for version, time in times if version == newest).date() if times else None


def _request(address: str) -> urllib.request.Request:
    """A request for JSON; credentials in the URL become a header, as in pip."""
    parts = urlsplit(address)
    user, at, host = parts.netloc.rpartition("@")
    request = urllib.request.Request(  # noqa: S310  # http alone
        urlunsplit(parts._replace(netloc=host)), headers={"Accept": _JSON}
    )
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"{parts.scheme} is no address of an index")
    if at:
        request.add_header("Authorization", "Basic " + base64.b64encode(unquote(user).encode()).decode())
    return request


def _version_of(filename: str) -> Version | None:
    try:
        if filename.endswith(".whl"):
            return parse_wheel_filename(filename)[1]
        return parse_sdist_filename(filename)[1]
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        return None


_BECAUSE = ", since the pins do not fit what is there today"
_Built = TypeVar("_Built")


@dataclass(frozen=True, slots=True)
class Candidate:
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


Candidates: TypeAlias = Generator[Candidate, EnvironmentUnusable | None, None]


def candidates(
    specification: Specification,
    asked: RequestedEnvironment,
    remembered: str,
    say: Say,
    *,
    can_date: Callable[[], bool],
    chooses_python: bool = True,
) -> Candidates:
    """Yield environments to try; the error of a failed build is sent in, and raised if nothing else can be tried.

    Args:
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
        error = yield Candidate(specification, asked.as_of)
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


def build_first(wanted: Candidates, build: Callable[[Candidate], _Built]) -> tuple[_Built, Candidate]:
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


def _dated(specification: Specification, as_of: str, *, chooses_python: bool) -> Candidate:
    choice = PythonChoice.of(specification)
    settled = (specification.python and choice.wanted) or specification.tensorflow_1 or specification.cntk
    if settled or not chooses_python:
        return Candidate(specification, as_of, _BECAUSE)
    minor = python_of_date(date.fromisoformat(as_of))
    asked = "none that runs can have" if specification.python else "none"
    because = f"{_BECAUSE}; Python 3.{minor} was the one of that time, and {asked} is asked for"
    return Candidate(replace(specification, python=SpecifierSet(f"==3.{minor}.*")), as_of, because)
