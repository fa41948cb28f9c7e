"""Requirements files of pip, and pip lists of conda files, which have the same lines (decision 48)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from stoker.environments.conda_specs import conda_specifier
from stoker.environments.package_names import CNTK, TENSORFLOW_GPU, translate
from stoker.environments.specification import Entry, Place, Specification, stays_below
from stoker.errors import EnvironmentUnusable
from stoker.settings.files import settings_text
from stoker.settings.names import did_you_mean

_COMMENT: Final = re.compile(r"(^|\s)#.*$")
_SHORT: Final = {
    "-c": "--constraint",
    "-e": "--editable",
    "-f": "--find-links",
    "-i": "--index-url",
    "-r": "--requirement",
}
_WITH_VALUE: Final = (*_SHORT.values(), "--extra-index-url", "--no-binary", "--only-binary", "--trusted-host")
_SWITCHES: Final = ("--no-index", "--pre", "--prefer-binary", "--require-hashes")
_OPTIONS_OF_A_LINE: Final = re.compile(r"\s(--(?:hash|config-settings?|global-option|install-option)\b.*)")
_URL: Final = re.compile(r"((?:git|hg|svn|bzr)\+|https?://|file:)", re.IGNORECASE)
_GONE: Final = re.compile(r"https?://azureml[\w-]*\.blob\.core\.windows\.net/", re.IGNORECASE)
_GONE_NOTE: Final = (
    "left out: Azure has taken this file away, and Stoker provides what scripts import from its packages"
)
_LOCAL: Final = re.compile(r"[./~]|(?!.*\s@\s).*\.(whl|zip|tar\.gz|tgz|tar\.bz2)(\[.*\])?$")
_PROJECT_FILES: Final = ("pyproject.toml", "setup.cfg", "setup.py")
_EXTRAS: Final = re.compile(r"\[[^\]]*\]$")
_EGG: Final = re.compile(r"[#&]egg=([A-Za-z0-9._-]+)")
# tensorflow-gpu=1.12: conda's way to pin, which pip does not know.
_SINGLE_EQUALS: Final = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*\s*(?:\[[^\]]*\])?)\s*=(?!=)\s*(?P<version>[^\s=;,]+)\s*(?P<marker>;.*)?",
    re.ASCII,
)


def read_requirements(path: Path) -> Specification:
    """Read a requirements file of pip."""
    lines = PipLines()
    lines.read(path)
    return Specification(
        path, tuple(lines.entries), SpecifierSet(), tuple(dict.fromkeys(lines.options)), tuple(lines.files)
    )


def read_text(path: Path) -> str:
    """The text of an environment file."""
    try:
        return settings_text(path)
    except OSError as error:
        raise EnvironmentUnusable(f"the environment file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise EnvironmentUnusable(f"{Place(path, line)}: this is not UTF-8") from error


class PipLines:
    """The packages, options and files of lines for pip."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.options: list[str] = []
        self.files: list[Path] = []
        self._being_read: list[Path] = []

    def read(self, path: Path) -> None:
        """Add all lines of a requirements file."""
        path = path.absolute()
        self._being_read.append(path)
        for number, line in _logical_lines(read_text(path)):
            self.add(line, Place(path, number))
        self._being_read.pop()

    def add(self, line: str, place: Place) -> None:
        """Add one line: a requirement, an option, a comment or nothing."""
        text = _COMMENT.sub("", line).strip()
        if text.startswith("-"):
            self._add_option(text, place)
        elif text:
            self._add_package(text, place)

    def _add_option(self, text: str, place: Place) -> None:
        name, value = _split_option(text, place)
        folder = place.path.parent
        match name:
            case "--requirement":
                path = (folder / value).absolute()
                if path in self._being_read:
                    raise EnvironmentUnusable(f"{place}: {path} includes itself")
                self.read(_existing(path, place))
            case "--constraint":
                self.options.append(f"{name} {self._local(value, place)}")
            case "--editable":
                target = value if _URL.match(value) else self._editable(value, place)
                self.entries.append(Entry(text, place, f"--editable {target}", _named(value)))
            case "--find-links" if not _URL.match(value):
                self.options.append(f"{name} {_existing((folder / value).absolute(), place)}")
            case _:
                self.options.append(f"{name} {value}".strip())

    def _add_package(self, text: str, place: Place) -> None:
        if _GONE.match(text):
            self.entries.append(Entry(text, place, note=_GONE_NOTE))
        elif _URL.match(text):
            self.entries.append(Entry(text, place, text, _named(text)))
        elif _LOCAL.match(text):
            extras = _EXTRAS.search(text)
            path = self._local(_EXTRAS.sub("", text), place)
            self.entries.append(Entry(text, place, f"{path}{extras[0] if extras else ''}", _named(text)))
        else:
            self.require(text, place)

    def require(self, text: str, place: Place, *, note: str = "", written: str = "") -> None:
        """Add a requirement as PEP 508 has it; a single `=` is understood as conda understands it.

        Args:
            text: The requirement, perhaps with options of its line such as `--hash`.
            written: The text in the file, if that is not `text`.
        """
        options = _OPTIONS_OF_A_LINE.search(text)
        bare = text[: options.start()] if options else text
        requirement = _requirement(bare, place)
        parsed = Requirement(str(requirement))
        parsed.name = canonicalize_name(parsed.name)
        special = parsed.name in (TENSORFLOW_GPU, *CNTK) or stays_below(parsed.specifier, "2")
        for wanted, reason in translate(requirement):
            notes = "; ".join(filter(None, (note, reason)))
            line = f"{wanted} {options[1]}" if wanted and options and not reason else str(wanted or "")
            known = parsed.name in CNTK or (wanted is not None and wanted.name == "tensorflow")
            original = parsed if special and known else None
            self.entries.append(Entry(written or text, place, line, wanted, notes, original))

    def _editable(self, name: str, place: Place) -> Path:
        """A project that is used in its folder: only the files that decide its installation count."""
        path = _existing((place.path.parent / Path(name).expanduser()).absolute(), place)
        self.files += [path / name for name in _PROJECT_FILES if (path / name).is_file()]
        return path

    def _local(self, name: str, place: Place) -> Path:
        path = (place.path.parent / Path(name).expanduser()).absolute()
        self.files.append(_existing(path, place))
        return path


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers; those that end in a backslash are joined with the next."""
    begun, parts = 0, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        begun = begun if parts else number
        if line.endswith("\\") and not line.lstrip().startswith("#"):
            parts.append(line[:-1])
            continue
        yield begun, "".join([*parts, line])
        parts = []
    if parts:
        yield begun, "".join(parts)


def _split_option(text: str, place: Place) -> tuple[str, str]:
    found = re.fullmatch(r"(-[A-Za-z]|--[A-Za-z-]+)(?:\s*=\s*|\s*)(.*)", text)
    name = _SHORT.get(found[1], found[1]) if found else text
    value = found[2].strip() if found else ""
    if name not in (*_WITH_VALUE, *_SWITCHES):
        hint = did_you_mean(name, [*_WITH_VALUE, *_SWITCHES], "")
        raise EnvironmentUnusable(
            f"{place}: {name} is no option of a requirements file{hint and f'; {hint}'}"
        )
    if (name in _WITH_VALUE) != bool(value):
        raise EnvironmentUnusable(
            f"{place}: {name} {'needs a value' if name in _WITH_VALUE else 'takes no value'}"
        )
    return name, value


def _existing(path: Path, place: Place) -> Path:
    if not path.exists():
        raise EnvironmentUnusable(f"{place}: {path} does not exist")
    return path


def _named(reference: str) -> Requirement | None:
    """The package that a URL or a path is, if it tells its name."""
    egg = _EGG.search(reference)
    if egg is not None:
        return Requirement(canonicalize_name(egg[1]))
    file = _EXTRAS.sub("", reference.partition("#")[0].rpartition("/")[2])
    try:
        name, version, *_ = parse_wheel_filename(file)
    except InvalidWheelFilename:
        return None
    return Requirement(f"{name}=={version}")


def _requirement(text: str, place: Place) -> Requirement:
    single = _SINGLE_EQUALS.fullmatch(text.strip())
    try:
        if single is not None:
            specifier = conda_specifier(f"={single['version']}")
            return Requirement(f"{single['name']}{specifier} {single['marker'] or ''}")
        return Requirement(text)
    except (InvalidRequirement, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise EnvironmentUnusable(f"{place}: {text.strip()!r} is no requirement: {reason}") from None
