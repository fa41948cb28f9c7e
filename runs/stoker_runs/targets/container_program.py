"""`docker` and `podman` by their command lines, with the same code for both."""

from __future__ import annotations

import csv
import io
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stoker_runs.records.states import FailureCode
from stoker_runs.targets.definitions import PROGRAMS
from stoker_runs.targets.engine import EngineFailure

_ENGINE_VARIABLE: Final = "STOKER_CONTAINER_ENGINE"
"""The environment variable that names the container program, where the target does not."""
_ANSWER_S: Final = 60.0
_FACTS: Final = {
    "docker": "{{.ServerVersion}} {{json .SecurityOptions}}",
    "podman": "{{.Version.Version}} {{if .Host.Security.Rootless}}rootless{{end}}",
}
_HINTS: Final = {
    "docker": "start it, as by 'systemctl start docker', or name podman as the engine of the target",
    "podman": "'podman info' says more",
}
_NOT_ALLOWED: Final = (
    "let yourself use it, as by 'sudo usermod -aG docker $USER' and a new login, or name podman as the engine"
)
RunCommand = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]
"""Runs a command to its end."""


@dataclass(frozen=True, slots=True)
class ContainerProgram:
    """A container program that responds.

    Attributes:
        kind: `docker` or `podman`; a `docker` that is podman by another name is `podman`.
        rootless: Whether it belongs to a user, who is root in its containers.
    """

    path: str
    kind: str
    version: str = ""
    rootless: bool = False

    def __str__(self) -> str:
        return f"{self.kind} {self.version}".strip()

    @classmethod
    def find(cls, wanted: str = "", environ: Mapping[str, str] = os.environ) -> ContainerProgram:
        """Return the named program, or the first one that responds.

        Args:
            wanted: `docker` or `podman`; empty to use the environment variable, or else either.
        """
        return cls.find_responding(
            wanted or environ.get(_ENGINE_VARIABLE, ""),
            lambda name: shutil.which(name, path=environ.get("PATH")),
            _run,
        )

    @classmethod
    def find_responding(
        cls, wanted: str, find_path: Callable[[str], str | None], run_command: RunCommand
    ) -> ContainerProgram:
        """Return the named program, or the first one that responds, on any machine.

        Args:
            wanted: `docker` or `podman`; empty is either.
            which: Finds a program there; None is nowhere.
        """
        reasons = []
        for name in (wanted,) if wanted else PROGRAMS:
            path = find_path(name)
            if path is None:
                if wanted:
                    reasons.append((f"{name} is not on the PATH", "install it, or name another engine"))
                continue
            found = cls._responding(path, run_command)
            if isinstance(found, ContainerProgram):
                return found
            reasons.append(found)
        if not reasons:
            reasons.append(("neither docker nor podman is on the PATH", "install one of them"))
        message = "; ".join(message for message, _ in reasons)
        raise EngineFailure(message, reasons[0][1], code=FailureCode.DOCKER_UNAVAILABLE)

    @staticmethod
    def _responding(path: str, run_command: RunCommand) -> ContainerProgram | tuple[str, str]:
        """Return the program at a path, or its error and a hint."""
        name = Path(path).name
        try:
            kind = "podman" if "podman" in run_command([path, "--version"]).stdout.lower() else "docker"
            answer = run_command([path, "info", "--format", _FACTS[kind]])
        except (OSError, subprocess.SubprocessError) as error:
            return f"{name} does not answer: {error}", _HINTS.get(name, "")
        version, _, more = answer.stdout.strip().partition(" ")
        if answer.returncode != 0 or not version[:1].isdigit():
            complaint = last_line(answer.stderr) or f"it ended with status {answer.returncode}"
            hint = _NOT_ALLOWED if "permission denied" in complaint.lower() else _HINTS[kind]
            return f"{name} does not answer: {complaint}", hint
        return ContainerProgram(path, kind, version, "rootless" in more)

    def call(
        self,
        *arguments: str,
        timeout_s: float | None = _ANSWER_S,
        environ: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run one of its commands.

        Args:
            timeout_s: How long it may take; None is for ever.
            environ: Its environment variables; None is those of this process.
            directory: Its current directory: podman's monitor notes there that a container was out of memory.
        """
        try:
            return _run([self.path, *arguments], timeout_s, environ, directory)
        except (OSError, subprocess.SubprocessError) as error:
            message = f"{self.kind} {arguments[0]} did not end: {error}"
            raise EngineFailure(message, _HINTS[self.kind], code=FailureCode.DOCKER_UNAVAILABLE) from error

    def user(self) -> list[str]:
        """The options by which files that a container writes belong to the user of this process."""
        return self._as_user(os.geteuid(), os.getegid())

    def _as_user(self, user: int, group: int) -> list[str]:
        if user == 0 or (self.rootless and self.kind == "docker"):
            return []
        # With rootless podman: the same user id inside as outside.
        same = ["--userns", "keep-id"] if self.rootless else []
        return [*same, "--user", f"{user}:{group}"]

    def build(self, name: str, dockerfile: Path) -> subprocess.CompletedProcess[str]:
        """Build an image of a Dockerfile alone: nothing else is in its folder."""
        with tempfile.TemporaryDirectory(prefix="stoker-image-") as context:
            return self.call("build", "-t", name, "-f", str(dockerfile), context, timeout_s=None)

    def gpus(self) -> list[str]:
        """The options that give a container the GPUs of this machine."""
        # Podman accepts --gpus and ignores it.
        return ["--device", "nvidia.com/gpu=all"] if self.kind == "podman" else ["--gpus", "all"]


def _run(
    command: Sequence[str],
    timeout_s: float | None = _ANSWER_S,
    environ: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=environ,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=False,
    )


def mount(here: Path, there: str, *, readonly: bool = False) -> list[str]:
    """The options that mount a file or folder of this machine, whatever characters its name has."""
    line = io.StringIO()
    fields = ["type=bind", f"source={here}", f"target={there}", *(["readonly"] if readonly else [])]
    csv.writer(line, lineterminator="").writerow(fields)
    return ["--mount", line.getvalue()]


def last_line(text: str) -> str:
    """Return the last line that is not blank."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("Error: ") if lines else ""
