"""Containers of runs: the image, which is found, pulled or built, and the container of an attempt.

attempts/N/container.json   which program, container and image, and the command line; what is needed to find it again
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

from msgspec import Struct

from stoker.settings.workspace import Workspace
from stoker.system.durable import private_folder, replace_file
from stoker_run.json_files import read_json
from stoker_runs.records.states import FailureCode
from stoker_runs.targets.container_program import ContainerProgram, last_line
from stoker_runs.targets.definitions import KUBERNETES, RAY, SPARK, ContainerSettings, Target
from stoker_runs.targets.engine import AttemptState, EngineFailure, Job, Presence, Say

_AGAIN_S: Final = 3600.0
"""How long an image that could not be pulled, and that another one replaces, is not asked for again."""
_NO_COMMAND: Final = 127
_SHOWN_LINES: Final = 20
_GPU_WORDS: Final = ("gpu", "nvidia", "device driver", "cdi")
_OLDEST: Final = (3, 6)
_GPU_HINTS: Final = {
    "docker": "install the NVIDIA container toolkit and run 'nvidia-ctk runtime configure --runtime=docker', or "
    "ask for none with --gpus 0",
    "podman": "install the NVIDIA container toolkit and run 'nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml', "
    "or ask for none with --gpus 0",
}
# It has to run in whatever Python an image has: an old one is to be told from none.
_LOOK: Final = """
import json, os, subprocess, sys
packages = {}
for path in filter(os.path.isdir, sys.path):
    for entry in os.listdir(path):
        for end in (".dist-info", ".egg-info"):
            name, dash, version = entry[:-len(end)].partition("-")
            if entry.endswith(end) and dash:
                packages.setdefault(name.replace("_", "-").lower(), version.split("-py")[0])
try:
    said = subprocess.check_output(["nvidia-smi", "-L"]).decode("utf-8", "replace").splitlines()
    gpus = [line for line in said if line.startswith("GPU ")]
except (OSError, subprocess.CalledProcessError):
    gpus = [name for name in os.listdir("/dev") if name.startswith("nvidia") and name[6:].isdigit()]
print(json.dumps([list(sys.version_info[:3]), sys.executable, gpus, packages]))
"""


class FailedPulls(Struct, frozen=True):
    """Images that could not be pulled in the last hour. A new attempt takes long, and most of them no longer exist.

    Attributes:
        host: The machine that pulled; empty for this one.
    """

    folder: Path
    host: str = ""
    now_s: Callable[[], float] = time.time

    def reason(self, name: str) -> str:
        """Return why an image could not be pulled in the last hour; empty if nobody has tried."""
        try:
            kept = json.loads(self._file(name).read_bytes())
            return str(kept["reason"]) if 0 <= self.now_s() - kept["time"] < _AGAIN_S else ""
        except (OSError, ValueError, LookupError, TypeError):
            return ""

    def keep(self, name: str, reason: str) -> None:
        """Record that an image could not be pulled."""
        private_folder(self.folder)
        replace_file(self._file(name), json.dumps({"time": self.now_s(), "reason": reason}).encode())

    def _file(self, name: str) -> Path:
        key = hashlib.sha256(f"{self.host} {name}".encode()).hexdigest()[:20]
        return self.folder / f".{key}.not-pulled"


class Image(Struct, frozen=True):
    """An image that the container program has."""

    name: str
    id: str

    @classmethod
    def obtain(
        cls,
        program: ContainerProgram,
        settings: ContainerSettings,
        environment: Path,
        say: Say,
        failed: FailedPulls | None = None,
    ) -> Image:
        """Find, pull or build the image of a run.

        Args:
            environment: `environment/` of the run.
            failed: The pulls that are not tried again where another image is used instead; None tries each.
        """
        if settings.dockerfile:
            return cls._build(program, environment, settings.dockerfile, say)
        wanted = settings.image or settings.fallback
        replaceable = settings.fallback not in ("", wanted)
        known = failed.reason(wanted) if failed is not None and replaceable else ""
        found, complaint = cls._find(program, wanted, say, known)
        if found is None and replaceable:
            if failed is not None and not known:
                failed.keep(wanted, complaint)
            say(f"the image {wanted} cannot be had ({complaint}): {settings.fallback} is used")
            found, complaint = cls._find(program, wanted := settings.fallback, say)
        if found is not None:
            return found
        raise EngineFailure(
            f"the image {wanted} is not here and cannot be pulled: {complaint}",
            f"'{program.kind} pull {wanted}' says more; '{program.kind} images' lists those that are here: name "
            "one of them as base_image, or as image of the compute target",
            code=FailureCode.IMAGE_NOT_FOUND,
        )

    @classmethod
    def _find(
        cls, program: ContainerProgram, name: str, say: Say, known: str = ""
    ) -> tuple[Image | None, str]:
        digest = _id_of(program, name)
        if digest:
            return cls(name, digest), ""
        if known:
            return None, f"{known}, as was said within the last hour"
        say(f"pulling the image {name}")
        pulled = program.call("pull", _qualified_name(name, program), timeout_s=None)
        if pulled.returncode != 0:
            return None, last_line(pulled.stderr)
        digest = _id_of(program, _qualified_name(name, program))
        return (cls(name, digest), "") if digest else (None, "it was pulled, and is not there")

    @classmethod
    def _build(cls, program: ContainerProgram, environment: Path, file: str, say: Say) -> Image:
        """Build the image, unless one was built from the same Dockerfile before."""
        dockerfile = environment / file
        name = f"stoker-run:{hashlib.sha256(dockerfile.read_bytes()).hexdigest()[:20]}"
        digest = _id_of(program, name)
        if not digest:
            say("building the image of the Dockerfile")
            built = program.build(name, dockerfile)
            with (environment / "build.log").open("a", encoding="utf-8") as log:
                log.write(built.stdout + built.stderr)
            digest = _id_of(program, name) if built.returncode == 0 else ""
            if not digest:
                lines = (built.stdout + built.stderr).strip().splitlines()[-_SHOWN_LINES:]
                raise EngineFailure(
                    f"the image of the Dockerfile cannot be built: {last_line(built.stderr)}",
                    "mend the Dockerfile; its folder is empty while it is built, so it can copy nothing",
                    details={"last_lines": lines},
                    code=FailureCode.ENVIRONMENT_UNUSABLE,
                )
        return cls(name, digest)


def _id_of(program: ContainerProgram, name: str) -> str:
    found = program.call("image", "inspect", "--format", "{{.Id}}", name)
    return found.stdout.strip() if found.returncode == 0 else ""


def _qualified_name(name: str, program: ContainerProgram) -> str:
    """Return the name with docker's default registry, which podman does not add by itself."""
    first, slash, _ = name.partition("/")
    if program.kind != "podman" or (slash and ("." in first or ":" in first or first == "localhost")):
        return name
    return f"docker.io/{name}" if slash else f"docker.io/library/{name}"


class ImageContents(Struct, frozen=True):
    """The Python, GPUs and packages that a container of an image has.

    Attributes:
        gpus: The GPUs that it sees, a line each.
    """

    python: str
    version: tuple[int, ...]
    gpus: tuple[str, ...]
    packages: dict[str, str]

    def __str__(self) -> str:
        return ".".join(map(str, self.version))


def inspect_image(
    program: ContainerProgram, image: Image, arguments: Sequence[str], python: str = "", gpus: int = 0
) -> ImageContents:
    """Find Python and GPUs in a container before the script is started in one.

    Args:
        python: Which Python; empty is `python3`, else `python`.

    Raises:
        EngineFailure: There is no Python that can be used, or there are fewer GPUs.
    """
    wanted = (python,) if python else ("python3", "python")
    seen: Any = None
    for name in wanted:
        done = program.call("run", "--rm", *arguments, "--entrypoint", name, image.id, "-c", _LOOK)
        if done.returncode == 0:
            seen = json.loads(done.stdout.strip().splitlines()[-1])
            break
        complaint = last_line(done.stderr)
        if gpus and any(word in complaint.lower() for word in _GPU_WORDS):
            raise _gpus_missing(program, image, gpus, complaint)
        if done.returncode != _NO_COMMAND:
            complaint = complaint or f"status {done.returncode}"
            raise EngineFailure(f"a container of {image.name} cannot be started: {complaint}")
    if seen is None:
        raise _no_python(image, f"no {' and no '.join(wanted)}")
    version, executable, found, packages = seen
    if tuple(version[:2]) < _OLDEST:
        raise _no_python(image, f"Python {'.'.join(map(str, version))} alone")
    if len(found) < gpus:
        why = f"it sees {len(found)}: {', '.join(found)}" if found else "it sees none"
        raise _gpus_missing(program, image, gpus, why)
    return ImageContents(str(executable), tuple(version), tuple(found), dict(packages))


def _gpus_missing(program: ContainerProgram, image: Image, gpus: int, why: str) -> EngineFailure:
    counted = f"{gpus} GPU{'s were' if gpus > 1 else ' was'} asked for in the container of {image.name}"
    return EngineFailure(f"{counted}: {why}", _GPU_HINTS[program.kind], code=FailureCode.GPU_NOT_FOUND)


def _no_python(image: Image, found: str) -> EngineFailure:
    return EngineFailure(
        f"the image {image.name} has {found}, and scripts need Python {_OLDEST[0]}.{_OLDEST[1]} or newer",
        "name an image that has it, such as docker.io/library/python:3.11-slim, or add it in a Dockerfile",
        code=FailureCode.ENVIRONMENT_UNUSABLE,
    )


def optional_container(
    target: Target, workspace: Workspace, say: Say, *, image: str = "", dockerfile: bool = False
) -> bool:
    """Whether a run for which Azure's code or files ask for a container can have one on a target without.

    It needs a program for containers, and an image that is here or can be pulled. What another machine has is only
    known there.

    Args:
        workspace: Where pulls that failed are kept.
        image: The image that is asked for; empty for none.
        dockerfile: Whether the image is built instead.
    """
    if target.type == RAY:
        say("a container is asked for; the script runs in the image that the nodes of the cluster have")
        return False
    if target.type == KUBERNETES:
        return True
    if target.type == SPARK:
        say(
            f"a container is asked for, and {target.name} starts none: the script runs in the head node's Python"
        )
        return False
    if not target.reads_files_here:
        return True
    try:
        settings = ContainerSettings.of(target.settings, {"image": image})
        program = ContainerProgram.find(settings.engine)
        if not dockerfile:
            Image.obtain(program, settings, Path(), say, FailedPulls(workspace.environments_dir))
    except EngineFailure as error:
        failure = error.failure
        say(f"a container is asked for, but the script runs without one: {failure.message}; {failure.hint}")
        return False
    return True


class ContainerTemplate(Struct, frozen=True):
    """The program, image and settings from which containers are started."""

    settings: ContainerSettings
    program: ContainerProgram
    image: Image

    @property
    def common(self) -> list[str]:
        """Return the options of every container, including those that inspect an image or build."""
        network = ["--network", self.settings.network] if self.settings.network else []
        # Where SELinux is on, bound folders could not be read else.
        return [*self.program.user(), "--security-opt", "label=disable", *network]

    def ask(self, command: Sequence[str]) -> str:
        """Run a command in a temporary container, and return its output."""
        options = ["run", "--rm", *self.common, "--entrypoint", command[0]]
        return self.program.call(*options, self.image.id, *command[1:]).stdout

    def limits(self) -> list[str]:
        """Return the further options of a script's container: memory and volumes."""
        settings = self.settings
        words = [*("--shm-size", settings.shm_size)] if settings.shm_size else []
        if settings.memory:
            # As much swap as memory is none besides.
            words += ["--memory", settings.memory, "--memory-swap", settings.memory]
        for volume in settings.volumes:
            words += ["--volume", volume]
        return words


class ReadyImage(Struct, frozen=True):
    """An image that the container program has, and that was looked into.

    Attributes:
        gpus: The options that give a container the GPUs that its run holds.
    """

    base: ContainerTemplate
    inside: ImageContents
    gpus: tuple[str, ...] = ()

    @classmethod
    def obtain(
        cls,
        program: ContainerProgram,
        settings: ContainerSettings,
        environment: Path,
        say: Say,
        failed: FailedPulls | None = None,
        *,
        python: str = "",
        gpus: int = 0,
    ) -> ReadyImage:
        """Find, pull or build an image, and make sure that it has the Python and the GPUs of a run.

        Args:
            environment: `environment/` of the run.
            failed: The pulls that are not tried again where another image is used instead.
            python: Which Python; empty is `python3`, else `python`.

        Raises:
            EngineFailure: It cannot be had, or lacks them.
        """
        base = ContainerTemplate(settings, program, Image.obtain(program, settings, environment, say, failed))
        options = program.gpus() if gpus else []
        inside = inspect_image(program, base.image, [*base.common, *options], python, gpus)
        return cls(base, inside, tuple(options))


_RECORD: Final = "container.json"
_NONE: Final = ("no such container", "no such object", "no container with name or id")
_TAKEN: Final = ("already in use", "is in use by")
_STATE: Final = "{{.State.Status}} {{.State.ExitCode}} {{.State.OOMKilled}}"
_NOT_YET: Final = frozenset({"created", "configured", "initialized"})
_OVER: Final = frozenset({"exited", "stopped", "dead", "removing"})


class ContainerState(Struct, frozen=True):
    """The state of a container.

    Attributes:
        exit_code: With which its first process has ended; 0 while it has not.
    """

    status: str
    exit_code: int
    out_of_memory: bool

    @property
    def is_created(self) -> bool:
        """Whether the container was created but not started."""
        return self.status in _NOT_YET

    @property
    def is_over(self) -> bool:
        """Whether the processes of the container have ended."""
        return self.status in _OVER


def write_record(
    job: Job,
    base: ContainerTemplate,
    options: Sequence[str],
    *,
    place: PurePosixPath,
    home: PurePosixPath,
    agent: Sequence[str],
) -> None:
    """Record the command line that creates the container of an attempt.

    Args:
        options: Those beyond the template's: mounts and GPUs.
        place: The attempt's folder as the container sees it.
        agent: The Python that runs the agent, and the path of the agent.

    Raises:
        OSError: It cannot be written.
    """
    program, image, name = base.program, base.image, f"stoker-{job.record.id}-{job.attempt}"
    python, archive = agent
    command = [
        *("run", "--detach", "--name", name, "--label", f"stoker.run={job.record.id}"),
        *(*base.common, *base.limits(), *options),
        *("--workdir", str(place / "work"), "--env", f"HOME={home}", *base.settings.arguments),
        *("--entrypoint", python, image.id, archive, "start", str(place)),
    ]
    record = {"program": program.path, "kind": program.kind, "container": name, "image": image.name}
    content = {**record, "image_id": image.id, "command": command}
    replace_file(job.place / _RECORD, json.dumps(content, indent=2).encode())


def read_record(place: Path) -> dict[str, Any] | None:
    """Return the record that `write_record` has written, or None."""
    record: dict[str, Any] | None = read_json(place / _RECORD)
    return record


def start_container(program: ContainerProgram, record: Mapping[str, Any], directory: Path) -> None:
    """Start a container: created if it does not exist, started if it was only created, otherwise left alone.

    Args:
        record: Its name as `container`, and the `command` that makes it.
    """
    started = program.call(*record["command"], directory=directory)
    complaint = last_line(started.stderr)
    if started.returncode != 0 and any(words in started.stderr.lower() for words in _TAKEN):
        state = inspect_container(program, record)
        if state is None or not state.is_created:
            return
        started = program.call("start", record["container"], directory=directory)
        complaint = last_line(started.stderr)
    if started.returncode != 0:
        raise EngineFailure(f"the container cannot be started: {complaint}")


def inspect_container(program: ContainerProgram, record: Mapping[str, Any]) -> ContainerState | None:
    """Return the state of a container; None if it does not exist."""
    inspected = program.call("container", "inspect", "--format", _STATE, record["container"])
    if inspected.returncode == 0:
        status, code, out_of_memory = inspected.stdout.split()
        return ContainerState(status, int(code), out_of_memory == "true")
    if _is_missing(inspected.stderr):
        return None
    message = f"{program.kind} does not answer: {last_line(inspected.stderr)}"
    raise EngineFailure(message, code=FailureCode.DOCKER_UNAVAILABLE)


def attempt_state_of_container(
    program: ContainerProgram, record: Mapping[str, Any], state: ContainerState, *, was_started: bool
) -> AttemptState:
    """Return the state of an attempt whose agent has written no report.

    Args:
        record: The container's name as `container`.
    """
    if state.is_created:
        return AttemptState(Presence.ABSENT)
    if not state.is_over:
        return AttemptState(Presence.ALIVE, "its container is paused" if state.status == "paused" else "")
    if state.out_of_memory:
        report = {"outcome": "signalled", "signal": "SIGKILL", "exit_status": None, "out_of_memory": True}
        return AttemptState(Presence.ENDED, exit=report)
    if was_started:
        return AttemptState(Presence.GONE)
    logs = program.call("logs", record["container"])
    ended = f"its container ended with status {state.exit_code}"
    complaint = last_line(logs.stderr) or last_line(logs.stdout) or ended
    return AttemptState(
        Presence.ENDED, exit={"outcome": "not_started", "reason": f"the agent cannot begin: {complaint}"}
    )


def remove_container(program: ContainerProgram, record: Mapping[str, Any]) -> None:
    """Kill the processes of a container and remove it. A missing container is no error."""
    removed = program.call("rm", "--force", "--volumes", record["container"])
    if removed.returncode != 0 and not _is_missing(removed.stderr):
        complaint = last_line(removed.stderr)
        raise EngineFailure(f"the container {record['container']} cannot be removed: {complaint}")


def _is_missing(complaint: str) -> bool:
    return any(words in complaint.lower() for words in _NONE)
