"""Swagger descriptions that a user has written: files beside the entry script or the model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from stoker.errors import LoadFailed
from stoker.settings.files import parse_json, settings_text

_NAMES: Final = {"2": ("swagger.json", "swagger2.json"), "3": ("swagger3.json",), "3.1": ("swagger3.1.json",)}


def find_swagger_files(script: Path | None, model_dir: Path, environ: Mapping[str, str]) -> dict[str, Path]:
    """Return the files with descriptions of a service by Swagger version: `2`, `3`, `3.1`.

    They are looked for in the folder AML_APP_ROOT, beside an entry script, and in the model's folder.

    Args:
        script: The entry script; None for a model that a runtime loads, which may only have files in its folder.
    """
    folders = [model_dir]
    if script is not None:
        folders.insert(0, script.parent)
        if root := environ.get("AML_APP_ROOT"):
            folders.insert(0, Path(root))
    found: dict[str, Path] = {}
    for version, names in _NAMES.items():
        candidates = [folder / name for folder in folders for name in names]
        for file in candidates:
            if file.exists():
                read_swagger_file(file)
                found[version] = file.absolute()
                break
    return found


def read_swagger_file(file: Path) -> dict[str, Any]:
    """Read a description."""
    try:
        content = parse_json(settings_text(file))
    except (OSError, ValueError) as error:
        raise LoadFailed(f"{file} is to describe the service, and cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise LoadFailed(f"{file} is to describe the service, and is no JSON object")
    return content
