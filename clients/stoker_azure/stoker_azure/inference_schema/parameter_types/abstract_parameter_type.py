"""What a described argument has to offer: the base class, for types of a script's own too."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

__all__ = ["AbstractParameterType"]


class AbstractParameterType(ABC):
    """Describes an argument by a sample.

    Attributes:
        sample_input: The sample.
        sample_data_type: Its type; a value that has it already is not converted.
    """

    def __init__(self, sample_input: Any) -> None:
        self.sample_input = sample_input
        self.sample_data_type = type(sample_input)

    def supported_versions(self) -> list[str]:
        """Return the Swagger versions that can express the sample, of `2.0`, `3.0` and `3.1`.

        Version 2 has no arrays of mixed types.
        """
        example = self.input_to_swagger()["example"]
        return ["2.0", "3.0", "3.1"] if _is_uniform(example) else ["3.0", "3.1"]

    @abstractmethod
    def deserialize_input(self, input_data: Any) -> Any:
        """Return what `run` gets for a value that JSON has given.

        Raises:
            ValueError: It does not fit the sample.
        """

    @abstractmethod
    def input_to_swagger(self) -> dict[str, Any]:
        """Return the Swagger schema of the sample, the sample itself in it as `example`."""


def _is_uniform(example: Any) -> bool:
    """Whether lists, and lists in them, hold one type each; dictionaries in lists are not looked into."""
    if isinstance(example, dict):
        return all(_is_uniform(value) for value in example.values())
    if isinstance(example, list):
        return len({type(item) for item in example}) <= 1 and all(
            _is_uniform(item) for item in example if isinstance(item, list)
        )
    return True
