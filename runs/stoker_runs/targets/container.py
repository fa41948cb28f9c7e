"""The engine for containers on this machine: each mounts the attempt's folder, and the agent is its first process.

Secrets are never on a command line: variables of the script are passed in `start.json`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

from stoker.environments.trial import frameworks_without_gpus
from stoker.errors import EnvironmentUnusable
from stoker.system.durable import private_folder
from stoker_run.archive import write_archive
from stoker_runs.environments.requested import RequestedEnvironment, RunEnvironment, record_packages
from stoker_runs.records.states import FailureCode
from stoker_runs.targets.container_program import ContainerProgram, mount
from stoker_runs.targets.containers import (
    ContainerTemplate,
    FailedPulls,
    Image,
    ReadyImage,
    attempt_state_of_container,
    inspect_container,
    inspect_image,
    read_record,
    remove_container,
    start_container,
    write_record,
)
from stoker_runs.targets.definitions import ContainerSettings
from stoker_runs.targets.engine import (
    AttemptState,
    EngineFailure,
    Job,
    Presence,
    Say,
    start_content,
    write_start,
)
from stoker_runs.targets.local import (
    LocalEngine,
    as_failure,
    attempt_state_of_files,
    check_fetched_data,
    environment_failure,
    remove_work,
    shared_folder,
    working_directory,
)

_ATTEMPT: Final = PurePosixPath("/stoker/attempt")
_SHARED: Final = PurePosixPath("/stoker/share")
_RESUME_FROM: Final = PurePosixPath("/stoker/resume_from")
_AGENT: Final = "stoker_run.zip"


class ContainerEngine(LocalEngine):
    """Runs attempts in containers on this machine."""

    def check(self) -> Sequence[str]:
        """Start a container of the target's image, and return what it has."""
        settings = ContainerSettings.of(self._target.settings, {})
        program = ContainerProgram.find(settings.engine)
        lines: list[str] = []
        image = Image.obtain(program, settings, Path(), lines.append)
        capacity = self._target.capacity
        with_gpus = program.gpus() if capacity is not None and capacity.gpus else []
        inside = inspect_image(
            program, image, [*ContainerTemplate(settings, program, image).common, *with_gpus]
        )
        return (
            f"Python {inside} in a container of {image.name}",
            f"{program}{' of this user' if program.rootless else ''}: {program.path}",
            f"GPUs that it sees: {', '.join(inside.gpus) or 'none'}",
        )

    def prepare(self, job: Job, say: Say) -> None:
        """Get the image and inspect it; make the environment and a working directory."""
        with as_failure("the run cannot be prepared"):
            private_folder(job.place)
            if (job.place / "start.json").exists():
                return
            check_fetched_data(job, self._workspace)
            definition = job.record.definition
            settings = ContainerSettings.of(self._target.settings, definition.container)
            program = ContainerProgram.find(settings.engine)
            requested, gpus = RequestedEnvironment.from_json(definition.environment), definition.gpus or 0
            image = ReadyImage.obtain(
                program,
                settings,
                job.folder.environment,
                say,
                FailedPulls(self._workspace.environments_dir),
                python=requested.python if requested.kind == "user" else "",
                gpus=gpus,
            )
            try:
                environment, mounts = self._environment_in(image, job, requested, say)
            except EnvironmentUnusable as error:
                raise environment_failure(error, requested) from error
            self._write(job, image, environment, mounts)

    def _environment_in(
        self, image: ReadyImage, job: Job, requested: RequestedEnvironment, say: Say
    ) -> tuple[RunEnvironment, list[str]]:
        """Return the environment of a run, and the options by which its container sees it."""
        folder, gpus = job.folder.environment, job.record.definition.gpus or 0
        inside, base = image.inside, image.base
        if requested.kind == "user":
            lines = [f"the image {base.image.name} as it is, {base.image.id}"]
            record_packages(folder, lines, f"Python {inside}", inside.packages)
            for line in frameworks_without_gpus(gpus, inside.packages, base.ask):
                say(line)
            return RunEnvironment(Path(inside.python), {}, inside.packages), []
        # Not above: the libraries that read environment files take longer to import than all the rest.
        from stoker_runs.targets.container_environment import prepare_in_container

        return prepare_in_container(image, requested, folder, self._workspace.environments_dir, say, gpus)

    def _write(self, job: Job, image: ReadyImage, environment: RunEnvironment, mounts: Sequence[str]) -> None:
        """Make the working directory, and record how the container is started."""
        working_directory(job)
        write_archive(job.place / _AGENT)
        (job.place / "home").mkdir(exist_ok=True)
        shared = shared_folder(self._target.settings, job, self._workspace)
        resume_from = None if job.resume_from is None else _RESUME_FROM
        options = [
            *(*image.gpus, *mount(job.place, str(_ATTEMPT)), *mounts),
            *([] if shared is None else mount(shared, str(_SHARED))),
            *([] if job.resume_from is None else mount(job.resume_from, str(_RESUME_FROM), readonly=True)),
            *self._data(job),
        ]
        python = str(environment.interpreter)
        agent = (python, str(_ATTEMPT / _AGENT))
        write_record(job, image.base, options, place=_ATTEMPT, home=_ATTEMPT / "home", agent=agent)
        start = start_content(
            job,
            [python],
            _ATTEMPT / "work",
            resume_from=_ATTEMPT / "work" / "outputs" if job.attempt > 1 else resume_from,
            shared_directory=None if shared is None else _SHARED,
            variables=environment.variables,
        )
        write_start(job, start)

    def _data(self, job: Job) -> list[str]:
        """Mounts of data stores and inputs, at their paths on this machine; inputs are read-only."""
        stores = self._workspace.root.absolute() / "stores"
        if job.record.definition.outputs:
            stores.mkdir(parents=True, exist_ok=True)
        inputs = {Path(place) for place in job.record.definition.inputs.values()}
        found = [word for one in sorted(inputs) for word in mount(one, str(one), readonly=True)]
        return [*(mount(stores, str(stores)) if stores.is_dir() else []), *found]

    def start(self, job: Job) -> None:
        """Start the container, unless it has been started already."""
        if (job.place / "agent.json").exists() or (job.place / "exit.json").exists():
            return
        record = read_record(job.place)
        if record is None:
            raise EngineFailure("the run was not prepared", code=FailureCode.INTERNAL)
        program = _program(record)
        start_container(program, record, job.place)

    def observe(self, job: Job) -> AttemptState:
        """Read the agent's files; if there are none, ask the container program."""
        seen = attempt_state_of_files(job)
        if seen is not None:
            return seen
        record = read_record(job.place)
        if record is None:
            return AttemptState(Presence.ABSENT)
        program = _program(record)
        try:
            state = inspect_container(program, record)
        except EngineFailure as error:
            return AttemptState(Presence.UNREACHABLE, error.failure.message)
        was_started = (job.place / "agent.json").exists()
        if state is None:
            # Meanwhile it may have ended and been removed.
            return attempt_state_of_files(job) or AttemptState(
                Presence.GONE if was_started else Presence.ABSENT
            )
        meanwhile = None if state.is_created else attempt_state_of_files(job)
        return meanwhile or attempt_state_of_container(program, record, state, was_started=was_started)

    def clean(self, job: Job) -> None:
        """Remove the container with all that runs in it, and the working directory."""
        if not job.place.is_dir():
            return
        record = read_record(job.place)
        if record is not None:
            program = _program(record)
            remove_container(program, record)
        with as_failure("what is left of the run cannot be removed"):
            remove_work(job)


def _program(record: Mapping[str, Any]) -> ContainerProgram:
    return ContainerProgram(str(record["program"]), str(record["kind"]))
