"""A new server in the place of the one that runs."""

from __future__ import annotations

from collections.abc import Iterator

from tests.chaos.scene import Scene, action

__all__: list[str] = []


@action
def server_reloaded(scene: Scene) -> Iterator[None]:
    """A new server that takes the place of the old one costs nobody anything."""
    scene.errand(lambda: scene.until_done("reload", scene.server.reload))
    yield
