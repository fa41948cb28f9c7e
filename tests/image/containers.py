"""Containers of Stoker's image, with the rights of pods in a cluster, or with those that a test gives."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

from tests.http.raw_http import Answer, Connection, bearer, request
from tests.image.podman import Podman
from tests.live_server import PRIMARY, free_port, wait_until
from tests.patience import PROGRAM_S

from stoker.system import module_process

__all__ = ["RESTRICTED", "Container"]

RESTRICTED: Final = ("--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", "--security-opt=no-new-privileges")
"""The rights of a pod of the profile restricted, as options of podman."""


class Container:
    """One container with a server; leaving its context removes it and its volumes.

    Attributes:
        podman: The Podman that runs it.
        name: Its name there.
        port: Where its port 8080 is on this machine.
    """

    def __init__(
        self,
        podman: Podman,
        image: str,
        *arguments: str,
        options: Sequence[str] = RESTRICTED,
        models: Path | None = None,
        ports: Sequence[int] = (8080,),
        given_keys: bool = True,
    ) -> None:
        """Start it.

        Args:
            podman: The Podman that runs it.
            image: Its image.
            *arguments: Arguments of `stoker serve`.
            options: Options of `podman run`.
            models: The folder that is `/models` there, read-only.
            ports: Its ports that can be reached.
            given_keys: Whether its key is given by the environment, else it makes one.
        """
        self.podman, self.name = podman, f"stoker-test-{uuid.uuid4().hex[:12]}"
        self.ports = {inside: free_port() for inside in ports}
        mounts = [] if models is None else [f"--volume={models}:/models:ro"]
        led = [f"--publish=127.0.0.1:{outside}:{inside}" for inside, outside in self.ports.items()]
        keys = [f"--env=STOKER_PRIMARY_KEY={PRIMARY}"] if given_keys else []
        podman.run(
            "run", "--detach", f"--name={self.name}", *options, *keys, *led, *mounts, image, *arguments
        )

    @property
    def port(self) -> int:
        """Where its HTTP port is on this machine."""
        return self.ports[8080]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.podman.run("rm", "--force", "--volumes", "--time=0", self.name)

    def until_ready(self) -> Self:
        """Wait until it can score."""
        wait_until(self._ready, "the container can score", timeout_s=PROGRAM_S, every_s=0.1)
        return self

    def _ready(self) -> bool:
        if not self.state()["Running"]:
            raise AssertionError(f"the container has ended:\n{self.logs()}")
        try:
            return self.get("/v2/health/ready").status == 200
        # podman's own end of the port takes connections before the server does, and closes them.
        except (OSError, AssertionError):
            return False

    def state(self) -> dict[str, Any]:
        """How it stands, in podman's words."""
        state: dict[str, Any] = json.loads(self.podman.ask("inspect", "--format={{json .State}}", self.name))
        return state

    def logs(self) -> str:
        """Its standard output, then its standard error."""
        done = self.podman.run("logs", self.name)
        return done.stdout + done.stderr

    def inside(self, *command: str) -> str:
        """Run a command in it; returns its output."""
        return self.podman.ask("exec", self.name, *command)

    def threads(self) -> dict[str, int]:
        """Threads of each of its processes, by the module or program that runs there."""
        # There is no `ps` in the image.
        count_and_command = 'echo $(ls $p/task | wc -l) $(tr "\\0" " " < $p/cmdline)'
        script = f"for p in /proc/[0-9]*; do {count_and_command}; done 2> /dev/null"
        lines = [line.split() for line in self.inside("sh", "-c", script).splitlines()]
        found = {_program(words[1:]): int(words[0]) for words in lines if words[1:2] and "/opt/" in words[1]}
        assert len(found) == len([line for line in lines if "/opt/" in " ".join(line[:2])]), lines
        return found

    def frontends(self) -> int:
        """How many frontends there are, of all servers in it."""
        script = (
            r'cat /proc/[0-9]*/cmdline 2> /dev/null | tr "\0" "\n" | grep -cx "stoker[.]gateway[.]frontend"'
        )
        return int(self.inside("sh", "-c", script))

    def wait(self) -> int:
        """Wait until it has ended; returns its exit code."""
        return int(self.podman.ask("wait", self.name))

    def stop(self) -> int:
        """Ask it to end (SIGTERM), as `docker stop --time 40`; returns its exit code, 137 if it had to be killed."""
        self.podman.run("stop", "--time=40", self.name)
        return int(self.state()["ExitCode"])

    def get(self, path: str) -> Answer:
        """GET with the key."""
        return self.ask(request("GET", path, [bearer(PRIMARY)]))

    def ask(self, data: bytes, timeout_s: float = PROGRAM_S) -> Answer:
        """Send a request on a connection of its own, and wait for its answer."""
        with Connection(self.port, timeout_s=timeout_s) as connection:
            return connection.ask(data)


def _program(command: Sequence[str]) -> str:
    if "-m" not in command:
        return Path(command[1]).name
    module, *arguments = command[command.index("-m") + 1 :]
    return arguments[0] if module == module_process.__name__ else module
