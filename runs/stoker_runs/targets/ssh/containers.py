"""Containers on a machine that SSH reaches: the agent of an attempt is started in one of them.

All that travels, is looked at and comes back does so as without containers: they see the target's folder at the place
that it has on the machine. Environments are made by a porter that runs in a container of the run's image.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from msgspec import Struct

from stoker_runs.environments.requested import RequestedEnvironment, RunEnvironment
from stoker_runs.records.states import FailureCode
from stoker_runs.targets.container_program import ContainerProgram, mount
from stoker_runs.targets.containers import (
    FailedPulls,
    ReadyImage,
    attempt_state_of_container,
    inspect_container,
    read_record,
    remove_container,
    start_container,
    write_record,
)
from stoker_runs.targets.definitions import ContainerSettings, Target
from stoker_runs.targets.engine import AttemptState, EngineFailure, Job, Presence, Say
from stoker_runs.targets.porter import Porter
from stoker_runs.targets.ssh.link import Link

_ANSWER_S: Final = 60.0
_LEFT: Final = frozenset({Presence.ABSENT, Presence.GONE})


@dataclass(frozen=True, slots=True)
class _RemoteProgram(ContainerProgram):
    """`docker` or `podman` of a machine that SSH reaches.

    Attributes:
        owner: The ids of the user who logs in and of the group.
    """

    link: Link | None = None
    owner: tuple[int, int] = (0, 0)

    def call(
        self,
        *arguments: str,
        timeout_s: float | None = _ANSWER_S,
        environ: Mapping[str, str] | None = None,  # noqa: ARG002  # those of the machine
        directory: Path | None = None,  # noqa: ARG002  # one of this machine
    ) -> subprocess.CompletedProcess[str]:
        """Run one of its commands on the machine."""
        assert self.link is not None
        return _run(self.link, [self.path, *arguments], timeout_s)

    def user(self) -> list[str]:
        """Return the options by which files that a container writes belong to the user who logs in."""
        return self._as_user(*self.owner)

    def build(self, name: str, dockerfile: Path) -> subprocess.CompletedProcess[str]:
        """Send a Dockerfile to the machine, and build an image of it."""
        assert self.link is not None
        content = dockerfile.read_bytes()
        folder = f"dockerfiles/{hashlib.sha256(content).hexdigest()[:20]}"
        self.link.ask(content, op="put", name=f"{folder}/Dockerfile", timeout_s=_ANSWER_S)
        context, _ = self.link.ask(op="home", name=folder)
        path = context["path"]
        return self.call("build", "-t", name, "-f", f"{path}/Dockerfile", path, timeout_s=None)


class RunContainer(Struct, frozen=True):
    """How to start the container of an attempt."""

    image: ReadyImage
    environment: RunEnvironment
    folder: str
    archive: str


class RemoteContainers:
    """Containers on one machine.

    Args:
        environments_dir: Environments of this machine, and dates at which pinned packages fit together.
    """

    def __init__(self, target: Target, link: Link, host: str, environments_dir: Path) -> None:
        self._target = target
        self._link = link
        self._host = host
        self._environments_dir = environments_dir

    def check(self) -> Sequence[str]:
        """Start a container of the target's image, and return what it has."""
        settings = ContainerSettings.of(self._target.settings, {})
        program = self._program(settings)
        image = ReadyImage.obtain(program, settings, Path(), lambda _: None)
        return (
            f"containers by {program}: {program.path}",
            f"Python {image.inside} in a container of {image.base.image.name}",
        )

    def prepared(self, job: Job, say: Say) -> RunContainer:
        """Obtain the image and the environment of an attempt on the machine.

        Raises:
            EngineFailure: They cannot be had.
            EnvironmentUnusable: The packages cannot be had.
        """
        definition, folder = job.record.definition, job.folder.environment
        requested = RequestedEnvironment.from_json(definition.environment)
        gpus = definition.gpus or 0
        settings = ContainerSettings.of(self._target.settings, definition.container)
        program = self._program(settings)
        # Not above: the libraries that read environment files take longer to import than all the rest.
        from stoker_runs.targets.container_environment import porter_command
        from stoker_runs.targets.porter_environment import prepare_by_porter

        failed = FailedPulls(self._environments_dir, self._host)
        python = requested.python if requested.kind == "user" else ""
        image = ReadyImage.obtain(program, settings, folder, say, failed, python=python, gpus=gpus)
        there, archive, uv = self._link.call(_facts, timeout_s=_ANSWER_S)
        environment = self._link.call_in_command(
            porter_command(image, there, uv),
            there,
            lambda porter: prepare_by_porter(
                porter, requested, folder, self._environments_dir, say, image.base.image, gpus
            ),
        )
        return RunContainer(image, environment, there, archive)

    def _program(self, settings: ContainerSettings) -> _RemoteProgram:
        def ask(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
            return _run(self._link, command, _ANSWER_S)

        def find_path(name: str) -> str | None:
            found = ask(["sh", "-c", 'command -v "$0"', name])
            return found.stdout.strip() if found.returncode == 0 else None

        try:
            found = ContainerProgram.find_responding(settings.engine, find_path, ask)
        except EngineFailure as error:
            failure = error.failure
            message = f"on {self._host}: {failure.message}"
            raise type(error)(message, failure.hint, code=failure.code) from error
        owner = ask(["sh", "-c", "id -u; id -g"]).stdout.split()
        user, group = int(owner[0]), int(owner[1])
        return _RemoteProgram(
            found.path, found.kind, found.version, found.rootless, link=self._link, owner=(user, group)
        )

    def start(self, job: Job) -> None:
        """Start the container of an attempt, unless it was started before."""
        record = read_record(job.place)
        if record is None:
            raise EngineFailure("the run was not prepared", code=FailureCode.INTERNAL)
        start_container(self._find(record), record, job.place)

    def sight(self, job: Job, look: Callable[[], AttemptState]) -> AttemptState:
        """Return the state of an attempt from its files, or from its container if they say nothing."""
        seen, record = look(), read_record(job.place)
        if record is None or seen.presence not in _LEFT:
            return seen
        program = self._find(record)
        state = inspect_container(program, record)
        if state is None:
            # Meanwhile it may have ended.
            return look()
        found = attempt_state_of_container(program, record, state, was_started=seen.presence is Presence.GONE)
        again = look() if state.is_over else seen
        return found if again.presence in _LEFT else again

    def remove(self, job: Job) -> None:
        """Remove the container of an attempt with all that runs in it."""
        record = read_record(job.place)
        if record is not None:
            remove_container(self._find(record), record)

    def _find(self, record: Mapping[str, Any]) -> _RemoteProgram:
        return _RemoteProgram(str(record["program"]), str(record["kind"]), link=self._link)


def has_container(job: Job) -> bool:
    """Whether an attempt was prepared to be in a container."""
    return read_record(job.place) is not None


def keep_container(
    job: Job, container: RunContainer, place: PurePosixPath, shared: PurePosixPath | None
) -> None:
    """Record how the container of an attempt is started.

    Args:
        shared: The folder on the machine that runs of its experiment share, or None.

    Raises:
        OSError: It cannot be written.
    """
    image = container.image
    options = [*image.gpus, *mount(Path(container.folder), container.folder)]
    options += () if shared is None else mount(Path(shared), str(shared))
    agent, home = (image.inside.python, container.archive), PurePosixPath(container.folder, "home")
    write_record(job, image.base, options, place=place, home=home, agent=agent)


async def _facts(porter: Porter) -> tuple[str, str, str | None]:
    """Return the target's folder, the path of the agent's zip, and that of uv or None."""
    await porter.ask(op="home", name="home")
    uv = (await porter.ask(op="interpreters"))[0]["uv"]
    return porter.folder, porter.archive, uv


def _run(link: Link, command: Sequence[str], timeout_s: float | None) -> subprocess.CompletedProcess[str]:
    reply, output = link.ask(op="ask_command", command=list(command), timeout_s=timeout_s)
    return subprocess.CompletedProcess(
        list(command), int(reply["status"]), output.decode("utf-8", "replace"), str(reply["complaints"])
    )
