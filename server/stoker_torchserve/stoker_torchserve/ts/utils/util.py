"""`ts.utils.util`: classes by number, and the exception that tells a caller what went wrong."""

from __future__ import annotations

import inspect
import json
import logging
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import yaml

logger = logging.getLogger(__name__)

_NAMES: Final = "object_type_names"


class PredictionException(Exception):
    """Raised by a handler to answer with a status and a message of its own."""

    def __init__(self, message: str, error_code: int = 500) -> None:
        super().__init__(message)
        self.message = message
        self.error_code = error_code

    def __str__(self) -> str:
        return f"{self.message} : {self.error_code}"


def list_classes_from_module(module: ModuleType, parent_class: type | None = None) -> list[type]:
    """Return the classes that a module defines itself, or those of them that are of a parent class."""
    classes = [
        member
        for _, member in inspect.getmembers(module, inspect.isclass)
        if member.__module__ == module.__name__
    ]
    return classes if parent_class is None else [kind for kind in classes if issubclass(kind, parent_class)]


def load_label_mapping(mapping_file_path: str | Path) -> dict[str, str] | None:
    """Read the names of classes by number, such as `index_to_name.json`; None if there is no such file.

    A name may be a list, of which the last entry counts.

    Raises:
        ValueError: The file holds something else.
    """
    path = Path(mapping_file_path)
    if not path.is_file():
        logger.info("%s does not exist: answers have the numbers of classes, not their names", path)
        return None
    mapping = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(mapping, dict):
        raise ValueError(f"{path} needs an object with the names of classes by number")
    if isinstance(mapping.get(_NAMES), list):
        return {str(number): name for number, name in enumerate(mapping[_NAMES])}
    named = {key: value[-1] if isinstance(value, list) and value else value for key, value in mapping.items()}
    for key, value in named.items():
        if not isinstance(value, str):
            raise ValueError(f"{path}: the name of {key} has to be a text, or a list of texts")
    return named


def map_class_to_label(
    probs: list[list[Any]],
    mapping: dict[str, str] | None = None,
    lbl_classes: list[list[Any]] | None = None,
) -> list[dict[str, Any]]:
    """Return each row's probabilities by the names of their classes.

    Args:
        probs: Probabilities, a list for each row.
        mapping: Names by the number as a text; None to keep the numbers.
        lbl_classes: The classes of the probabilities, a list for each row; None if they are counted from 0.
    """
    if not isinstance(probs, list):
        raise TypeError("probs has to be a list with a list for each row")
    if mapping is not None and not isinstance(mapping, dict):
        raise TypeError("mapping has to be a dict")
    classes = lbl_classes or [list(range(len(row))) for row in probs]
    return [
        {
            (str(kind) if mapping is None else mapping[str(kind)]): value
            for kind, value in zip(kinds, row, strict=False)
        }
        for kinds, row in zip(classes, probs, strict=False)
    ]


def get_yaml_config(yaml_file_path: str | Path) -> Any:
    """Return what a YAML file holds."""
    return yaml.safe_load(Path(yaml_file_path).read_text(encoding="utf-8"))
