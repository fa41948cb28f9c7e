"""Versions, labels and models that come and go while callers ask."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from functools import partial

from tests.chaos.ledger import Verdict
from tests.chaos.scene import Scene, action
from tests.chaos.server import RECOVERY_S
from tests.live_server import wait_until

__all__: list[str] = []

_of_versions = partial(action, group="versions")


@_of_versions
def version_takes_over(scene: Scene) -> Iterator[None]:
    """A new version takes over and the old one is unloaded without costing anybody anything."""
    scene.server.write_version()
    scene.errand(lambda: scene.administer("marked/load"))
    yield


@_of_versions
def version_does_not_load(scene: Scene) -> Iterator[None]:
    """A version that does not load is told to who asked for it, and costs nobody else anything."""
    server = scene.server
    server.write_version(broken=True)

    def load() -> None:
        with contextlib.suppress(OSError, AssertionError):
            answer = server.administer("marked/load")
            was_refused = answer.status == 500 and "failed to load 'marked'" in answer.json()["error"]
            if not was_refused and scene.alone:
                raise RuntimeError(f"a broken version was answered {answer.status}: {answer.body!r}")
        server.remove_newest()

    scene.errand(load)
    yield


@_of_versions
def label_moved(scene: Scene) -> Iterator[None]:
    """A label moves to another version, which is loaded for it if need be, without costing anybody anything."""
    server = scene.server
    version = scene.random.choice(
        sorted(int(folder.name) for folder in server.marked.iterdir() if folder.is_dir())
    )
    server.label_means.add(version)
    server.write_label(version)

    def follow() -> None:
        def followed() -> bool:
            with contextlib.suppress(OSError, AssertionError):
                return server.labelled() == {version}
            return False

        wait_until(followed, f"the label is followed to {version}", timeout_s=RECOVERY_S, every_s=0.1)
        server.label_means.intersection_update({version})

    scene.errand(follow)
    yield


@_of_versions
def label_ahead_of_its_version(scene: Scene) -> Iterator[None]:
    """A label that names a version which is not there goes on meaning the old one."""
    (before,) = list(scene.server.label_means)[:1]
    scene.server.write_label(scene.server.newest + 1000)
    yield
    scene.server.write_label(before)


@action
def model_unloaded(scene: Scene) -> Iterator[None]:
    """A model that is unloaded answers who had asked before and is 404 or 503 then; others notice nothing."""
    scene.allow(Verdict.REFUSED, "unloaded", "not_ready", protocols=("extra",))
    unloaded = time.monotonic()

    def come_and_go() -> None:
        scene.administer("extra/unload")
        time.sleep(max(0.0, unloaded + scene.hold_s - time.monotonic()))
        scene.administer("extra/load")

    scene.errand(come_and_go)
    yield
