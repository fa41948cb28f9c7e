"""Looks for versions, labels and keys that come and go on the disk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Final

from stoker.errors import OperatorError
from stoker.models.available_models import AvailableModel
from stoker.models.labels import labels_mark
from stoker.supervisor.background import in_thread
from stoker.supervisor.rollout import Rollout
from stoker.supervisor.stock import Stock

logger = logging.getLogger(__name__)

_LABELS_S: Final = 1.0


class RepositoryPoller:
    """Follows the labels of the models that are served, keys, and if asked to the versions on the disk."""

    def __init__(self, rollout: Rollout, stock: Stock, poll_s: float) -> None:
        """Begin; `poll_s` is how often to look for versions, 0 for never."""
        self._rollout = rollout
        self._stock = stock
        self._poll_s = poll_s
        self._marks: dict[str, tuple[int, ...]] = {}
        self._following: set[str] = set()
        self._label_troubles: dict[str, str] = {}
        self._seen: dict[tuple[str, int], str] = {}
        self._trouble = ""
        self._version_troubles: dict[str, str] = {}

    async def run(self) -> None:
        """Look until cancelled; loads hold up neither further looks at labels nor at versions."""
        loop = asyncio.get_running_loop()
        look_s = loop.time() + self._poll_s
        looking: asyncio.Task[None] | None = None
        async with asyncio.TaskGroup() as looks:
            while True:
                await asyncio.sleep(min(_LABELS_S, self._poll_s or _LABELS_S))
                looks.create_task(_whole(self.poll_labels))
                looks.create_task(_whole(lambda: in_thread(self._stock.keys.poll)))
                if self._poll_s and loop.time() >= look_s and (looking is None or looking.done()):
                    looking = looks.create_task(_whole(self.poll))
                    look_s = loop.time() + self._poll_s

    async def poll_labels(self) -> None:
        """Follow the labels that were moved since the last look, those of a model beside those of the others.

        A model whose labels are still being followed is left for a later look.
        """
        stores: dict[Path, dict[str, Path]] = {}
        for name, base in self._rollout.bases.items():
            if base is not None and name not in self._following:
                stores.setdefault(base.parent, {})[name] = base
        await asyncio.gather(*map(self._look, stores.values()))

    async def _look(self, bases: Mapping[str, Path]) -> None:
        """Look at the models of one folder, on one thread: they may be hundreds."""
        self._following.update(bases)
        moved: dict[str, tuple[int, ...]] = {}
        try:
            marks = await in_thread(_label_marks, bases)
            moved = {name: mark for name, mark in marks.items() if self._marks.get(name) != mark}
        finally:
            self._following.difference_update(bases.keys() - moved.keys())
        await asyncio.gather(*(self._follow(name, mark) for name, mark in moved.items()))

    async def _follow(self, name: str, mark: tuple[int, ...]) -> None:
        try:
            await self._rollout.follow(await in_thread(self._stock.find_model, name))
            # Only now: a look that failed is made again, for a disk may be away for a moment.
            self._marks[name] = mark
            self._label_troubles.pop(name, None)
        except Exception as error:
            if self._label_troubles.get(name) != str(error):
                foreseen = isinstance(error, OperatorError | OSError)
                logger.warning("the labels of %s stay as they are: %s", name, error, exc_info=not foreseen)
            self._label_troubles[name] = str(error)
        finally:
            self._following.discard(name)

    async def poll(self) -> None:
        """Load and unload what has come and gone since the last look.

        A version is loaded when its files have not changed between two looks: until then somebody may still be
        writing them.
        """
        try:
            await in_thread(self._stock.update_mirrors)
            available = await in_thread(self._stock.find_models)
            seen, troubles = await in_thread(_fingerprints, available)
        except (OperatorError, OSError) as error:
            # A file system that is away for a moment must not unload all models.
            if str(error) != self._trouble:
                logger.warning("everything stays loaded as it is: %s", error)
            self._trouble = str(error)
            return
        self._trouble = ""
        for version, reason in troubles.items():
            # Once, and not with each look.
            if self._version_troubles.get(version) != reason:
                logger.warning("%s stays as it is: %s", version, reason)
        self._version_troubles = troubles
        settled = [
            version
            for version, (fingerprint, whole) in seen.items()
            if whole or self._seen.get(version) == fingerprint
        ]
        self._seen = {version: fingerprint for version, (fingerprint, _) in seen.items()}
        await self._rollout.refresh(available, settled)


def _label_marks(bases: Mapping[str, Path]) -> dict[str, tuple[int, ...]]:
    return {name: labels_mark(base) for name, base in bases.items()}


async def _whole(look: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """One look; a fault in it must not end the watch. One that is cancelled before it begins is not made."""
    try:
        await look()
    except Exception:
        logger.exception("looking for changes of the models failed")


def _fingerprints(
    available: Mapping[str, AvailableModel],
) -> tuple[dict[tuple[str, int], tuple[str, bool]], dict[str, str]]:
    """The fingerprints of the versions that should be served, and why others cannot be.

    With each fingerprint goes whether the version appears as a whole or not at all.
    """
    seen = {}
    troubles = {}
    for name, entry in available.items():
        if entry.error is not None:
            continue
        try:
            labelled = set(entry.labels().values()).intersection(entry.versions)
            wanted = labelled.union(entry.policy.choose(entry.versions))
        except OperatorError as error:
            troubles[name] = str(error)
            continue
        for version in wanted:
            try:
                source = entry.source(version)
                seen[name, version] = (source.fingerprint(), source.registered is not None)
            except (OperatorError, OSError) as error:
                troubles[f"{name} version {version}"] = str(error)
    return seen, troubles
