"""The environment of a run that a porter builds: on a machine that SSH reaches, or in a container.

environments/KEY/venv            in the porter's folder, by a digest of everything that decides its content
environments/KEY/manifest.json   its packages; written last: an environment without it does not exist
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

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
from stoker_runs.environments.dated import Candidate
from stoker_runs.environments.interpreters import choose_run_interpreter
from stoker_runs.environments.requested import (
    RequestedEnvironment,
    RunEnvironment,
    packages_named,
    record_packages,
)
from stoker_runs.run_environment import Builder, log_installer, obtain_environment
from stoker_runs.targets.containers import Image
from stoker_runs.targets.engine import Say
from stoker_runs.targets.porter import BlockingPorter, Porter

_BETWEEN_TRIES_S: Final = 1.0


async def prepare_by_porter(
    porter: Porter,
    requested: RequestedEnvironment,
    folder: Path,
    environments_dir: Path,
    say: Say,
    image: Image | None = None,
    gpus: int = 0,
) -> RunEnvironment:
    """Build or find the environment of a run where a porter is, and record its packages here.

    Args:
        folder: `environment/` of the run.
        environments_dir: Has the dates at which pinned packages fit together.
        image: The image of the porter's container, whose environments fit no other image; None for none.
    """

    def prepare(blocking: BlockingPorter) -> RunEnvironment:
        if requested.kind == "user":
            found = _existing_interpreter(blocking, requested.python, folder)
        else:
            builder = _PorterBuilder(blocking, folder / "build.log", say, image)
            found = obtain_environment(builder, requested, folder, environments_dir, say, gpus)
            commands = found.interpreter.parent
            path = ":".join(filter(None, (str(commands), porter.path)))
            variables = {"VIRTUAL_ENV": str(commands.parent), "PATH": path, **found.variables}
            found = replace(found, variables=variables)
        for line in frameworks_without_gpus(gpus, found.packages, lambda _: _libraries(blocking)):
            say(line)
        return found

    return await porter.call_blocking(prepare)


def _libraries(porter: BlockingPorter) -> str:
    return porter.ask(op="ask_command", command=list(LIST_LIBRARIES))[1].decode("utf-8", "replace")


class _PorterBuilder(Builder):
    """Builds environments where a porter is, or finds existing ones."""

    def __init__(self, porter: BlockingPorter, log: Path, say: Say, image: Image | None) -> None:
        self._porter = porter
        self._log = log
        self._say = say
        self._uv: str | None = None
        self.place = (porter.porter.host, image.id if image is not None else "")
        self.notes = () if image is None else (f"in the image {image.name}, {image.id}",)

    def has_uv(self) -> bool:
        """Whether there is uv; known after the interpreters were listed."""
        return self._uv is not None

    def choose_python(self, specification: Specification) -> tuple[Interpreter, str]:
        """Return the Python to build with, which uv installs if necessary."""
        there = self._interpreters()

        def find(minor: int) -> Interpreter | None:
            return next((one for one in there if one.version[1] == minor), None)

        def fetch(minor: int) -> None:
            if self._uv is not None:
                self._call([self._uv, "python", "install", f"3.{minor}"])
                there[:] = self._interpreters()

        return choose_run_interpreter(
            specification,
            find,
            fetch,
            this=there[0],
            where="in its image" if self.notes else "on that machine",
            there=sorted({str(one) for one in there}),
            advice="name an image that has it" if self.notes else "install it or uv there",
        )

    def _interpreters(self) -> list[Interpreter]:
        """Return the interpreters there, beginning with that of the agent."""
        reply, _ = self._porter.ask(op="interpreters")
        self._uv = reply["uv"]
        return [Interpreter(Path(path), tuple(version)) for path, *version in reply["pythons"]]

    def find_or_build(self, wanted: Candidate, python: Interpreter) -> tuple[Path, Mapping[str, str]]:
        """Return the interpreter and the packages of an environment, which is built if missing."""
        key = self._key(wanted, python)
        name = f"environments/{key}"
        venv = Path(self._porter.ask(op="home", name="environments")[0]["path"], key, "venv")
        interpreter = venv / "bin" / "python"
        while not self._porter.ask(op="lock", name=key)[0]["taken"]:
            self._say("waiting for another run that builds the same environment")
            time.sleep(_BETWEEN_TRIES_S)
        try:
            reply, data = self._porter.ask(op="get", name=f"{name}/manifest.json")
            if reply["there"]:
                return interpreter, json.loads(data)["packages"]
            self._porter.ask(op="remove", name=name)
            return interpreter, self._install(wanted, python, name, venv)
        finally:
            self._porter.ask(op="unlock")

    def _install(self, wanted: Candidate, python: Interpreter, name: str, venv: Path) -> Mapping[str, str]:
        specification, interpreter = wanted.specification, str(venv / "bin" / "python")
        lines, options = specification.lines, specification.options
        installer = Installer((self._uv,) if self._uv is not None else None)
        if wanted.as_of and self._uv is None:
            raise EnvironmentUnusable("packages as of a date need uv on that machine: pip install uv there")
        self._say(
            f"building an environment for {specification.path.name} there with {installer} and Python "
            f"{python}, {format_count(len(lines), 'requirement')}"
        )
        dated = ["--exclude-newer", wanted.as_of] if wanted.as_of else []
        commands = [[str(python.executable), "-m", "venv", str(venv)]]
        if self._uv is not None:
            commands = [installer.creation(python.executable, venv)]
        if lines:
            text = installer.requirements(lines, options).encode("utf-8")
            self._porter.ask(text, op="put", name=f"{name}/requirements.txt")
            requirements = venv.parent / "requirements.txt"
            pip = [interpreter, *["-m", "pip", "install", "--no-input", "-r"], str(requirements)]
            uv = [*installer.installation(venv, requirements, options), *dated]
            commands.append(uv if self._uv is not None else pip)
        problem = f"the environment for {specification.path.name} cannot be built there: {commands[-1][0]}"
        for command in commands:
            status, printed = self._call(command)
            log_installer(self._log, mask_secrets(printed), status, problem)
        reply, _ = self._porter.ask(op="packages", python=interpreter)
        if "error" in reply:
            raise EnvironmentUnusable(f"the environment was built there, but cannot be run: {reply['error']}")
        self._check_imports(specification, venv, python.version[1])
        packages = packages_named(reply["names"])
        manifest = json.dumps({"python": str(python), "packages": packages}).encode("ascii")
        self._porter.ask(manifest, op="put", name=f"{name}/manifest.json")
        return packages

    def _check_imports(self, specification: Specification, venv: Path, minor: int) -> None:
        """Import each package that was named: versions that resolve may still not work together."""
        names = sorted(named_packages(specification))
        place = str(venv / "lib" / f"python3.{minor}" / "site-packages")
        modules = self._porter.ask(op="modules", site_packages=place, names=names)[0]["modules"]
        if not modules:
            return
        python = str(venv / "bin" / "python")
        status, text = self._call(["env", "CUDA_VISIBLE_DEVICES=", python, "-c", import_script(modules)])
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
            *filter(None, self.place[1:]),
        ]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:20]

    def _call(self, command: Sequence[str]) -> tuple[int, str]:
        reply, data = self._porter.ask(
            op="run_command", command=list(command), without=list(FOREIGN_VARIABLES)
        )
        return reply["status"], data.decode("utf-8", "replace")


def _existing_interpreter(blocking: BlockingPorter, python: str, folder: Path) -> RunEnvironment:
    python = python or blocking.porter.interpreter
    reply, _ = blocking.ask(op="packages", python=python)
    if "error" in reply:
        raise EnvironmentUnusable(f"the Python {python} cannot be run there ({reply['error']})")
    packages = packages_named(reply["names"])
    record_packages(folder, ["the interpreter as it is"], f"Python {reply['version']} ({python})", packages)
    return RunEnvironment(Path(python), {}, packages)
