"""Labels of versions in a file beside the versions: whoever replaces it moves them, in running servers too.

The folder of a registered model has it (`models/NAME/labels.json`, written by `stoker models label`), and the base
path of a model in Triton's or TensorFlow Serving's layout may have one.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from stoker.errors import RepositoryError
from stoker.system.durable import locked, replace_file
from stoker.versions import read_labels

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

__all__ = ["LABELS_FILE", "change_labels", "labels_mark", "stored_labels"]

LABELS_FILE: Final = "labels.json"


def stored_labels(base: Path) -> dict[str, int]:
    """Return the labels of the model whose versions are in this folder.

    Raises:
        RepositoryError: The file is there, but malformed.
    """
    path = base / LABELS_FILE
    try:
        return read_labels(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise RepositoryError(f'{path} cannot be read as labels, such as {{"stable": 3}}: {error}') from error


def change_labels(base: Path, moved: Mapping[str, int], removed: Collection[str] = ()) -> dict[str, int]:
    """Move and remove labels, and return all that there are then; running servers see all changes or none.

    Raises:
        RepositoryError: The file is malformed.
    """
    with locked(base / ".labels.lock"):
        kept = {label: version for label, version in stored_labels(base).items() if label not in removed}
        labels = dict(sorted({**kept, **moved}.items()))
        replace_file(base / LABELS_FILE, json.dumps(labels, indent=2).encode() + b"\n")
    return labels


def labels_mark(base: Path) -> tuple[int, int, int]:
    """Return what changes when the labels are replaced; looking at it costs one call of the kernel."""
    try:
        status = (base / LABELS_FILE).stat()
    except OSError:
        return (0, 0, 0)
    return status.st_ino, status.st_mtime_ns, status.st_size
