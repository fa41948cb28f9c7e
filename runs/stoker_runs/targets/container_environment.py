"""The packages of a run in a container: those of its image, or a virtual environment that is made in a container.

Environments are kept in the workspace, named by a digest of everything that determines their content, including the
image. They are mounted at the same path in each container, because only there their interpreter works.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from stoker.environments.build_folders import MANIFEST, packages_in
from stoker.environments.check import notes
from stoker.environments.installers import Installer, mask_secrets
from stoker.environments.specification import Specification, named_packages
from stoker.environments.trial import import_failed, import_script
from stoker.errors import EnvironmentUnusable
from stoker.system.durable import replace_file
from stoker.system.wording import format_count
from stoker_base.package_modules import importable_modules
from stoker_runs.environments.dated import Candidate, RememberedDate, build_first, candidates
from stoker_runs.environments.interpreters import PythonChoice
from stoker_runs.environments.requested import RequestedEnvironment, RunEnvironment, record_packages
from stoker_runs.run_environment import RequestedPackages, find_or_build
from stoker_runs.targets.container_program import ContainerProgram, mount
from stoker_runs.targets.containers import Image, ImageContents
from stoker_runs.targets.engine import Say

_THERE: Final = "/stoker/environment"
_UV: Final = "/stoker/uv"
_CERTIFICATES: Final = "/stoker/certificates.crt"
_SHOWN_LINES: Final = 30
# The first list that goes through is enough: uv is much faster, and need not run in each image.
_BUILD: Final = """
import json, shutil, subprocess, sys
for commands in json.loads(sys.argv[1]):
    shutil.rmtree(commands[0][-1], ignore_errors=True)
    try:
        status = next(filter(None, map(subprocess.call, commands)), 0)
    except OSError as error:
        print(error)
        status = 1
    if status == 0:
        break
sys.exit(status)
"""


def record_image_packages(image: Image, inside: ImageContents, folder: Path) -> None:
    """Record the packages of an image whose Python is used as it is."""
    record_packages(
        folder, [f"the image {image.name} as it is, {image.id}"], f"Python {inside}", inside.packages
    )


class ContainerEnvironment:
    """Makes virtual environments in containers of one image."""

    def __init__(
        self,
        program: ContainerProgram,
        image: Image,
        inside: ImageContents,
        arguments: Sequence[str],
        environments_dir: Path,
    ) -> None:
        self._program = program
        self._image = image
        self._inside = inside
        self._arguments = arguments
        self._environments_dir = environments_dir

    def obtain(
        self, requested: RequestedEnvironment, folder: Path, say: Say, gpus: int = 0
    ) -> tuple[Path, RunEnvironment]:
        """Build or find the environment of a run, and record its packages.

        Args:
            folder: `environment/` of the run.

        Returns:
            Its folder here, and what it is in the container.
        """
        packages_requested = RequestedPackages.read(requested, folder, gpus)
        specification = packages_requested.specification
        differences = [*self._python_note(specification), *notes(specification), *packages_requested.lines]
        if specification.files:
            raise EnvironmentUnusable(
                f"{specification.path.name} refers to {specification.files[0]}, which no container sees; name "
                "packages of an index, or make an image that has them"
            )
        for line in differences:
            say(line)

        def built(wanted: Candidate) -> tuple[Path, Mapping[str, str]]:
            for line in wanted.differences:
                say(line)
            return self._find_or_build(specification, wanted.as_of, folder, say)

        remembered = RememberedDate(self._environments_dir, specification, self._image.id)
        found = candidates(
            specification,
            requested,
            remembered.read(),
            say,
            can_date=lambda: _uv_binary() is not None,
            chooses_python=False,
        )
        (place, packages), wanted = build_first(found, built)
        remembered.keep(wanted)
        differences += wanted.differences
        differences.append(f"in the image {self._image.name}, {self._image.id}")
        record_packages(folder, differences, f"Python {self._inside}", packages)
        return place, RunEnvironment(
            Path(_THERE, "venv/bin/python"), dict(packages_requested.variables), packages
        )

    @staticmethod
    def mounts_of(place: Path) -> list[str]:
        """The arguments by which a container sees an environment."""
        return mount(place, _THERE, readonly=True)

    def _python_note(self, specification: Specification) -> list[str]:
        minor, choice = self._inside.version[1], PythonChoice.of(specification)
        where = f"in the image {self._image.name}"
        if minor not in (*choice.wanted, *choice.instead):
            such = "".join(
                f", such as docker.io/library/python:3.{one}-slim"
                for one in choice.wanted[:1] or choice.instead[:1]
            )
            raise choice.missing(where, [str(self._inside)], f"name an image that has it{such}")
        note = choice.note(str(self._inside), minor, where)
        return [note] if note else []

    def _find_or_build(
        self, specification: Specification, as_of: str, folder: Path, say: Say
    ) -> tuple[Path, Mapping[str, str]]:
        content = {
            "container": 1,
            "image": self._image.id,
            "requirements": specification.lines,
            "options": specification.options,
            "python": [self._inside.python, str(self._inside)],
            "as_of": as_of,
        }
        log = folder / "build.log"
        return find_or_build(
            self._environments_dir,
            content,
            say,
            lambda place, _: self._build(specification, as_of, place, log, say),
        )

    def _build(
        self, specification: Specification, as_of: str, place: Path, log: Path, say: Say
    ) -> Mapping[str, str]:
        say(
            f"building an environment for {specification.path.name} in a container of {self._image.name}, "
            f"{format_count(len(specification.lines), 'requirement')}"
        )
        uv = _uv_binary()
        plans = [*self._plans(specification, as_of, place, uv)]
        seen = [*mount(place, _THERE), *([] if uv is None else mount(uv, _UV, readonly=True))]
        done = self._run([*seen, *_network_variables()], self._inside.python, _BUILD, json.dumps(plans))
        printed = mask_secrets(done.stdout + done.stderr)
        with log.open("a", encoding="utf-8") as file:
            file.write(printed)
        if done.returncode != 0:
            last_lines = "\n".join(printed.strip().splitlines()[-_SHOWN_LINES:])
            raise EnvironmentUnusable(
                f"the environment for {specification.path.name} cannot be built in a container of "
                f"{self._image.name}:\n{last_lines}"
            )
        site_packages = next((place / "venv").glob("lib/python3*/site-packages"))
        packages = packages_in(site_packages)
        self._check_imports(specification, place, site_packages)
        manifest = {"file": specification.path.name, "image": self._image.name, "packages": packages}
        replace_file(place / MANIFEST, json.dumps(manifest, indent=2).encode())
        return packages

    def _plans(
        self, specification: Specification, as_of: str, place: Path, uv: Path | None
    ) -> Iterator[list[list[str]]]:
        """Yield the commands of each way to build it: by this machine's uv, or by the image's pip, without a date."""
        venv, python = Path(_THERE, "venv"), Path(self._inside.python)
        for installer in ([] if uv is None else [Installer((_UV,))]) + ([] if as_of else [Installer(None)]):
            requirements = f"requirements-{installer}.txt"
            lines = installer.requirements(specification.lines, specification.options)
            (place / requirements).write_text(lines, encoding="utf-8")
            commands = [[*installer.creation(python, venv)], []]
            if installer.uv:
                commands[1] = installer.installation(venv, Path(_THERE, requirements), specification.options)
                commands[1] += [
                    "--link-mode",
                    "copy",
                    "--no-cache",
                    *(["--exclude-newer", as_of] * bool(as_of)),
                ]
            else:
                commands[0] = [str(python), "-m", "venv", str(venv)]
                pip = [f"{venv}/bin/python", "-m", "pip", "install", "--no-input", "--no-cache-dir"]
                commands[1] = [*pip, "--requirement", f"{_THERE}/{requirements}"]
            yield commands if specification.lines else commands[:1]

    def _check_imports(self, specification: Specification, place: Path, site_packages: Path) -> None:
        modules = importable_modules(str(site_packages), named_packages(specification))
        if not modules:
            return
        tried = self._run(self.mounts_of(place), f"{_THERE}/venv/bin/python", import_script(modules))
        if tried.returncode != 0:
            raise import_failed(specification, tried.stderr)

    def _run(self, options: Sequence[str], python: str, script: str, *more: str) -> Any:
        command = ["run", "--rm", *self._arguments, *options, "--env", "HOME=/tmp", "--entrypoint", python]
        variables = Installer((_UV,)).variables()
        return self._program.call(
            *command, self._image.id, "-c", script, *more, timeout_s=None, environ=variables
        )


def _uv_binary() -> Path | None:
    """The program uv of this machine, where it is installed."""
    found = shutil.which("uv")
    with contextlib.suppress(ImportError, FileNotFoundError):
        from uv import find_uv_bin

        found = find_uv_bin()
    return None if found is None else Path(found)


def _network_variables() -> list[str]:
    """Return the options that pass on indexes, proxies and certificates; their values stay off command lines."""
    variables = Installer((_UV,)).variables()
    names = [
        name
        for name in variables
        if name.startswith(("UV_INDEX", "UV_DEFAULT_INDEX", "PIP_INDEX", "PIP_EXTRA_INDEX", "PIP_TRUSTED"))
        or name.lower() in ("http_proxy", "https_proxy", "no_proxy")
    ]
    found = [word for name in names for word in ("--env", name)]
    certificates = variables.get("SSL_CERT_FILE", "")
    if certificates and Path(certificates).is_file():
        found += mount(Path(certificates).resolve(), _CERTIFICATES, readonly=True)
        for name in ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE"):
            found += ["--env", f"{name}={_CERTIFICATES}"]
    return found
