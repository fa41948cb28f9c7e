"""Reads the environment files of models and runs: conda's, pip's requirements files, and MLflow's `python_env.yaml`.

conda's match specifications (`numpy=1.19`, `conda-forge::scipy>=1.5,<2`) are translated to PEP 440 by the rules of
conda's documentation: `=1.19` is any 1.19, `==1.19` and `1.19` alone are exactly that, `=1.19=BUILD` is exactly that
in one build, `|` is or, `,` is and.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from stoker.environments.specification import (
    CNTK,
    TENSORFLOW_GPU,
    Entry,
    Place,
    Specification,
    not_applicable,
    on_pypi,
    stays_below,
    translate,
)
from stoker.errors import EnvironmentUnusable, InvalidSettings
from stoker.settings.files import SettingsLoader, read_yaml, settings_text
from stoker.settings.names import did_you_mean

_SPEC: Final = re.compile(
    r"(?:[^\s=<>!~\[]*::)?(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*)\s*(?P<rest>.*)", re.ASCII
)
_BRACKETS: Final = re.compile(r"\[(.*)\]$")
_VERSION_KEY: Final = re.compile(r"""version\s*=\s*(?:'([^']*)'|"([^"]*)"|([^,\]]*))""")
# A version, perhaps preceded by = or ==, and followed by a build.
_BUILD: Final = re.compile(r"(={0,2}\s*[^\s=<>!~,|]+)(?:\s*=\s*|\s+)([^\s=<>!~,|]+)")
_CLAUSE: Final = re.compile(r"(?P<operator>>=|<=|==|!=|~=|>|<|=|)\s*(?P<version>[^\s=<>!~]+)")


@dataclass(frozen=True, slots=True)
class CondaSpec:
    """A conda dependency.

    Attributes:
        note: What PEP 440 cannot express; empty if everything was translated.
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


# pip's requirements files, and the pip lists of conda files, which have the same lines.


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
            written: What stands in the file, if that is not `text`.
        """
        options = _OPTIONS_OF_A_LINE.search(text)
        bare = text[: options.start()] if options else text
        requirement = _requirement(bare, place)
        asked = Requirement(str(requirement))
        asked.name = canonicalize_name(asked.name)
        special = asked.name in (TENSORFLOW_GPU, *CNTK) or stays_below(asked.specifier, "2")
        for wanted, reason in translate(requirement):
            notes = "; ".join(filter(None, (note, reason)))
            line = f"{wanted} {options[1]}" if wanted and options and not reason else str(wanted or "")
            known = asked.name in CNTK or (wanted is not None and wanted.name == "tensorflow")
            original = asked if special and known else None
            self.entries.append(Entry(written or text, place, line, wanted, notes, original))

    def _editable(self, name: str, place: Place) -> Path:
        """A project that is used where it lies: only what decides its installation counts."""
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


# MLflow's `python_env.yaml`: a version of Python, and lines for pip, mostly `-r requirements.txt`.


PYTHON_ENV: Final = "python_env.yaml"
"""The name by which such a file is known."""
_PYTHON_ENV_SECTIONS: Final = ("python", "build_dependencies", "dependencies")


def read_python_env(path: Path) -> Specification:
    """Read such a file. What it builds packages with (`build_dependencies`) is passed over: wheels are installed."""
    path = path.absolute()
    try:
        content = read_yaml(path, "environment file", "python and dependencies")
    except InvalidSettings as error:
        raise EnvironmentUnusable(str(error)) from error
    unknown = [str(name) for name in content if name not in _PYTHON_ENV_SECTIONS]
    if unknown:
        raise EnvironmentUnusable(
            f"{path}: there is no section {unknown[0]!r}; known are: {', '.join(_PYTHON_ENV_SECTIONS)}"
        )
    lines = content.get("dependencies") or []
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise EnvironmentUnusable(f"{path}: dependencies must be a list of lines for pip")
    pip = PipLines()
    for number, line in enumerate(lines, 1):
        pip.add(line, Place(path, number))
    python = SpecifierSet()
    if content.get("python") is not None:
        try:
            # Of patch releases any will do, as in the files of conda.
            python = SpecifierSet(f"=={'.'.join(str(content['python']).split('.')[:2])}.*")
        except InvalidSpecifier:
            raise EnvironmentUnusable(
                f"{path}: python must be a version, got {content['python']!r}"
            ) from None
    return Specification(
        path, tuple(pip.entries), python, tuple(dict.fromkeys(pip.options)), tuple(pip.files)
    )


# Reads conda's environment files: `name`, `channels`, `dependencies`, which may contain a list for pip.


_SECTIONS: Final = ("name", "channels", "dependencies", "prefix", "variables", "platforms")
_VARIABLES_NOTE: Final = "variables of conda are not set: set them where stoker serve is started"


def read_conda_file(path: Path) -> Specification:
    """Read an environment file of conda.

    Channels are ignored: packages come from PyPI, or from the indexes in the options of the pip list.
    """
    path = path.absolute()
    reader = _CondaReader(path)
    for key, value in _sections(path):
        place = Place(path, key.start_mark.line + 1)
        match key.value:
            case "dependencies":
                reader.add_dependencies(value)
            case "variables":
                reader.pip.entries.append(Entry("variables", place, note=_VARIABLES_NOTE))
            case name if name not in _SECTIONS:
                hint = did_you_mean(name, _SECTIONS, f"known are: {', '.join(_SECTIONS)}")
                raise EnvironmentUnusable(f"{place}: a conda file has no section {name!r}; {hint}")
    pip = reader.pip
    return Specification(
        path, tuple(pip.entries), reader.python, tuple(dict.fromkeys(pip.options)), tuple(pip.files)
    )


def _sections(path: Path) -> list[tuple[yaml.Node, yaml.Node]]:
    try:
        root = yaml.compose(read_text(path), SettingsLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = error.problem or error.context or "it cannot be parsed"
        raise EnvironmentUnusable(
            f"{Place(path, mark.line + 1 if mark else 1)}: this is not YAML: {reason}"
        ) from error
    except yaml.YAMLError as error:
        raise EnvironmentUnusable(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(root, yaml.MappingNode):
        line = root.start_mark.line + 1 if root else 1
        raise EnvironmentUnusable(
            f"{Place(path, line)}: a conda file begins with sections such as dependencies:, this one does not"
        )
    if "dependencies" not in [key.value for key, _ in root.value]:
        near = [key for key, _ in root.value if difflib.get_close_matches(str(key.value), ["dependencies"])]
        line = near[0].start_mark.line + 1 if near else 1
        raise EnvironmentUnusable(f"{Place(path, line)}: the section dependencies: is missing")
    return list(root.value)


class _CondaReader:
    def __init__(self, path: Path) -> None:
        self.pip = PipLines()
        self.python = SpecifierSet()
        self._path = path

    def add_dependencies(self, node: yaml.Node) -> None:
        for item in self._items(node, "dependencies"):
            place = self._place(item)
            if isinstance(item, yaml.ScalarNode):
                self._add_conda(item.value, place)
            elif isinstance(item, yaml.MappingNode) and [key.value for key, _ in item.value] == ["pip"]:
                for line in self._items(item.value[0][1], "pip"):
                    if not isinstance(line, yaml.ScalarNode):
                        raise EnvironmentUnusable(
                            f"{self._place(line)}: an entry of the pip list must be one text, such as numpy>=2"
                        )
                    self.pip.add(line.value, self._place(line))
            else:
                raise EnvironmentUnusable(
                    f"{place}: a dependency must be one text, such as numpy=1.19, or a list under pip:"
                )

    def _items(self, node: yaml.Node, section: str) -> list[yaml.Node]:
        """The non-empty entries of a list, which may be missing."""
        if isinstance(node, yaml.ScalarNode) and not node.value:
            return []
        if not isinstance(node, yaml.SequenceNode):
            raise EnvironmentUnusable(
                f"{self._place(node)}: {section}: must be a list, each entry after a dash"
            )
        return [item for item in node.value if not isinstance(item, yaml.ScalarNode) or item.value]

    def _place(self, node: yaml.Node) -> Place:
        return Place(self._path, node.start_mark.line + 1)

    def _add_conda(self, text: str, place: Place) -> None:
        if "://" in text:
            self.pip.entries.append(
                Entry(text, place, note="a package file of conda, which pip cannot install")
            )
            return
        try:
            spec = parse_conda_spec(text)
        except ValueError as error:
            raise EnvironmentUnusable(f"{place}: {error}") from None
        if spec.name.lower() == "python":
            self.python = spec.specifier
            return
        reason = not_applicable(spec.name)
        if reason:
            self.pip.entries.append(Entry(text, place, note=reason))
            return
        name = on_pypi(spec.name)
        note = "" if name == spec.name else f"called {name} on PyPI"
        notes = "; ".join(filter(None, (note, spec.note)))
        self.pip.require(f"{name}{spec.specifier}", place, note=notes, written=text)


ENVIRONMENT_FILES: Final = (
    *("myenv.yml", "myenv.yaml", "conda.yaml", "conda.yml"),
    *("conda_dependencies.yml", "conda_dependencies.yaml", "environment.yml", "environment.yaml"),
    *(PYTHON_ENV, "requirements.txt"),
)
"""Names of environment files beside a model; the first existing one is used."""


def find_environment(folder: Path) -> Path | None:
    """The environment file of a folder, or None."""
    return next((path for path in (folder / name for name in ENVIRONMENT_FILES) if path.exists()), None)


def read_environment(path: Path) -> Specification:
    """Read an environment file: MLflow's by its name, conda's if it ends in `.yml` or `.yaml`, else pip's."""
    if not path.exists():
        raise EnvironmentUnusable(f"the environment file {path} does not exist")
    if path.name == PYTHON_ENV:
        return read_python_env(path)
    if path.suffix.lower() in (".yml", ".yaml"):
        return read_conda_file(path)
    return read_requirements(path)
