"""The environment of a run: what was asked for, what it has got, and the interpreter that runs its script.

RUN/environment/asked.yml   the file that was asked for, as it was (asked.txt for one of pip)
RUN/environment/got.txt     what there is, frozen, after lines that say where that differs from what was asked for
RUN/environment/build.log   what the installer said

Environments are kept in the workspace beside those of models, by a digest of everything that decides their content.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet

from stoker.environments.asked import AskedEnvironment, RunEnvironment, write_got
from stoker.environments.build import Say
from stoker.environments.check import notes
from stoker.environments.dated import RememberedDate, Wanted, first_built, tries
from stoker.environments.discovery import read_environment
from stoker.environments.installers import Installer, python_of
from stoker.environments.interpreters import Interpreter, variables_for
from stoker.environments.kept import MANIFEST, digest_of, only_one, packages_in, sweep
from stoker.environments.package_names import TENSORFLOW_1
from stoker.environments.run_interpreters import choose_run_interpreter
from stoker.environments.specification import Entry, Specification, stays_below
from stoker.environments.trial import import_failed, import_script, named_packages
from stoker.errors import EnvironmentUnusable
from stoker.system.durable import private_folder, replace_file
from stoker_run import interpreters

__all__ = ["LEGACY_KERAS", "RELAXED_VARIABLES", "prepared_for_run", "relaxed"]

_SHOWN_LINES: Final = 30
RELAXED_VARIABLES: Final = {"TF_USE_LEGACY_KERAS": "1"}
"""What scripts of before have to find beside Keras 2."""
LEGACY_KERAS: Final = "tf-keras"
"""The package that is Keras 2 beside a TensorFlow of Keras 3."""
_FIRST_WITH_KERAS_3: Final = "2.16"


@dataclass(frozen=True, slots=True)
class _Built:
    """An environment, and in what it is other than asked for."""

    venv: Path
    packages: Mapping[str, str]
    python: Interpreter
    differences: tuple[str, ...]


class _Having:
    """Has environments built, or finds those that are there.

    Args:
        folder: `environment/` of the run.
        environments_dir: Where environments are kept.
        say: Is told in a line what takes time, and what is not as asked for.
    """

    def __init__(self, folder: Path, environments_dir: Path, say: Say) -> None:
        self._folder = folder
        self._environments_dir = environments_dir
        self._say = say

    def once(self, wanted: Wanted) -> _Built:
        """Have one of what is wanted, or not at all."""
        specification, as_of = wanted.specification, wanted.as_of
        python, note = choose_run_interpreter(specification)
        differences = [*([note] if note else []), *notes(specification), *wanted.differences]
        for line in differences:
            self._say(line)
        try:
            venv, packages = _kept(
                specification, python, as_of, self._folder, self._environments_dir, self._say
            )
        except EnvironmentUnusable as error:
            raise EnvironmentUnusable(f"{error}\n({note})" if note else str(error)) from error
        return _Built(venv, packages, python, tuple(differences))


def prepared_for_run(
    asked: AskedEnvironment, folder: Path, environments_dir: Path, say: Say
) -> RunEnvironment:
    """Have the environment of a run, and write down what it is.

    Args:
        asked: What was asked for.
        folder: `environment/` of the run.
        environments_dir: Where environments are kept.
        say: Is told in a line what takes time, and what is not as asked for.

    Raises:
        EnvironmentUnusable: It cannot be had.
    """
    specification = read_environment(folder / asked.file)
    having = _Having(folder, environments_dir, say)
    if asked.kind == "relaxed":
        return _relaxed(having.once(Wanted(relaxed(specification), asked.as_of)), folder, say)
    remembered = RememberedDate(environments_dir, specification)
    found = tries(
        specification, asked, remembered.read(), say, can_date=lambda: Installer.find().uv is not None
    )
    built, wanted = first_built(found, having.once)
    remembered.keep(wanted)
    write_got(folder, built.differences, f"Python {built.python}", built.packages)
    return RunEnvironment(python_of(built.venv))


def _relaxed(built: _Built, folder: Path, say: Say) -> RunEnvironment:
    legacy = LEGACY_KERAS in built.packages
    lines = ["relaxed: today's versions in place of those asked for"]
    if legacy:
        lines.append("tf.keras is Keras 2, of the package tf-keras: TF_USE_LEGACY_KERAS=1")
    for line in lines:
        say(line)
    write_got(folder, [*built.differences, *lines], f"Python {built.python}", built.packages)
    return RunEnvironment(python_of(built.venv), RELAXED_VARIABLES if legacy else {})


def relaxed(specification: Specification) -> Specification:
    """The same packages in whatever version there is for today's Python; Keras 2 beside them where it was meant."""
    entries = [
        entry if entry.requirement is None else replace(entry, requirement=None, line=_name_alone(entry.line))
        for entry in specification.entries
    ]
    if any(_means_keras_2(entry) for entry in specification.entries):
        place = specification.entries[0].place
        entries.append(Entry(LEGACY_KERAS, place, LEGACY_KERAS))
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
        asked = Requirement(line)
    except InvalidRequirement:
        return line
    extras = f"[{','.join(sorted(asked.extras))}]" if asked.extras else ""
    marker = f"; {asked.marker}" if asked.marker else ""
    return line if asked.url else f"{asked.name}{extras}{marker}"


def _kept(
    specification: Specification,
    python: Interpreter,
    as_of: str,
    folder: Path,
    environments_dir: Path,
    say: Say,
) -> tuple[Path, Mapping[str, str]]:
    """The virtual environment and its packages, built unless it is there."""
    content = {
        "run": 1,
        "requirements": specification.lines,
        "options": specification.options,
        "files": [digest_of(path) for path in specification.files],
        "python": [os.path.realpath(python.executable), str(python)],
        "as_of": as_of,
    }
    key = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:20]
    place = private_folder(environments_dir) / key
    with only_one(environments_dir, key, say) as lock:
        try:
            packages = json.loads((place / MANIFEST).read_text(encoding="utf-8"))["packages"]
            if python_of(place / "venv").is_file():
                return place / "venv", packages
        except (OSError, ValueError, LookupError, TypeError):
            # Not there, or half of it: built anew.
            pass
        sweep(environments_dir)
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(mode=0o700)
        try:
            packages = _Builder(specification, python, as_of, place, folder / "build.log", lock, say).build()
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise
    return place / "venv", packages


class _Builder:
    """Builds one environment in a folder that nobody else uses."""

    def __init__(
        self,
        specification: Specification,
        python: Interpreter,
        as_of: str,
        place: Path,
        log: Path,
        lock: int,
        say: Say,
    ) -> None:
        self._specification = specification
        self._python = python
        self._as_of = as_of
        self._place = place
        self._venv = place / "venv"
        self._log = log
        self._lock = lock
        self._say = say
        self._installer = Installer.find()

    def build(self) -> dict[str, str]:
        lines, options = self._specification.lines, self._specification.options
        self._say(
            f"building an environment for {self._specification.path.name} with {self._installer} and Python "
            f"{self._python}, {len(lines)} requirement{'s' * (len(lines) != 1)}"
        )
        self._run(self._installer.creation(self._python.executable, self._venv))
        if lines:
            requirements = self._place / "requirements.txt"
            requirements.write_text(self._installer.requirements(lines, options), encoding="utf-8")
            self._run([*self._installer.installation(self._venv, requirements, options), *self._dated()])
        packages = packages_in(self._site_packages)
        self._check_imports()
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
            said = "\n".join(done.stdout.strip().splitlines()[-_SHOWN_LINES:])
            raise EnvironmentUnusable(
                f"the environment for {self._specification.path.name} cannot be built with Python {self._python}: "
                f"{self._installer} ended with status {done.returncode}:\n{said}"
            )

    def _check_imports(self) -> None:
        """Import each package that was named: one that resolves may still fit nothing that was installed with it."""
        modules = interpreters.modules(str(self._site_packages), named_packages(self._specification))
        if not modules:
            return
        python = python_of(self._venv)
        tried = subprocess.run(
            [python, "-c", import_script(modules)],
            env={**variables_for(python, os.environ), "CUDA_VISIBLE_DEVICES": ""},
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if tried.returncode != 0:
            raise import_failed(self._specification, tried.stderr)
