"""Labels of versions in a file beside the versions: replacing the file moves them, in running servers too.

Another file has the weights of labels, by which requests go to their versions.

The folder of a registered model has it (`models/NAME/labels.json`, written by `stoker models label`), and the base
path of a model in Triton's or TensorFlow Serving's layout may have one.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from stoker.errors import RepositoryError
from stoker.settings.files import parse_json, settings_text
from stoker.settings.traffic import Canary
from stoker.settings.versions import read_labels
from stoker.system.durable import locked, replace_file

LABELS_FILE: Final = "labels.json"
_CANARY_FILE: Final = "canary.json"


def stored_labels(base: Path) -> dict[str, int]:
    """Return the labels of the model whose versions are in this folder."""
    path = base / LABELS_FILE
    try:
        return read_labels(parse_json(settings_text(path)))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise RepositoryError(f'{path} cannot be read as labels, such as {{"stable": 3}}: {error}') from error


def change_labels(base: Path, moved: Mapping[str, int], removed: Collection[str] = ()) -> dict[str, int]:
    """Move and remove labels, and return all remaining ones; running servers see all changes or none."""
    with locked(base / ".labels.lock"):
        kept = {label: version for label, version in stored_labels(base).items() if label not in removed}
        labels = dict(sorted({**kept, **moved}.items()))
        replace_file(base / LABELS_FILE, json.dumps(labels, indent=2).encode() + b"\n")
    return labels


def stored_canary(base: Path) -> Canary | None:
    """Return the weights of labels of the model whose versions are in this folder; None if none are set."""
    path = base / _CANARY_FILE
    try:
        return Canary.from_json(parse_json(settings_text(path)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RepositoryError(f"{path} cannot be read as weights of labels: {error}") from error


def store_canary(base: Path, canary: Canary) -> None:
    """Set the weights of labels, for running servers too."""
    with locked(base / ".labels.lock"):
        replace_file(base / _CANARY_FILE, json.dumps(canary.to_json(), indent=2).encode() + b"\n")


def labels_mark(base: Path) -> tuple[int, ...]:
    """Return a value that changes with the labels and their weights; it costs two calls of the kernel."""
    return (*_mark(base / LABELS_FILE), *_mark(base / _CANARY_FILE))


def _mark(file: Path) -> tuple[int, int, int]:
    try:
        status = file.stat()
    except OSError:
        return (0, 0, 0)
    return status.st_ino, status.st_mtime_ns, status.st_size
