"""What is known of the container of a run before there is one: its program, its image, and what limits it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stoker_runs.targets.container_image import Image
from stoker_runs.targets.container_program import ContainerProgram
from stoker_runs.targets.container_settings import ContainerSettings

__all__ = ["ContainerBase"]


@dataclass(frozen=True, slots=True)
class ContainerBase:
    """What is known of a container before there is one.

    Attributes:
        settings: How it is to be.
        program: What starts it.
        image: Of which image.
    """

    settings: ContainerSettings
    program: ContainerProgram
    image: Image

    @property
    def common(self) -> list[str]:
        """What each container is started with, those that only look or build too."""
        network = ["--network", self.settings.network] if self.settings.network else []
        # Where SELinux is on, bound folders could not be read else.
        return [*self.program.user(), "--security-opt", "label=disable", *network]

    def ask(self, command: Sequence[str]) -> str:
        """Run a command in a container that only looks; returns what it prints.

        Raises:
            EngineFailure: The program does not answer.
        """
        options = ["run", "--rm", *self.common, "--entrypoint", command[0]]
        return self.program.call(*options, self.image.id, *command[1:]).stdout

    def limits(self) -> list[str]:
        """What the container of a script is started with besides: its memory, and the folders that it sees."""
        settings = self.settings
        words = [*("--shm-size", settings.shm_size)] if settings.shm_size else []
        if settings.memory:
            # As much swap as memory is none besides.
            words += ["--memory", settings.memory, "--memory-swap", settings.memory]
        for volume in settings.volumes:
            words += ["--volume", volume]
        return words
