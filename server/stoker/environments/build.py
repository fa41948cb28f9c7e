"""Virtual environments for models, built once per content and kept in the workspace.

environments/KEY/venv/              the environment; KEY is a digest of everything that decides its content
environments/KEY/requirements.txt   the installed requirements
environments/KEY/manifest.json      written last: without it the environment is incomplete and not used
environments/.KEY.lock              held while it is built, by the installer too

The environment's own packages take precedence over the server's packages, Stoker among them, which the device process
needs. An environment is built in its final folder, because scripts written by installers contain its path.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Final

from msgspec import Struct
from packaging.version import Version

import stoker
from stoker.environments.build_folders import MANIFEST, build_lock, digest_of, packages_in, remove_unfinished
from stoker.environments.installers import Installer, python_of
from stoker.environments.interpreters import Interpreter, choose_interpreter, this_interpreter
from stoker.environments.server_packages import (
    OLDEST_NUMPY,
    device_requirements,
    package_folders,
    server_paths,
    write_entry_points,
)
from stoker.environments.specification import Specification, named_packages, stays_below
from stoker.environments.trial import check_imports
from stoker.environments.upload_dates import date_of_pins
from stoker.environments.variables import variables_for
from stoker.errors import EnvironmentUnusable
from stoker.system.durable import private_folder, replace_file
from stoker.system.wording import format_count

_LAST_NUMPY_1: Final = date(2024, 2, 6)
"""The day after the upload of the last numpy 1: packages of an earlier day bring one that is too old."""
_PATHS_FILE: Final = "zzz_stoker_server.pth"
_SHOWN_LINES: Final = 30
Say = Callable[[str], None]


class Built(Struct, frozen=True):
    """A virtual environment that is ready for use.

    Attributes:
        note: Why its Python is not the requested one; empty if it is.
        build_s: Seconds that the build took; None if it had been built before.
    """

    key: str
    interpreter: Path
    python: str
    packages: Mapping[str, str]
    note: str = ""
    build_s: float | None = None


class Recipe(Struct, frozen=True):
    """All inputs that determine the content of an environment."""

    specification: Specification
    python: Interpreter
    server_paths: tuple[str, ...]
    needs: tuple[str, ...]

    @property
    def key(self) -> str:
        """The name of the environment's folder, a digest of the inputs."""
        content = {
            "requirements": self.specification.lines,
            "options": self.specification.options,
            "files": [digest_of(path) for path in self.specification.files],
            "python": [os.path.realpath(self.python.executable), str(self.python)],
            "stoker": stoker.__version__,
            "server": [*self.server_paths, *self.needs],
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:20]


class _NeedsMissing(EnvironmentUnusable):
    """Another Python lacks packages that the device process needs, or cannot run it."""


def find_built(specification: Specification, environments_dir: Path, framework: str) -> Built | None:
    """The environment of a specification if it has been built; None otherwise."""
    python, note = choose_interpreter(specification)
    return _ready(environments_dir, make_recipe(specification, python, framework), note)


def build_environment(
    specification: Specification, environments_dir: Path, framework: str, say: Say
) -> Built:
    """Build the environment of a specification, unless it has been built.

    Raises:
        EnvironmentUnusable: It cannot be built, or the device process cannot run in it; the message ends with the
            installer's output, and what to do.
    """
    _refuse_old_numpy(specification)
    python, note = choose_interpreter(specification)
    if not python.is_like_this:
        try:
            return _build(make_recipe(specification, python, framework), environments_dir, note, say)
        except _NeedsMissing as error:
            say(str(error))
            this = this_interpreter()
            note = f"Python {python} is asked for, but the server does not run in it: Python {this} is used"
            python = this
    return _build(make_recipe(specification, python, framework), environments_dir, note, say)


def make_recipe(specification: Specification, python: Interpreter, framework: str) -> Recipe:
    """Collect the inputs of the environment that a specification needs for a Python and a framework."""
    if python.is_like_this:
        return Recipe(specification, python, server_paths(), ())
    # Another interpreter cannot use compiled packages of this one, so it needs its own.
    needs = device_requirements(framework, named_packages(specification))
    return Recipe(specification, python, package_folders(), needs)


def _ready(environments_dir: Path, recipe: Recipe, note: str) -> Built | None:
    folder = environments_dir / recipe.key
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        packages = dict(manifest["packages"])
    except FileNotFoundError:
        return None
    except (ValueError, LookupError, TypeError) as error:
        raise EnvironmentUnusable(
            f"the manifest of the environment in {folder} is damaged ({error!r}); remove that folder when no process "
            "runs in it, and it is built anew"
        ) from error
    interpreter = python_of(folder / "venv")
    if not interpreter.is_file():  # a link to a Python that is gone
        return None
    return Built(recipe.key, interpreter, str(recipe.python), MappingProxyType(packages), note)


def _build(recipe: Recipe, environments_dir: Path, note: str, say: Say) -> Built:
    ready = _ready(environments_dir, recipe, note)
    if ready is not None:
        return ready
    private_folder(environments_dir)
    folder = environments_dir / recipe.key
    with build_lock(environments_dir, recipe.key, say) as lock:
        ready = _ready(environments_dir, recipe, note)
        if ready is not None:
            return ready
        remove_unfinished(environments_dir)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        begun_s = time.monotonic()
        try:
            packages = _build_or_date(recipe, folder, lock, say)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        build_s = time.monotonic() - begun_s
    return Built(recipe.key, python_of(folder / "venv"), str(recipe.python), packages, note, build_s)


class _Unimportable(EnvironmentUnusable):
    """Installed packages cannot be imported."""


def _build_or_date(recipe: Recipe, folder: Path, lock: int, say: Say) -> dict[str, str]:
    """Build an environment, once more with the packages of the time of its pins if these cannot be imported."""
    try:
        return _Builder(recipe, folder, lock, say).build()
    except _Unimportable as error:
        day = date_of_pins(recipe.specification) if Installer.find().uv is not None else None
        if day is None:
            raise
        as_of = max(day, _LAST_NUMPY_1).isoformat()
        say(f"{error}; trying once more with packages as of {as_of}")
        shutil.rmtree(folder)
        folder.mkdir(mode=0o700)
        try:
            return _Builder(recipe, folder, lock, say, as_of).build()
        except EnvironmentUnusable as again:
            raise EnvironmentUnusable(f"{error}\nand with packages as of {as_of}: {again}") from again


class _Builder:
    """Builds one environment in a folder that it has for itself.

    Args:
        as_of: Packages of the file that were uploaded after this date are left out; empty for no limit.
    """

    def __init__(self, recipe: Recipe, folder: Path, lock: int, say: Say, as_of: str = "") -> None:
        self._as_of = as_of
        self._recipe = recipe
        self._folder = folder
        self._venv = folder / "venv"
        self._lock = lock
        self._say = say
        self._installer = Installer.find()
        self._begun_s = time.monotonic()

    def build(self) -> dict[str, str]:
        specification = self._recipe.specification
        self._say(
            f"building an environment for {specification.path} with {self._installer} and Python "
            f"{self._recipe.python}, {format_count(len(specification.lines), 'requirement')}"
        )
        if code := specification.runs_code():
            self._say(f"packages and code from elsewhere than the usual index: {'; '.join(code)}")
        if self._recipe.needs:
            self._create_with_needs()
        else:
            self._create()
        if specification.lines:
            dated = ("--exclude-newer", self._as_of) if self._as_of else ()
            self._install("requirements.txt", specification.lines, specification.options, dated)
        if not self._recipe.needs:
            # Only now: installers treat visible packages as installed.
            self._show(self._recipe.server_paths)
        packages = packages_in(self._site_packages)
        self._check_numpy(packages)
        problem = self._problem()
        if problem:
            raise EnvironmentUnusable(
                f"the device process cannot run with the packages of {specification.path}: {problem}"
            )
        try:
            check_imports(specification, python_of(self._venv), self._site_packages)
        except EnvironmentUnusable as error:
            raise _Unimportable(str(error)) from None
        manifest = {
            "file": str(specification.path),
            "python": str(self._recipe.python),
            "installer": str(self._installer),
            "built_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "as_of": self._as_of,
            "packages": packages,
        }
        replace_file(self._folder / MANIFEST, json.dumps(manifest, indent=2).encode())
        return packages

    def _create(self) -> None:
        self._run(self._installer.creation(self._recipe.python.executable, self._venv))

    def _show(self, paths: Sequence[str]) -> None:
        """Make folders of packages importable, after its own packages."""
        content = "".join(f"{path}\n" for path in paths)
        (self._site_packages / _PATHS_FILE).write_text(content, encoding="utf-8")

    def _create_with_needs(self) -> None:
        """Create it for another Python, and install the imports of the device process and Stoker itself there."""
        server = self._folder / "server"
        server.mkdir()
        for package in map(Path, self._recipe.server_paths):
            (server / package.name).symlink_to(package, target_is_directory=True)
        write_entry_points(server)
        try:
            self._create()
            self._show([str(server)])
            self._install("needs.txt", self._recipe.needs, ())
            problem = self._problem()
        except EnvironmentUnusable as error:
            raise _NeedsMissing(str(error)) from error
        if problem:
            raise _NeedsMissing(
                f"the device process does not run with Python {self._recipe.python}: {problem}"
            )

    @property
    def _site_packages(self) -> Path:
        return next(self._venv.glob("lib/python3*/site-packages"))

    def _install(
        self, name: str, lines: Sequence[str], options: Sequence[str], dated: Sequence[str] = ()
    ) -> None:
        requirements = self._folder / name
        requirements.write_text(self._installer.requirements(lines, options), encoding="utf-8")
        self._run([*self._installer.installation(self._venv, requirements, options), *dated])

    def _report_progress(self, line: str) -> None:
        seconds = time.monotonic() - self._begun_s
        self._say(f"has been building for {seconds:.0f} s{': ' * bool(line)}{line}")

    def _run(self, command: Sequence[str]) -> None:
        path = self._recipe.specification.path
        done = self._installer.run(command, self._lock, path.parent, self._report_progress)
        if done.returncode == 0:
            return
        output = "\n".join(done.stdout.strip().splitlines()[-_SHOWN_LINES:])
        raise EnvironmentUnusable(
            f"the environment for {path} cannot be built: {self._installer} ended with status {done.returncode}:\n"
            f"{output}\nChange the entries that it names (versions that have no release for Python "
            f"{self._recipe.python} are the usual reason), or install what the model needs where the server runs and "
            "serve it with environment_managed: user."
        )

    def _check_numpy(self, packages: Mapping[str, str]) -> None:
        version = packages.get("numpy")
        if version is not None and Version(version) < Version(OLDEST_NUMPY):
            raise EnvironmentUnusable(
                f"the packages of {self._recipe.specification.path} bring numpy {version}, but the device process "
                f"needs numpy {OLDEST_NUMPY} or newer: raise the versions that ask for the old one"
            )

    def _problem(self) -> str:
        """Why the device process does not start in the environment; empty if it does."""
        python = python_of(self._venv)
        tried = subprocess.run(
            [python, "-P", "-c", "import stoker.device.process"],
            env=variables_for(python, os.environ),
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        return "" if tried.returncode == 0 else (tried.stderr.strip().splitlines() or ["it ended"])[-1]


def _refuse_old_numpy(specification: Specification) -> None:
    """Refuse early, before a long download or compilation that would be useless."""
    for entry in specification.entries:
        wanted = entry.requirement if entry.applies else None
        if wanted is not None and wanted.name == "numpy" and stays_below(wanted.specifier, OLDEST_NUMPY):
            raise EnvironmentUnusable(
                f"{entry.place}: {entry.text} cannot be had: the device process needs numpy {OLDEST_NUMPY} or newer. "
                "Raise the version, or leave it out"
            )
