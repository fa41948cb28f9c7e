"""What the values of settings may be.

A reader returns the value, or raises ValueError with words that follow the setting's name. Values come as texts
from the command line and the environment, and as numbers, lists and mappings from YAML.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from stoker.errors import InvalidSettings
from stoker.names import parse_reference
from stoker.non_finite import NON_FINITE, NonFinite

__all__ = [
    "TOGETHER",
    "choice_of",
    "number_of",
    "read_audit",
    "read_device",
    "read_device_batches",
    "read_devices",
    "read_endpoint",
    "read_hosts",
    "read_names",
    "read_non_finite",
    "read_numbers",
    "read_origins",
    "read_path",
    "read_references",
    "read_sizes",
    "read_switch",
    "read_text",
    "read_variables",
]

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
TOGETHER: Final = "+"
"""Between the names of GPUs that one process sees; a comma is between those of replicas."""
_WHOLE_GPUS: Final = ("cuda:", "GPU-")
_DEVICE: Final = re.compile(r"auto|cpu|cuda:[0-9]{1,4}|(GPU|MIG)-[0-9A-Za-z/-]+", re.ASCII)
_MAX_BATCH_ROWS: Final = 65536


def number_of(kind: Callable[[str], Any], low: float, high: float) -> Callable[[Any], Any]:
    """A reader of numbers from `low` to `high`, of kind `int` or `float`."""

    def convert(value: Any) -> Any:
        if isinstance(value, bool):
            raise ValueError("must be a number")
        try:
            number = kind(value)
        except (TypeError, ValueError, OverflowError):
            raise ValueError("must be a whole number" if kind is int else "must be a number") from None
        if not low <= number <= high or (kind is int and number != float(value)):
            raise ValueError(
                f"must be {'a whole number ' if kind is int else ''}between {low:.10g} and {high:.10g}"
            )
        return number

    return convert


def read_switch(value: Any) -> bool:
    """True or false, or a word for them."""
    if isinstance(value, bool):
        return value
    word = str(value).lower()
    if word not in ("true", "false", "1", "0", "yes", "no"):
        raise ValueError("must be true or false")
    return word in ("true", "1", "yes")


def read_audit(value: Any) -> float:
    """How many of all batches are audited: `off`, or a number up to 1; YAML reads a bare `off` as false."""
    if value is False or str(value).lower() == "off":
        return 0.0
    rate: float = number_of(float, 0, 1)(value)
    return rate


def read_text(value: Any) -> str:
    """A text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError("must be a text")
    return value


def read_endpoint(value: Any) -> str:
    """An address of HTTP."""
    if not isinstance(value, str) or not re.fullmatch(r"https?://[^\s/?#]+[^\s?#]*", value):
        raise ValueError("must be an address such as http://127.0.0.1:4318")
    return value


def read_path(value: Any) -> Path:
    """A path; `~` is the home folder."""
    try:
        return Path(read_text(str(value) if isinstance(value, Path) else value)).expanduser()
    except RuntimeError:
        raise ValueError("names a home folder that does not exist") from None


def choice_of(*words: str) -> Callable[[Any], str]:
    """A reader of one of these words."""

    def convert(value: Any) -> str:
        if value not in words:
            raise ValueError(f"must be {' or '.join(words)}")
        return str(value)

    return convert


def read_device(value: Any) -> str:
    """A device: `auto`, `cpu`, `cuda:N`, or the UUID of a GPU or of a MIG device; several GPUs joined by `+`."""
    names = value.split(TOGETHER) if isinstance(value, str) else []
    if not names or not all(map(_DEVICE.fullmatch, names)):
        raise ValueError(
            "must be auto, cpu or cuda:N (for instance cuda:0), or the UUID of a GPU (GPU-…) or of a MIG device "
            "(MIG-…); GPUs that one process is to see are joined by +: cuda:0+cuda:1"
        )
    if len(names) > 1 and not all(name.startswith(_WHOLE_GPUS) for name in names):
        raise ValueError(
            f"joins by + what is no whole GPU: {value}; a process sees several GPUs, or one other device"
        )
    if len(set(names)) < len(names):
        raise ValueError(f"names a GPU twice: {value}")
    return str(value)


def read_device_batches(value: Any) -> int | None:
    """How many batches compute on a device at once; None for `auto`."""
    if value == "auto":
        return None
    try:
        count: int = number_of(int, 1, 8)(value)
    except ValueError:
        raise ValueError("must be auto, or a whole number between 1 and 8") from None
    return count


def read_devices(value: Any) -> tuple[str, ...]:
    """One device, several with commas between them, or a list of them."""
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(
        isinstance(name, str) and name.strip() for name in names
    ):
        raise ValueError("must name a device, or several with commas between them")
    devices = tuple(read_device(name.strip()) for name in names)
    if not devices:
        raise ValueError("must name at least one device")
    if len(set(devices)) < len(devices):
        raise ValueError("names a device twice; use replicas for several device processes on one device")
    if "auto" in devices and len(devices) > 1:
        raise ValueError("cannot have auto beside other devices")
    return devices


def read_references(value: Any) -> tuple[str, ...]:
    """Registered models as NAME[:VERSION]: one, or a list of them."""
    references = [value] if isinstance(value, str) else value
    if not isinstance(references, list | tuple) or not references:
        raise ValueError("must name registered models, as a list of NAME or NAME:VERSION")
    for reference in references:
        try:
            parse_reference(str(reference))
        except InvalidSettings as error:
            raise ValueError(f"must name registered models ({error})") from None
    return tuple(map(str, references))


def read_variables(value: Any) -> dict[str, str]:
    """Environment variables by name; numbers and switches are taken as they would be typed."""
    if not isinstance(value, Mapping):
        raise ValueError("must be a mapping of names to values")
    for name, content in value.items():
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise ValueError(f"must have names of letters, digits and '_', not {name!r}")
        if not isinstance(content, str | int | float) or "\0" in str(content):
            raise ValueError(f"must have texts as values, not {type(content).__name__} for {name}")
    return {name: _typed(content) for name, content in value.items()}


def read_sizes(value: Any) -> tuple[int, ...]:
    """Sizes of batches in rows, one or a list of them, each once and in order."""
    sizes = [value] if isinstance(value, int) else value
    if (
        not isinstance(sizes, list | tuple)
        or not sizes
        or not all(isinstance(size, int) and not isinstance(size, bool) for size in sizes)
        or not 1 <= min(sizes) <= max(sizes) <= _MAX_BATCH_ROWS
    ):
        raise ValueError(f"must be a list of whole numbers between 1 and {_MAX_BATCH_ROWS}")
    return tuple(sorted(set(sizes)))


def read_names(value: Any) -> tuple[str, ...]:
    """One name, several with commas between them, or a list of them."""
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) for name in names):
        raise ValueError("must be a name, or several with commas between them")
    stripped = tuple(name.strip() for name in names)
    if not all(stripped) or len(set(stripped)) < len(stripped):
        raise ValueError("must be names, each of them once")
    return stripped


def read_non_finite(value: Any) -> NonFinite:
    """What becomes of NaN and infinities in JSON; without quotes YAML's `null` is no text."""
    word = "null" if value is None else value
    if word not in NON_FINITE:
        raise ValueError(f"must be {' or '.join(NON_FINITE)}")
    return word


def read_numbers(value: Any) -> dict[str, float]:
    """Numbers by the names of inputs."""
    if not isinstance(value, Mapping) or not value or not all(isinstance(name, str) for name in value):
        raise ValueError("must be a mapping of names of inputs to numbers")
    for name, number in value.items():
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise ValueError(f"must have numbers as values, not {number!r} for {name}")
    return dict(value)


def _typed(content: str | float) -> str:
    return str(content).lower() if isinstance(content, bool) else str(content)


def read_hosts(value: Any) -> tuple[str, ...]:
    """Names of hosts as requests have them in `Host`, without a port; `*.NAME` and `*` stand for several."""
    hosts = tuple(name.lower() for name in read_names(value)) if value else ()
    for host in hosts:
        if re.fullmatch(r"\*|(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*", host) is None:
            raise ValueError("must be names of hosts such as score.example.com, *.example.com or *")
    return hosts


def read_origins(value: Any) -> tuple[str, ...]:
    """Origins of browsers, with commas between them, or a list of them."""
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ValueError("must be origins with commas between them, or *")
    origins = tuple(name.strip() for name in names if name.strip())
    for origin in origins:
        if not origin.isascii() or not origin.isprintable() or " " in origin or origin.endswith("/"):
            raise ValueError(f"must hold origins such as https://example.com, not {origin!r}")
    return origins
