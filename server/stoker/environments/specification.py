"""The requirements of an environment file, in the words of pip; and the names that packages of conda have on PyPI."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

_HOST: Final = re.compile(r"[a-z][a-z0-9+.-]*://([^/?#]+)", re.IGNORECASE)
_SOURCES: Final = ("--index-url", "--extra-index-url", "--find-links", "--trusted-host")
_UPPER_BOUNDS = {"==", "===", "~=", "<", "<="}


class Place(Struct, frozen=True):
    """A line of a file, counted from 1."""

    path: Path
    line: int

    def __str__(self) -> str:
        return f"{self.path}, line {self.line}"

    @property
    def short(self) -> str:
        """The same without the folder."""
        return f"{self.path.name}, line {self.line}"


class Entry(Struct, frozen=True):
    """One entry of an environment file.

    Attributes:
        line: The line of a requirements file that an installer gets for it; empty where nothing is installed.
        requirement: The same, parsed; None too where it is a URL or a path that does not tell the name.
        note: Why it is not taken literally, or left out; empty where it is taken literally.
        original: The requirement of the file, if `requirement` has another version or build for GPUs; else None.
    """

    text: str
    place: Place
    line: str = ""
    requirement: Requirement | None = None
    note: str = ""
    original: Requirement | None = None

    @property
    def applies(self) -> bool:
        """Whether it asks this interpreter, on this machine, for a package with a known name."""
        if self.requirement is None:
            return False
        return self.requirement.marker is None or self.requirement.marker.evaluate()


class Specification(Struct, frozen=True):
    """An environment file that has been read.

    Attributes:
        python: Versions of Python that it allows; empty allows all.
        options: Options for the installer, as pip's requirements files have them, each `--name` or `--name value`.
        files: Files and folders of this machine that it refers to: constraints, wheels, projects.
    """

    path: Path
    entries: tuple[Entry, ...]
    python: SpecifierSet
    options: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()

    @property
    def lines(self) -> list[str]:
        """Lines of the requirements file that installs it, each once, in alphabetical order."""
        return sorted({entry.line for entry in self.entries if entry.line})

    def runs_code(self) -> list[str]:
        """The code that its installation runs and trusts beyond the usual index, in words; empty for wheels.

        Of addresses only the hosts are named: the rest may hold passwords.
        """
        found = []
        for entry in self.entries:
            target = entry.line.removeprefix("--editable ")
            host = _host_of(target)
            is_local = host is None and target.startswith(("/", "file:"))
            if (host is not None or is_local) and not target.partition("#")[0].endswith(".whl"):
                where = entry.text if host is None else f"a project of {host}"
                found.append(f"{where} ({entry.place.short}) is built by its own setup.py or pyproject.toml")
        for option in self.options:
            name, _, value = option.partition(" ")
            # A folder of wheels on this machine is the operator's own.
            source = value if name == "--trusted-host" else _host_of(value)
            if name in _SOURCES and source is not None:
                found.append(f"packages come from {source} ({name})")
            elif name == "--no-binary":
                found.append(f"{value} is built by its own setup.py or pyproject.toml ({name})")
        return found

    @property
    def python_text(self) -> str:
        """`python` as people write it: `3.6.2`, `>=3.8`."""
        text = str(self.python)
        exact = len(self.python) == 1 and text.startswith("==")
        return text[2:].removesuffix(".*") if exact else text

    @property
    def tensorflow_1(self) -> Requirement | None:
        """The requirement of TensorFlow 1, if the file has one."""
        names = ("tensorflow", "tensorflow-gpu", "tensorflow-cpu")
        found = (one for one in self._named(*names) if stays_below(one.specifier, "2"))
        return next(found, None)

    @property
    def cntk(self) -> Requirement | None:
        """The requirement of CNTK, if the file has one."""
        return next(self._named("cntk", "cntk-gpu"), None)

    def _named(self, *names: str) -> Iterator[Requirement]:
        requirements = (entry.requirement for entry in self.entries)
        return (one for one in requirements if one is not None and one.name in names)


def _host_of(address: str) -> str | None:
    """Return the host of a URL, without user and password; None for other texts and URLs without a host."""
    found = _HOST.search(address)
    return found[1].rpartition("@")[2] if found else None


def stays_below(specifier: SpecifierSet, bound: str) -> bool:
    """Whether a specifier allows only versions below `bound`: below `2` stay `==1.12.*` and `~=1.4`, not `>=1`."""
    limit = Version(bound)
    for clause in specifier:
        if clause.operator not in _UPPER_BOUNDS:
            continue
        try:
            version = Version(clause.version.removesuffix(".*"))
        except InvalidVersion:  # the operator of arbitrary equality takes any text
            continue
        if version < limit or (clause.operator == "<" and version == limit):
            return True
    return False


def named_packages(specification: Specification) -> set[str]:
    """Return the normalised names of the required packages."""
    return {entry.requirement.name for entry in specification.entries if entry.requirement is not None}
