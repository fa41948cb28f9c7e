"""Match specifications of conda (`numpy=1.19`, `conda-forge::scipy>=1.5,<2`), translated to PEP 440.

The rules are those of conda's documentation: `=1.19` is any 1.19, `==1.19` and `1.19` alone are exactly that,
`=1.19=BUILD` is exactly that in one build, `|` is or, `,` is and.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

_SPEC: Final = re.compile(
    r"(?:[^\s=<>!~\[]*::)?(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*)\s*(?P<rest>.*)", re.ASCII
)
_BRACKETS: Final = re.compile(r"\[(.*)\]$")
_VERSION_KEY: Final = re.compile(r"""version\s*=\s*(?:'([^']*)'|"([^"]*)"|([^,\]]*))""")
# A version, perhaps preceded by = or ==, and followed by a build.
_BUILD: Final = re.compile(r"(={0,2}\s*[^\s=<>!~,|]+)(?:\s*=\s*|\s+)([^\s=<>!~,|]+)")
_CLAUSE: Final = re.compile(r"(?P<operator>>=|<=|==|!=|~=|>|<|=|)\s*(?P<version>[^\s=<>!~]+)")


class CondaSpec(Struct, frozen=True):
    """A conda dependency.

    Attributes:
        note: The part that PEP 440 cannot express; empty if all was translated.
    """

    name: str
    specifier: SpecifierSet
    note: str = ""


def parse_conda_spec(text: str) -> CondaSpec:
    """Parse one conda dependency.

    Raises:
        ValueError: The text is no conda dependency; the message says why.
    """
    found = _SPEC.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a conda dependency, which begins with a name: numpy=1.19")
    name, rest = found["name"], found["rest"]
    brackets = _BRACKETS.search(rest)
    if brackets is not None:
        version = _VERSION_KEY.search(brackets[1])
        given = next((value for value in version.groups() if value is not None), "") if version else ""
        rest = given if version else rest[: brackets.start()]
    build = _BUILD.fullmatch(rest.strip())
    if build is not None:
        # A build implies an exact version; builds themselves have no meaning outside conda.
        rest = "==" + build[1].lstrip("= ")
    note = ""
    *others, chosen = rest.split("|")
    if others:
        note = f"of several ranges with | between them, the last one is taken: {chosen.strip()}"
    try:
        return CondaSpec(name, conda_specifier(chosen), note)
    except (InvalidSpecifier, InvalidVersion):
        return CondaSpec(name, SpecifierSet(), f"{rest.strip()!r} is no version on PyPI: any is taken")
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from None


def conda_specifier(text: str) -> SpecifierSet:
    """Translate conda's comma-separated version clauses to a specifier of PEP 440.

    Raises:
        InvalidSpecifier, InvalidVersion: A version is not valid in PEP 440.
        ValueError: A clause is malformed.
    """
    clauses = []
    for clause in filter(None, (part.strip() for part in text.split(","))):
        found = _CLAUSE.fullmatch(clause)
        if found is None:
            raise ValueError(f"{clause!r} is not a version as conda writes it, such as 1.19, =1.19 or >=1.19")
        operator, version = found["operator"], found["version"]
        if version == "*":
            continue
        stem = version.rstrip("*").rstrip(".")
        starred = stem != version
        if operator == "=" or (starred and operator in ("", "==")):
            clauses.append(f"=={stem}{'' if _is_odd(stem) else '.*'}")
        elif operator == "!=" and starred:
            clauses.append(f"!={stem}.*")
        else:
            clauses.append(f"{operator or '=='}{stem}")
    return SpecifierSet(",".join(clauses))


def _is_odd(version: str) -> bool:
    """Whether PEP 440 does not allow `.*` after it: pre-releases, local versions."""
    parsed = Version(version)
    return parsed.is_prerelease or parsed.local is not None
