"""The environment of a run on a machine that SSH reaches: an interpreter of there, or one built there of a file.

environments/KEY/venv            on that machine, by a digest of everything that decides its content
environments/KEY/manifest.json   its packages; written last: an environment without it does not exist
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from stoker.environments.installers import FOREIGN_VARIABLES, Installer, mask_secrets
from stoker.environments.interpreters import Interpreter
from stoker.environments.specification import Specification, named_packages
from stoker.environments.trial import (
    LIST_LIBRARIES,
    frameworks_without_gpus,
    import_failed,
    import_script,
)
from stoker.errors import EnvironmentUnusable
from stoker.system.wording import format_count
from stoker_runs.environments.interpreters import PythonChoice
from stoker_runs.environments.requested import RequestedEnvironment, record_packages
from stoker_runs.targets.engine import Say
from stoker_runs.targets.ssh.porter import Porter

if TYPE_CHECKING:
    from stoker_runs.environments.dated import Candidate, Candidates

_BETWEEN_TRIES_S: Final = 1.0
_SHOWN_LINES: Final = 30
_SEPARATORS: Final = re.compile(r"[-_.]+")


@dataclass(frozen=True, slots=True)
class RemoteEnvironment:
    """An environment on the machine."""

    interpreter: str
    variables: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)


def choose(specification: Specification, there: Sequence[Interpreter]) -> tuple[Interpreter | None, str, int]:
    """Choose the Python of an environment among those of a machine.

    Args:
        there: The machine's interpreters, beginning with that of the agent.

    Returns:
        The interpreter, and a line where it is none of those asked for; None where one has to be fetched: then the
        number N of the Python 3.N that is wanted most is the last, 0 for none.
    """
    choice = PythonChoice.of(specification)
    fitting = [one for one in there if one.version[1] in choice.wanted]
    newer = sorted((one for one in there if one.version[1] in choice.instead), key=lambda one: one.version)
    to_fetch = next(iter((*choice.wanted, *choice.instead)), 0)
    if not fitting and not newer:
        return None, "", to_fetch
    found = max(fitting, key=lambda one: (one is there[0], one.version)) if fitting else newer[0]
    return found, choice.note(found, found.version[1], "on that machine"), 0 if fitting else to_fetch


async def prepare_remote_environment(
    porter: Porter,
    requested: RequestedEnvironment,
    folder: Path,
    environments_dir: Path,
    say: Say,
    image: str = "",
    gpus: int = 0,
) -> RemoteEnvironment:
    """Build or find the environment of a run on the machine, and record its packages here.

    Args:
        folder: `environment/` of the run.
        environments_dir: Environments of this machine, and dates at which pinned packages fit together.
        image: The image of the porter's container, whose environments fit no other image; empty for none.
    """
    if requested.kind == "user":
        found = await _existing_interpreter(porter, requested.python, folder)
    else:
        found = await _from_file(porter, requested, folder, environments_dir, say, image, gpus)
    await _report_unused_gpus(porter, gpus, found.packages, say)
    return found


async def _from_file(
    porter: Porter,
    requested: RequestedEnvironment,
    folder: Path,
    environments_dir: Path,
    say: Say,
    image: str,
    gpus: int,
) -> RemoteEnvironment:
    # Not above: the libraries that read environment files take longer to import than all the rest.
    from stoker_runs.environments.dated import RememberedDate, candidates
    from stoker_runs.run_environment import RequestedPackages

    of_file = RequestedPackages.read(requested, folder, gpus)
    specification = of_file.specification
    if specification.files:
        named = ", ".join(path.name for path in specification.files)
        raise EnvironmentUnusable(
            f"{specification.path.name} refers to files of this machine ({named}), which the target does not have; "
            "name packages of an index instead"
        )
    builder = _EnvironmentBuilder(porter, folder / "build.log", say, image)
    remembered = RememberedDate(environments_dir, specification, porter.host, image)
    found = candidates(specification, requested, remembered.read(), say, can_date=lambda: builder.has_uv)
    built, wanted = await builder.build_first(found)
    remembered.keep(wanted)
    for line in of_file.lines:
        say(line)
    record_packages(folder, [*built.differences, *of_file.lines], f"Python {built.python}", built.packages)
    path, packages = built.path, built.packages
    commands = PurePosixPath(path).parent
    variables = {
        "VIRTUAL_ENV": str(commands.parent),
        "PATH": ":".join(filter(None, (str(commands), porter.path))),
    }
    return RemoteEnvironment(path, variables | dict(of_file.variables), packages)


async def _report_unused_gpus(porter: Porter, gpus: int, packages: Mapping[str, str], say: Say) -> None:
    if not gpus:
        return
    _, printed = await porter.ask(op="ask_command", command=list(LIST_LIBRARIES))
    for line in frameworks_without_gpus(gpus, packages, lambda _: printed.decode("utf-8", "replace")):
        say(line)


@dataclass(frozen=True, slots=True)
class _Built:
    """An environment on the machine, and how it differs from the request."""

    path: str
    packages: Mapping[str, str]
    python: Interpreter
    differences: tuple[str, ...]


class _EnvironmentBuilder:
    """Builds environments on the machine, or finds existing ones."""

    def __init__(self, porter: Porter, log: Path, say: Say, image: str) -> None:
        self._porter = porter
        self._log = log
        self._say = say
        self._image = image
        self._uv: str | None = None

    @property
    def has_uv(self) -> bool:
        """Whether the machine has uv; known after it has listed its interpreters."""
        return self._uv is not None

    async def build_first(self, candidates: Candidates) -> tuple[_Built, Candidate]:
        """Build or find the first environment that is possible; raise EnvironmentUnusable if none is."""
        wanted = next(candidates)
        while True:
            try:
                return await self._build(wanted), wanted
            except EnvironmentUnusable as error:
                wanted = candidates.send(error)

    async def _build(self, wanted: Candidate) -> _Built:
        from stoker.environments.check import notes

        python, note = await self._interpreter(wanted.specification)
        differences = (*([note] if note else []), *notes(wanted.specification), *wanted.differences)
        for line in differences:
            self._say(line)
        return _Built(*await self._environment(wanted, python), python, differences)

    async def _interpreter(self, specification: Specification) -> tuple[Interpreter, str]:
        """Return the Python to build with, which uv installs if necessary."""
        found, note, minor = choose(specification, await self._there())
        if found is None and minor and self._uv is not None:
            await self._run([self._uv, "python", "install", f"3.{minor}"])
            found, note, minor = choose(specification, await self._there())
        if found is None:
            here = sorted({str(one) for one in await self._there()})
            raise PythonChoice.of(specification).missing("on that machine", here, "install it or uv there")
        return found, note

    async def _there(self) -> list[Interpreter]:
        reply, _ = await self._porter.ask(op="interpreters")
        self._uv = reply["uv"]
        return [
            Interpreter(Path(path), (major, minor, patch)) for path, major, minor, patch in reply["pythons"]
        ]

    async def _environment(self, wanted: Candidate, python: Interpreter) -> tuple[str, Mapping[str, str]]:
        """Return the interpreter and the packages of the environment, which is built if missing."""
        key = self._key(wanted, python)
        name = f"environments/{key}"
        home, _ = await self._porter.ask(op="home", name="environments")
        venv = PurePosixPath(home["path"], key, "venv")
        interpreter = str(venv / "bin" / "python")
        while not (await self._porter.ask(op="lock", name=key))[0]["taken"]:
            self._say("waiting for another run that builds the same environment")
            await asyncio.sleep(_BETWEEN_TRIES_S)
        try:
            reply, data = await self._porter.ask(op="get", name=f"{name}/manifest.json")
            if reply["there"]:
                return interpreter, json.loads(data)["packages"]
            await self._porter.ask(op="remove", name=name)
            packages = await self._install(wanted, python, name, venv)
        finally:
            await self._porter.ask(op="unlock")
        return interpreter, packages

    async def _install(
        self, wanted: Candidate, python: Interpreter, name: str, venv: PurePosixPath
    ) -> Mapping[str, str]:
        specification, interpreter = wanted.specification, str(venv / "bin" / "python")
        lines, options = specification.lines, specification.options
        installer = Installer((self._uv,) if self._uv is not None else None)
        if wanted.as_of and self._uv is None:
            raise EnvironmentUnusable("packages as of a date need uv on that machine: pip install uv there")
        self._say(
            f"building an environment for {specification.path.name} there with {installer} and Python "
            f"{python}, {format_count(len(lines), 'requirement')}"
        )
        place, dated = Path(venv), ["--exclude-newer", wanted.as_of] if wanted.as_of else []
        creation = [str(python.executable), "-m", "venv", str(venv)]
        if self._uv is not None:
            creation = installer.creation(python.executable, place)
        await self._run(creation, specification)
        if lines:
            text = installer.requirements(lines, options).encode("utf-8")
            await self._porter.ask(text, op="put", name=f"{name}/requirements.txt")
            requirements = venv.parent / "requirements.txt"
            installation = [interpreter, *["-m", "pip", "install", "--no-input", "-r"], str(requirements)]
            if self._uv is not None:
                installation = [*installer.installation(place, Path(requirements), options), *dated]
            await self._run(installation, specification)
        reply, _ = await self._porter.ask(op="packages", python=interpreter)
        if "error" in reply:
            raise EnvironmentUnusable(f"the environment was built there, but cannot be run: {reply['error']}")
        await self._check_imports(specification, venv, python.version[1])
        packages = _packages(reply["names"])
        manifest = json.dumps({"python": str(python), "packages": packages}).encode("ascii")
        await self._porter.ask(manifest, op="put", name=f"{name}/manifest.json")
        return packages

    async def _check_imports(self, specification: Specification, venv: PurePosixPath, minor: int) -> None:
        """Import each package that was named: versions that resolve may still not work together."""
        names = sorted(named_packages(specification))
        place = str(venv / "lib" / f"python3.{minor}" / "site-packages")
        modules = (await self._porter.ask(op="modules", site_packages=place, names=names))[0]["modules"]
        if not modules:
            return
        python = str(venv / "bin" / "python")
        command = ["env", "CUDA_VISIBLE_DEVICES=", python, "-c", import_script(modules)]
        status, text = await self._call(command)
        if status != 0:
            raise import_failed(specification, text, "there")

    def _key(self, wanted: Candidate, python: Interpreter) -> str:
        specification = wanted.specification
        content: list[Any] = [
            specification.lines,
            specification.options,
            str(python.executable),
            str(python),
            wanted.as_of,
            *([self._image] if self._image else []),
        ]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:20]

    async def _call(self, command: Sequence[str]) -> tuple[int, str]:
        reply, data = await self._porter.ask(
            op="run_command", command=list(command), without=list(FOREIGN_VARIABLES)
        )
        return reply["status"], data.decode("utf-8", "replace")

    async def _run(self, command: Sequence[str], needed_by: Specification | None = None) -> None:
        status, printed = await self._call(command)
        text = mask_secrets(printed)
        with self._log.open("a", encoding="utf-8") as log:
            log.write(text)
        if needed_by is not None and status != 0:
            last = "\n".join(text.strip().splitlines()[-_SHOWN_LINES:])
            raise EnvironmentUnusable(
                f"the environment for {needed_by.path.name} cannot be built there: {command[0]} ended with "
                f"status {status}:\n{last}"
            )


async def _existing_interpreter(porter: Porter, python: str, folder: Path) -> RemoteEnvironment:
    python = python or porter.interpreter
    reply, _ = await porter.ask(op="packages", python=python)
    if "error" in reply:
        raise EnvironmentUnusable(f"the Python {python} cannot be run there ({reply['error']})")
    packages = _packages(reply["names"])
    record_packages(folder, ["the interpreter as it is"], f"Python {reply['version']} ({python})", packages)
    return RemoteEnvironment(python, {}, packages)


def _packages(names: Sequence[str]) -> dict[str, str]:
    """Return versions by normalised name, from `NAME-VERSION`."""
    found: dict[str, str] = {}
    for entry in names:
        name, dash, version = entry.partition("-")
        if dash:
            found.setdefault(_SEPARATORS.sub("-", name).lower(), version)
    return dict(sorted(found.items()))
