"""Copying models into the workspace, as the next version of a name."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from stoker.device.signature_probe import learn_signature
from stoker.errors import LoadFailed, RepositoryError
from stoker.models.frameworks import Detected, Framework, detect
from stoker.models.registered import Registered
from stoker.models.repository import ModelFacts, Repository

__all__ = ["register"]


def register(
    repository: Repository,
    name: str,
    path: Path,
    facts: ModelFacts,
    *,
    pickles: bool = False,
    sample: Path | None = None,
    say: Callable[[str], None] = print,
) -> Registered:
    """Register a model; one that a server would refuse may be one that an entry script loads.

    Args:
        repository: Where it is kept.
        name: Its name.
        path: The file or folder.
        facts: What is said of it.
        pickles: Whether a pickle is a model of scikit-learn, rather than what an entry script loads.
        sample: A request that the model is known to answer.
        say: Takes lines for the user.

    Raises:
        OperatorError: The name is malformed, or the files cannot be copied.
    """
    detected = _detected(path, pickles=pickles)

    def register_as(framework: Framework) -> Registered:
        return repository.register(
            name,
            path,
            now=datetime.now(UTC),
            framework=framework,
            read_signature=None
            if framework == "files"
            else lambda copy, folder: learn_signature(name, path, detected, copy, folder, say),
            sample=sample,
            **facts,
        )

    try:
        return register_as(detected.framework)
    except LoadFailed as error:
        say(
            f"Registering {name} as files for an entry script, because it cannot be served by itself: {error}"
        )
        return register_as("files")


def _detected(path: Path, *, pickles: bool) -> Detected:
    with contextlib.suppress(RepositoryError):
        detected = detect(path)
        if pickles or detected.framework != "sklearn":
            return detected
    return detect(path, "files")
