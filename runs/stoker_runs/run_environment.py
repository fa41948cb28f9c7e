"""The environment of a run: what was asked for, what it has got, and the interpreter that runs its script.

RUN/environment/asked.yml   the file that was asked for, as it was (asked.txt for one of pip)
RUN/environment/got.txt     what there is, frozen, after lines that say where that differs from what was asked for
RUN/environment/build.log   what the installer said

Environments are kept in the workspace beside those of models, by a digest of everything that decides their content.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet

from stoker.environments.build import Say
from stoker.environments.build_folders import MANIFEST, build_lock, digest_of, packages_in, remove_unfinished
from stoker.environments.check import notes
from stoker.environments.files import read_environment
from stoker.environments.installers import Installer, python_of
from stoker.environments.interpreters import Interpreter
from stoker.environments.package_names import TENSORFLOW_1, TENSORFLOW_GPU
from stoker.environments.specification import Entry, Specification, stays_below
from stoker.environments.trial import check_imports
from stoker.errors import EnvironmentUnusable
from stoker.system.durable import private_folder, replace_file
from stoker.system.wording import format_count
from stoker_runs.environments.dated import Candidate, RememberedDate, build_first, candidates
from stoker_runs.environments.interpreters import choose_run_interpreter
from stoker_runs.environments.requested import RequestedEnvironment, RunEnvironment, record_packages

_SHOWN_LINES: Final = 30
_KERAS_2: Final = {"TF_USE_LEGACY_KERAS": "1"}
"""Packages that older scripts need beside Keras 2."""
_LEGACY_KERAS: Final = "tf-keras"
"""The package that is Keras 2 beside a TensorFlow of Keras 3."""
_TENSORFLOW_1_API: Final = {"STOKER_TENSORFLOW_1": "1"}
"""Has the agent's face give scripts `tensorflow.compat.v1` as `tensorflow`."""
_FIRST_WITH_CUDA: Final = "2.14"
"""The first TensorFlow whose packages can bring CUDA, by the extra `and-cuda`."""
_FIRST_WITH_KERAS_3: Final = "2.16"


@dataclass(frozen=True, slots=True)
class RequestedPackages:
    """The packages that a run asks for.

    Attributes:
        lines: What explains these, a line each.
    """

    specification: Specification
    variables: Mapping[str, str] = field(default_factory=dict)
    lines: Sequence[str] = ()

    @classmethod
    def read(cls, requested: RequestedEnvironment, folder: Path, gpus: int) -> RequestedPackages:
        """Read the file of `environment/` of a run."""
        written = read_environment(folder / requested.file)
        if requested.kind != "relaxed":
            return cls(as_written(written, gpus))
        return cls(relaxed(written, gpus), *relaxed_variables(written))


def prepare_environment(
    requested: RequestedEnvironment, folder: Path, environments_dir: Path, say: Say, gpus: int = 0
) -> RunEnvironment:
    """Build or find the environment of a run, and record its packages.

    Args:
        folder: `environment/` of the run.
    """

    def build(one: Candidate) -> tuple[Path, Mapping[str, str], Interpreter, list[str]]:
        python, note = choose_run_interpreter(one.specification)
        differences = [*([note] if note else []), *notes(one.specification), *one.differences]
        for line in differences:
            say(line)
        try:
            venv, packages = _find_or_build(one, python, folder, environments_dir, say)
        except EnvironmentUnusable as error:
            raise EnvironmentUnusable(f"{error}\n({note})" if note else str(error)) from error
        return venv, packages, python, differences

    wanted = RequestedPackages.read(requested, folder, gpus)
    remembered = RememberedDate(environments_dir, wanted.specification)
    found = candidates(
        wanted.specification,
        requested,
        remembered.read(),
        say,
        can_date=lambda: Installer.find().uv is not None,
    )
    (venv, packages, python, differences), chosen = build_first(found, build)
    remembered.keep(chosen)
    for line in wanted.lines:
        say(line)
    record_packages(folder, [*differences, *wanted.lines], f"Python {python}", packages)
    variables = dict(wanted.variables)
    if _LEGACY_KERAS not in packages and os.environ.keys() & _KERAS_2.keys():
        # The submitting process may use Keras 2; the script gets the Keras that its file names.
        variables |= dict.fromkeys(_KERAS_2, "0")
    return RunEnvironment(python_of(venv), variables, packages)


def as_written(specification: Specification, gpus: int = 0) -> Specification:
    """Return the packages of a run that uses its file exactly, including TensorFlow 1.

    Args:
        specification: The file, as it is read for models, which TensorFlow 2 serves in any case.
        gpus: How many GPUs the run holds: with any, `tensorflow-gpu` brings CUDA.
    """
    return replace(specification, entries=tuple(_as_written(entry, gpus) for entry in specification.entries))


def _as_written(entry: Entry, gpus: int) -> Entry:
    original = entry.original
    if original is None:
        return entry
    if entry.requirement is None:
        name = "cntk-gpu" if gpus and original.name == "cntk-gpu" else "cntk"
        wanted = Requirement(str(original))
        wanted.name = name
        return replace(entry, requirement=wanted, line=str(wanted), note="")
    wanted, note = Requirement(str(entry.requirement)), entry.note
    if stays_below(original.specifier, "2"):
        wanted, note = Requirement(str(original)), ""
        if original.name == TENSORFLOW_GPU and not gpus:
            wanted.name, note = "tensorflow", "tensorflow, for the run holds no GPU"
    else:
        wanted, note = _with_cuda(wanted, original, gpus) or (wanted, note)
    return replace(entry, requirement=wanted, line=str(wanted), note=note) if note != entry.note else entry


def _with_cuda(wanted: Requirement, original: Requirement, gpus: int) -> tuple[Requirement, str] | None:
    """Return TensorFlow with CUDA's packages if GPUs are held and `tensorflow-gpu` was asked for, or None."""
    if not gpus or original.name != TENSORFLOW_GPU or stays_below(original.specifier, _FIRST_WITH_CUDA):
        return None
    wanted = Requirement(str(wanted))
    wanted.extras = {*wanted.extras, "and-cuda"}
    return wanted, "called tensorflow[and-cuda] on PyPI"


def relaxed_variables(written: Specification) -> tuple[dict[str, str], list[str]]:
    """Return the variables of a script with today's packages, and the lines that explain them."""
    variables: dict[str, str] = {}
    lines = ["relaxed: today's versions in place of those asked for"]
    names = {entry.requirement.name for entry in written.entries if entry.requirement is not None}
    if _LEGACY_KERAS in names or any(_means_keras_2(entry) for entry in written.entries):
        variables |= _KERAS_2
        lines.append("tf.keras is Keras 2, of the package tf-keras: TF_USE_LEGACY_KERAS=1")
    if as_written(written).tensorflow_1 is not None:
        variables |= _TENSORFLOW_1_API
        lines.append("TensorFlow 1 is asked for: tensorflow is tensorflow.compat.v1 of today's")
    return variables, lines


def relaxed(specification: Specification, gpus: int = 0) -> Specification:
    """Return the same packages without versions, for today's Python; with Keras 2 if the file means it."""
    entries = []
    for entry in specification.entries:
        line = _name_alone(entry.line)
        if entry.original is not None and line:
            with_cuda = _with_cuda(Requirement(line), Requirement(entry.original.name), gpus)
            line = str(with_cuda[0]) if with_cuda else line
        entries.append(entry if entry.requirement is None else replace(entry, requirement=None, line=line))
    if any(_means_keras_2(entry) for entry in specification.entries):
        place = specification.entries[0].place
        entries.append(Entry(_LEGACY_KERAS, place, _LEGACY_KERAS))
    return replace(specification, entries=tuple(entries), python=SpecifierSet())


def _means_keras_2(entry: Entry) -> bool:
    if entry.requirement is None:
        return False
    name, specifier = entry.requirement.name, entry.requirement.specifier
    of_tensorflow = name in ("tensorflow", "tensorflow-cpu")
    is_old = stays_below(specifier, _FIRST_WITH_KERAS_3) or entry.note == TENSORFLOW_1
    return (of_tensorflow and is_old) or (name == "keras" and stays_below(specifier, "3"))


def _name_alone(line: str) -> str:
    try:
        requirement = Requirement(line)
    except InvalidRequirement:
        return line
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    marker = f"; {requirement.marker}" if requirement.marker else ""
    return line if requirement.url else f"{requirement.name}{extras}{marker}"


def find_or_build(
    environments_dir: Path,
    content: Mapping[str, Any],
    say: Say,
    build: Callable[[Path, int], Mapping[str, str]],
    is_usable: Callable[[Path], bool] = lambda _: True,
) -> tuple[Path, Mapping[str, str]]:
    """Return the folder of an environment and its packages; it is built if missing.

    Args:
        content: Everything that decides what it has.
        build: Builds it in an empty folder, and returns its packages; installers hold the descriptor of the lock.
        is_usable: Whether an environment that was built before is still whole.
    """
    key = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:20]
    place = private_folder(environments_dir) / key
    with build_lock(environments_dir, key, say) as lock:
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            packages = json.loads((place / MANIFEST).read_text(encoding="utf-8"))["packages"]
            if is_usable(place):
                return place, packages
        remove_unfinished(environments_dir)
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(mode=0o700)
        try:
            return place, build(place, lock)
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise


def _find_or_build(
    wanted: Candidate, python: Interpreter, folder: Path, environments_dir: Path, say: Say
) -> tuple[Path, Mapping[str, str]]:
    """Return the virtual environment and its packages; it is built if missing."""
    specification, as_of = wanted.specification, wanted.as_of
    content = {
        "run": 1,
        "requirements": specification.lines,
        "options": specification.options,
        "files": [digest_of(path) for path in specification.files],
        "python": [os.path.realpath(python.executable), str(python)],
        "as_of": as_of,
    }
    place, packages = find_or_build(
        environments_dir,
        content,
        say,
        lambda place, lock: _Build(
            specification, python, as_of, place, folder / "build.log", lock, say
        ).build(),
        lambda place: python_of(place / "venv").is_file(),
    )
    return place / "venv", packages


@dataclass
class _Build:
    """Builds one environment in a folder that nobody else uses."""

    _specification: Specification
    _python: Interpreter
    _as_of: str
    _place: Path
    _log: Path
    _lock: int
    _say: Say

    def __post_init__(self) -> None:
        self._venv = self._place / "venv"
        self._installer = Installer.find()

    def build(self) -> dict[str, str]:
        lines, options = self._specification.lines, self._specification.options
        self._say(
            f"building an environment for {self._specification.path.name} with {self._installer} and Python "
            f"{self._python}, {format_count(len(lines), 'requirement')}"
        )
        self._run(self._installer.creation(self._python.executable, self._venv))
        if lines:
            requirements = self._place / "requirements.txt"
            requirements.write_text(self._installer.requirements(lines, options), encoding="utf-8")
            self._run([*self._installer.installation(self._venv, requirements, options), *self._dated()])
        packages = packages_in(self._site_packages)
        check_imports(self._specification, python_of(self._venv), self._site_packages)
        manifest = {"file": self._specification.path.name, "python": str(self._python), "packages": packages}
        replace_file(self._place / MANIFEST, json.dumps(manifest, indent=2).encode())
        return packages

    def _dated(self) -> Sequence[str]:
        if not self._as_of:
            return ()
        if self._installer.uv is None:
            raise EnvironmentUnusable("packages as of a date need uv, which is not installed: pip install uv")
        return ("--exclude-newer", self._as_of)

    @property
    def _site_packages(self) -> Path:
        return next(self._venv.glob("lib/python3*/site-packages"))

    def _run(self, command: Sequence[str | Path]) -> None:
        done = self._installer.run(command, self._lock)
        with self._log.open("a", encoding="utf-8") as log:
            log.write(done.stdout)
        if done.returncode != 0:
            last_lines = "\n".join(done.stdout.strip().splitlines()[-_SHOWN_LINES:])
            raise EnvironmentUnusable(
                f"the environment for {self._specification.path.name} cannot be built with Python {self._python}: "
                f"{self._installer} ended with status {done.returncode}:\n{last_lines}"
            )
