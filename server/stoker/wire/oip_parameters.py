"""What the Open Inference Protocol v2 lets a request say beside its tensors: its id and its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from stoker.echo import cut
from stoker.errors import InvalidInput, MalformedBody

__all__ = [
    "MAX_ID_CHARS",
    "check_id",
    "check_parameters",
    "flag",
    "identifier",
    "parameters_of",
    "tier",
    "timeout_ns",
]

_MAX_TIMEOUT_US: Final = 1 << 40
_SEQUENCE: Final = ("sequence_id", "sequence_start", "sequence_end")
MAX_ID_CHARS: Final = 1024
"""The longest id of a request."""


def identifier(document: Mapping[str, Any]) -> str:
    """Return the id of a request's JSON; empty if it has none.

    Raises:
        MalformedBody: It is no text, or too long.
    """
    text = document.get("id", "")
    if not isinstance(text, str):
        raise MalformedBody("'id' must be a string")
    check_id(len(text))
    return text


def check_id(size: int) -> None:
    """Refuse the id of a request, which its answer repeats, if it is long.

    Args:
        size: Its length, in characters or bytes.

    Raises:
        MalformedBody: It has more than 1024.
    """
    if size > MAX_ID_CHARS:
        raise MalformedBody(f"'id' has more than {MAX_ID_CHARS} characters")


def parameters_of(
    owner: Mapping[str, Any], *, regions: bool = False, sequences: bool = False
) -> Mapping[str, Any]:
    """Return the checked parameters of a request, an input or an output in JSON.

    Args:
        owner: It.
        regions: Whether its data may be in shared memory.
        sequences: Whether it is a request to a model that keeps state for sequences.

    Raises:
        MalformedBody: They are no object, or one is reserved.
        InvalidInput: One asks for a sequence, or for shared memory where that may not be.
    """
    parameters = owner.get("parameters", {})
    if not isinstance(parameters, dict):
        raise MalformedBody("'parameters' must be an object")
    check_parameters(parameters, regions=regions, sequences=sequences)
    return parameters


def check_parameters(
    parameters: Mapping[str, Any], *, regions: bool = False, sequences: bool = False
) -> None:
    """Refuse parameters of a request, an input or an output that are reserved, or that nothing here can honour.

    Args:
        parameters: They.
        regions: Whether data may be in shared memory.
        sequences: Whether they are those of a request to a model that keeps state for sequences.

    Raises:
        MalformedBody: One is reserved.
        InvalidInput: One asks for a sequence, or for shared memory where that may not be.
    """
    for name, value in parameters.items():
        if name.startswith("triton_"):
            raise MalformedBody(
                f"parameter keys starting with 'triton_' are reserved for Triton usage, got '{cut(name)}'"
            )
        if not sequences and name in _SEQUENCE and value not in (0, "", False):
            raise InvalidInput(f"'{name}' needs a model that keeps state for a sequence; this one has none")
        if name.startswith("shared_memory") and not regions:
            raise InvalidInput("shared memory regions are not supported")


def flag(parameters: Mapping[str, Any], name: str) -> bool:
    """Return a parameter that is true or false; false if it is absent.

    Raises:
        MalformedBody: It is something else.
    """
    value = parameters.get(name, False)
    if not isinstance(value, bool):
        raise MalformedBody(f"'{name}' must be true or false")
    return value


def timeout_ns(parameters: Mapping[str, Any]) -> int | None:
    """Return the parameter `timeout`, which is in microseconds, in nanoseconds; None if it is absent or 0.

    Raises:
        MalformedBody: It is no number.
    """
    value = parameters.get("timeout", 0)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise MalformedBody("'timeout' must be a number of microseconds")
    return min(value, _MAX_TIMEOUT_US) * 1000 or None


def tier(parameters: Mapping[str, Any]) -> int | None:
    """Return the tier that the parameter `priority` means, 0 for the highest; None if it is absent or 0.

    Triton's priorities: 1 is the highest, greater numbers are lower, and 0 is the model's default.

    Raises:
        MalformedBody: It is no number from 0 on.
    """
    value = parameters.get("priority", 0)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise MalformedBody("'priority' must be a number from 0 on")
    return min(value, 3) - 1 if value else None
