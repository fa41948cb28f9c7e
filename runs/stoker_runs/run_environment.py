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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace
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
from stoker_runs.environments.dated import Candidate, RememberedDate, build_first
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


class RequestedPackages(Struct, frozen=True):
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


class Builder:
    """Builds environments of runs for one kind of machine.

    Attributes:
        place: What decides of packages besides the file, such as the machine and the image.
        reads_files: Whether packages may be files of this machine.
        notes: What `got.txt` says of each environment.
    """

    place: Sequence[str] = ()
    reads_files = False
    notes: Sequence[str] = ()

    def choose_python(self, specification: Specification) -> tuple[Interpreter, str]:
        """Return the Python to build with, and a line that says why; empty for none."""
        raise NotImplementedError

    def has_uv(self) -> bool:
        """Whether there is uv, which builds as of a date; asked after a failure."""
        raise NotImplementedError

    def find_or_build(self, wanted: Candidate, python: Interpreter) -> tuple[Path, Mapping[str, str]]:
        """Return the interpreter and the packages of an environment, which is built if missing."""
        raise NotImplementedError


def obtain_environment(
    builder: Builder,
    requested: RequestedEnvironment,
    folder: Path,
    environments_dir: Path,
    say: Say,
    gpus: int = 0,
) -> RunEnvironment:
    """Build or find the environment of a run, and record its packages.

    Args:
        folder: `environment/` of the run.
        environments_dir: Has the dates at which pinned packages fit together.

    Raises:
        EnvironmentUnusable: It cannot be had.
    """

    def build(one: Candidate) -> tuple[Path, Mapping[str, str], Interpreter, list[str]]:
        python, note = builder.choose_python(one.specification)
        differences = [*([note] if note else []), *notes(one.specification), *one.differences]
        for line in differences:
            say(line)
        try:
            interpreter, packages = builder.find_or_build(one, python)
        except EnvironmentUnusable as error:
            raise EnvironmentUnusable(f"{error}\n({note})" if note else str(error)) from error
        return interpreter, packages, python, differences

    wanted = RequestedPackages.read(requested, folder, gpus)
    specification = wanted.specification
    if specification.files and not builder.reads_files:
        named = ", ".join(path.name for path in specification.files)
        raise EnvironmentUnusable(
            f"{specification.path.name} refers to files of this machine ({named}), which the target does not have; "
            "name packages of an index instead"
        )
    remembered = RememberedDate(environments_dir, specification, *builder.place)
    (interpreter, packages, python, differences), chosen = build_first(
        specification, requested, remembered.read(), say, build, can_date=builder.has_uv
    )
    remembered.keep(chosen)
    for line in wanted.lines:
        say(line)
    lines = [*differences, *wanted.lines, *builder.notes]
    record_packages(folder, lines, f"Python {python}", packages)
    return RunEnvironment(interpreter, dict(wanted.variables), packages)


def prepare_environment(
    requested: RequestedEnvironment, folder: Path, environments_dir: Path, say: Say, gpus: int = 0
) -> RunEnvironment:
    """Build or find the environment of a run on this machine, and record its packages.

    Args:
        folder: `environment/` of the run.
    """
    builder = _LocalBuilder(folder, environments_dir, say)
    built = obtain_environment(builder, requested, folder, environments_dir, say, gpus)
    if _LEGACY_KERAS not in built.packages and os.environ.keys() & _KERAS_2.keys():
        # The submitting process may use Keras 2; the script gets the Keras that its file names.
        return msgspec.structs.replace(built, variables={**built.variables, **dict.fromkeys(_KERAS_2, "0")})
    return built


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


def log_installer(log: Path, printed: str, returncode: int, problem: str) -> None:
    """Add what an installer has printed to a log.

    Raises:
        EnvironmentUnusable: It has failed.
    """
    with log.open("a", encoding="utf-8") as file:
        file.write(printed)
    if returncode != 0:
        last_lines = "\n".join(printed.strip().splitlines()[-_SHOWN_LINES:])
        raise EnvironmentUnusable(f"{problem} ended with status {returncode}:\n{last_lines}")


class _LocalBuilder(Builder):
    """Builds environments on this machine, in folders of the workspace named by a digest of their content."""

    reads_files = True

    def __init__(self, folder: Path, environments_dir: Path, say: Say) -> None:
        self._folder = folder
        self._environments_dir = environments_dir
        self._say = say

    def choose_python(self, specification: Specification) -> tuple[Interpreter, str]:
        return choose_run_interpreter(specification)

    def has_uv(self) -> bool:
        return Installer.find().uv is not None

    def find_or_build(self, wanted: Candidate, python: Interpreter) -> tuple[Path, Mapping[str, str]]:
        specification = wanted.specification
        content = {
            "run": 1,
            "requirements": specification.lines,
            "options": specification.options,
            "files": [digest_of(path) for path in specification.files],
            "python": [os.path.realpath(python.executable), str(python)],
            "as_of": wanted.as_of,
        }
        key = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:20]
        place = private_folder(self._environments_dir) / key
        interpreter = python_of(place / "venv")
        with build_lock(self._environments_dir, key, self._say) as lock:
            with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
                packages = json.loads((place / MANIFEST).read_text(encoding="utf-8"))["packages"]
                if interpreter.is_file():
                    return interpreter, packages
            remove_unfinished(self._environments_dir)
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(mode=0o700)
            try:
                return interpreter, self._build(wanted, python, place, lock)
            except BaseException:
                shutil.rmtree(place, ignore_errors=True)
                raise

    def _build(self, wanted: Candidate, python: Interpreter, place: Path, lock: int) -> dict[str, str]:
        installer, specification, venv = Installer.find(), wanted.specification, place / "venv"
        lines, options = specification.lines, specification.options
        if wanted.as_of and installer.uv is None:
            raise EnvironmentUnusable("packages as of a date need uv, which is not installed: pip install uv")
        self._say(
            f"building an environment for {specification.path.name} with {installer} and Python {python}, "
            f"{format_count(len(lines), 'requirement')}"
        )
        commands = [installer.creation(python.executable, venv)]
        if lines:
            requirements = place / "requirements.txt"
            requirements.write_text(installer.requirements(lines, options), encoding="utf-8")
            dated = ["--exclude-newer", wanted.as_of] if wanted.as_of else []
            commands.append([*installer.installation(venv, requirements, options), *dated])
        problem = (
            f"the environment for {specification.path.name} cannot be built with Python {python}: {installer}"
        )
        for command in commands:
            done = installer.run(command, lock)
            log_installer(self._folder / "build.log", done.stdout, done.returncode, problem)
        site_packages = next(venv.glob("lib/python3*/site-packages"))
        packages = packages_in(site_packages)
        check_imports(specification, python_of(venv), site_packages)
        manifest = {"file": specification.path.name, "python": str(python), "packages": packages}
        replace_file(place / MANIFEST, json.dumps(manifest, indent=2).encode())
        return packages
