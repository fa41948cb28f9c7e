"""Registering models: copying them into the workspace as the next version of a name."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from stoker.device.signature_probe import learn_signature
from stoker.errors import LoadFailed, RepositoryError
from stoker.models.frameworks import Detected, Framework, detect
from stoker.models.registered import Registered
from stoker.models.repository import ModelFacts, Repository
from stoker_azure.exceptions import NotOffered

_MOST_ROWS: Final = 16


def register(
    repository: Repository,
    name: str,
    path: Path,
    facts: ModelFacts,
    *,
    pickles: bool = False,
    sample: Path | None = None,
    report: Callable[[str], None] = print,
) -> Registered:
    """Register a model. If a server would refuse it, register its files for an entry script.

    Args:
        pickles: Whether a pickle is a model of scikit-learn, rather than a file for an entry script.

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
            else lambda copy, folder: learn_signature(name, path, detected, copy, folder, report),
            sample=sample,
            **facts,
        )

    try:
        return register_as(detected.framework)
    except LoadFailed as error:
        report(
            f"Registering {name} as files for an entry script, because it cannot be served by itself: {error}"
        )
        return register_as("files")


def _detected(path: Path, *, pickles: bool) -> Detected:
    with contextlib.suppress(RepositoryError):
        detected = detect(path)
        if pickles or detected.framework != "sklearn":
            return detected
    return detect(path, "files")


@contextlib.contextmanager
def sample_file(rows: Any) -> Iterator[Path | None]:
    """Write the first rows as a request into a file that exists during the context; a server tries the model with it.

    Args:
        rows: A table of pandas, an array, or lists; None writes nothing.

    Raises:
        NotOffered: It is something else, such as a data set of Azure.
    """
    if rows is None:
        yield None
        return
    array = rows.to_numpy() if hasattr(rows, "to_numpy") else rows
    listed = array.tolist() if hasattr(array, "tolist") else array
    try:
        content = json.dumps({"data": list(listed)[:_MOST_ROWS]}, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise NotOffered(
            "sample_input_dataset is taken here as a table, an array or lists of rows without NaN, and not as a data "
            f"set: {error}"
        ) from error
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "sample_input.json")
        file.write_text(content, encoding="utf-8")
        yield file
